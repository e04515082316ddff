"""The check of a worker's results: by the judge, another process beside the worker, or within the worker's process.

The worker reaches the judge (judge/service.py) through the parent. The parent therefore sees each verdict, and a
backend cannot change one by changing the worker's process. Inputs lie in the judge's memory, and results are copied
there.

The worker checks within its process for an approximate backend, which is compared with its own definition, where memory
cannot be shared, and where the parent has no judge for the case (run/judge.py). It then makes inputs and reference
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from attnbench.core.backend import ApproximateBackend, Backend, Inputs, Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Accuracy, Approximation
from attnbench.core.renewed_inputs import InputRenewal, Renewal
from attnbench.core.shared_tensors import Mapped, NotShared, copy_bytes, extent_bytes
from attnbench.judge import inputs
from attnbench.judge.case_judge import Calls, CaseJudge
from attnbench.judge.dropout_mask import RandomState, in_input_order
from attnbench.judge.heads import draw_heads, head_case, head_seed
from attnbench.judge.result_check import copies_problem
from attnbench.judge.row_sample import draw_seed
from attnbench.judge.tolerance import check_form, expected_results

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.worker.instruments import Instruments

MOST_STRETCHED = 4  # most bytes of a result's storage over the bytes of its elements
TOGETHER = 2**28  # most bytes of results handed over at a time
Results = Mapping[str, "Tensor"]
Ask = Callable[[Mapping[str, Any]], dict[str, Any]]  # a request of judge/service.py -> its answer


class JudgeError(Exception):
    """The judge failed, and not the backend."""


class JudgeOutOfMemoryError(MemoryError):
    """The judge found no memory."""


class CellJudge(Protocol):
    """The judge of one cell, for the steps of measuring it.

    `given` are the case's inputs. Launches read them; before timing they read `to_check`, whose dout may be zero
    outside sampled rows.
    """

    flaw: str | None  # the fault of the inputs; None without one
    hard: bool  # whether the first launch is checked on hard inputs
    renewal_seed: int

    @property
    def given(self) -> Inputs:
        """The inputs of the case."""

    @property
    def to_check(self) -> Inputs:
        """The inputs of the launches before timing."""

    @property
    def masked(self) -> bool:
        """Whether the douts of `to_check` and `given` differ."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on checks that could not be made as usual."""

    @property
    def approximation(self) -> Approximation | None:
        """The error of an approximate backend against exact attention, set once its results were found right."""

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        """Return the launch for results to check; with dropout it restores torch's random numbers first."""

    def hard_inputs(self) -> Inputs:
        """Return hard inputs."""

    def check_hard(self, results: Results, *, trial: bool = False) -> Accuracy:
        """Compare the results of a launch on the hard inputs. With `trial` it does not count for the verdict."""

    def forget_hard(self) -> None:
        """Free the memory of the hard inputs and their reference."""

    def check_first(self, results: Results, *, trial: bool = False) -> Accuracy:
        """Compare the results of a launch on `to_check`. With `trial` the comparison does not count for the verdict."""

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        """Return the evidence that an fp8 cell's launch does not compute in fp8, in one line; None without any."""

    def use_given(self) -> None:
        """Expect launches on `given` from now on."""

    def keep_original(self) -> None:
        """Keep a copy of the inputs, to which no backend can write."""

    def first_changed(self) -> str | None:
        """Return the name of an input to which a launch has written; None where there is none, or no copy is kept."""

    def check_renewed(self, renewal: InputRenewal, results: Results) -> Accuracy:
        """Compare the results of a launch on renewed inputs."""

    def find_wrong_rows(self, renewal: InputRenewal, results: Results, signature: Signature) -> Accuracy | None:
        """Return the accuracy of rows of out that are wrong on renewed inputs; None where none are wrong."""

    def check_restored(self, results: Results) -> Accuracy:
        """Compare the results of a launch on the restored `given`."""

    def check_calls(self, calls: Sequence[Results]) -> tuple[Accuracy, int]:
        """Check several calls: return the accuracy and number of a wrong one, or of a right one if all are right."""

    def distances(self, one: Results, other: Results) -> dict[str, float]:
        """Return the distance of each result from the other's."""

    def again(self) -> CellJudge:
        """Return a judge of the same cell with newly made inputs."""


class HeadsJudge(Protocol):
    """The judge of a case on several devices, which judges some key heads that it has drawn."""

    flaw: str | None  # the fault of the inputs; None without one
    heads: tuple[int, ...]
    renewal_seed: int

    def of(self, head: int) -> CellJudge:
        """Return the judge of one key head (judge/heads.py), valid until another head's judge is requested."""


class JudgeWithin:
    """The judge of one cell in the worker's own process."""

    def __init__(self, case: Case, device: torch.device, seed: int, backend: Backend) -> None:
        """Make the inputs, and the reference unless the inputs have a fault."""
        self._arguments = case, device, seed, backend
        self.given: Inputs = inputs.make(case, str(device), seed)
        self.flaw = inputs.find_flaw(self.given, case.data)
        if self.flaw:
            return
        method = None if getattr(backend, "exact", True) else cast("ApproximateBackend", backend)
        self._judge = CaseJudge(case, self.given, seed, method)
        self.hard = self._judge.check.hard
        self.renewal_seed = self._judge.renewal_seed
        self._of_hard: tuple[str, ...] = ()

    @property
    def to_check(self) -> Inputs:
        return self._judge.check.inputs

    @property
    def masked(self) -> bool:
        return self._judge.check.dout_masked

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._of_hard, *self._judge.check.notes)

    @property
    def approximation(self) -> Approximation | None:
        return self._judge.check.approximation

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        return self._judge.check.launcher(prepared)

    def hard_inputs(self) -> Inputs:
        return self._judge.hard.inputs

    def check_hard(self, results: Results, *, trial: bool = False) -> Accuracy:
        accuracy = self._judge.hard.check_first(results)
        self._of_hard = self._judge.hard.notes
        return accuracy

    def forget_hard(self) -> None:
        self._judge.forget_hard()

    def check_first(self, results: Results, *, trial: bool = False) -> Accuracy:
        return self._judge.check.check_first(results)

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        return self._judge.check.fp8_problem(prepared, accuracy)

    def use_given(self) -> None:
        self._judge.check.drop_masked_dout()

    def keep_original(self) -> None:
        case, device, seed, _ = self._arguments
        self._judge.original = inputs.make(case, str(device), seed)

    def first_changed(self) -> str | None:
        return self._judge.first_changed(self.given) if hasattr(self._judge, "original") else None

    def check_renewed(self, renewal: InputRenewal, results: Results) -> Accuracy:
        assert renewal.now
        return self._judge.check_renewed(renewal.now, results)

    def find_wrong_rows(self, renewal: InputRenewal, results: Results, signature: Signature) -> Accuracy | None:
        assert renewal.now
        return self._judge.find_wrong_rows(renewal.now, results, signature)

    def check_restored(self, results: Results) -> Accuracy:
        return self._judge.check.check_restored(results)

    def check_calls(self, calls: Sequence[Results]) -> tuple[Accuracy, int]:
        taken = Calls()
        for number, results in enumerate(calls):
            taken.add(number, results)
        return self._judge.check_calls(taken)

    def distances(self, one: Results, other: Results) -> dict[str, float]:
        return Calls(other).distances(one)

    def again(self) -> JudgeWithin:
        return JudgeWithin(*self._arguments)


class HeadsWithin:
    """The judge of the heads of a case on several devices, in the process of rank 0."""

    def __init__(self, case: Case, device: torch.device, seed: int, backend: Backend) -> None:
        """Make the inputs of the heads, and the references."""
        self.heads, self.renewal_seed = draw_heads(case), draw_seed()
        of = head_case(case)
        self._judges = {head: JudgeWithin(of, device, head_seed(seed, head), backend) for head in self.heads}
        self.flaw = next((judge.flaw for judge in self._judges.values() if judge.flaw), None)

    def of(self, head: int) -> JudgeWithin:
        return self._judges[head]


class JudgeBeside:
    """The worker's side of the judge, for one cell. `took` is called with the bytes of memory that the judge took."""

    approximation = None

    def __init__(self, case: Case, seed: int, ask: Ask, mapped: Mapped, took: Callable[[int], object]) -> None:
        """Have the judge make the inputs and the reference. Raises NotShared where its memory cannot be opened."""
        import torch

        self._case = case if case.ranks == 1 else head_case(case)
        self._seed, self._send, self._mapped, self._took = seed, ask, mapped, took
        self._head: int | None = None  # with several ranks, the key head of the present check
        self._hard: Inputs | None = None
        self._like: dict[str, Any] = {}  # the form of the results for which memory is reserved
        self._places: list[dict[str, Tensor]] = []  # reserved memory for results of calls
        self._of_hard: tuple[str, ...] = ()  # notes on hard inputs
        self._of_check: tuple[str, ...] = ()
        begun = self._ask("begin", case=to_json(case), seed=seed)
        self.flaw: str | None = begun["flaw"]
        if self.flaw:
            return
        self.masked, self.hard, self.renewal_seed = begun["masked"], begun["hard"], begun["renewal_seed"]
        self.heads = tuple(begun["heads"])
        self._hard = self.hard_inputs() if self.hard else None
        self._dense = False  # whether launches read `given`
        # The last prepared call of a case with dropout; the copies that it reads, with their originals
        self._prepared: Prepared | None = None
        self._copies: list[tuple[Tensor, Tensor]] = []
        if case.dropout_p:
            torch.manual_seed(seed)
            self._state = RandomState(case, mapped.device)
            self._given  # noqa: B018  (opens memory)

    def launcher(self, prepared: Prepared) -> Callable[[], Any]:
        if not self._case.dropout_p:
            return prepared.launch
        if prepared is not self._prepared:
            self._ask("prepared", dense=self._dense)
            shared = self._given[0 if self._dense else 1].values
            self._prepared, self._copies = (
                prepared,
                [
                    (in_input_order(copy, shared[name], name), shared[name])
                    for name in ("v", "dout")
                    if (copy := prepared.whole_copy(name)) is not None and copy.data_ptr() != shared[name].data_ptr()
                ],
            )

        def launch() -> Any:
            self._state.restore()
            return prepared.launch()

        return launch

    def of(self, head: int) -> JudgeBeside:
        self._head, self._hard = head, None
        vars(self).pop("_given", None)
        return self

    def hard_inputs(self) -> Inputs:
        return self._hard or self._inputs(self._ask("hard")["inputs"])

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._of_hard, *self._of_check)

    @property
    def given(self) -> Inputs:
        return self._given[0]

    @property
    def to_check(self) -> Inputs:
        return self._given[1]

    @cached_property
    def _given(self) -> tuple[Inputs, Inputs]:
        """The inputs, and the inputs of the launches before timing, which replace the hard inputs in shared memory."""
        answer = self._ask("inputs")
        given = self._inputs(answer["inputs"])
        return given, given.with_values(self._mapped.tensors(answer["masked"])) if self.masked else given

    def check_hard(self, results: Results, *, trial: bool = False) -> Accuracy:
        accuracy, answer = self._check("hard", results, trial=trial)
        self._of_hard = tuple(answer["of_hard"])
        return accuracy

    def forget_hard(self) -> None:
        self._hard = None  # the judge keeps them for the next backend

    def check_first(self, results: Results, *, trial: bool = False) -> Accuracy:
        accuracy, self._first = self._check("first", results, trial=trial)
        return accuracy

    def fp8_problem(self, prepared: Prepared, accuracy: Accuracy) -> str | None:
        problem: str | None = copies_problem(self._case, prepared) or self._first["problem"]
        return problem

    def use_given(self) -> None:
        self._dense = True

    def keep_original(self) -> None:
        pass  # the judge has a copy

    def first_changed(self) -> str | None:
        name: str | None = self._ask("first_changed")["name"]
        return name

    def check_renewed(self, renewal: InputRenewal, results: Results) -> Accuracy:
        return self._check("renewed", results, count=_count(renewal.now))[0]

    def find_wrong_rows(self, renewal: InputRenewal, results: Results, signature: Signature) -> Accuracy | None:
        answer = self._ask("check", what="rows", count=_count(renewal.now), runs=signature.runs)
        return answer["accuracy"] and from_json(Accuracy, answer["accuracy"])

    def check_restored(self, results: Results) -> Accuracy:
        return self._check("restored", results)[0]

    def check_calls(self, calls: Sequence[Results]) -> tuple[Accuracy, int]:
        self._take_calls(calls)
        answer = self._dialog(self._ask("check", what="calls"))
        return from_json(Accuracy, answer["accuracy"]), answer["call"]

    def distances(self, one: Results, other: Results) -> dict[str, float]:
        self._take_calls([other])
        self._hand_over(one)
        return {name: float(far) for name, far in self._ask("distances")["distances"].items()}

    def _take_calls(self, calls: Sequence[Results]) -> None:
        """Hand the results of calls to the judge, as many at a time as fit TOGETHER bytes."""
        together = max(1, TOGETHER // max(1, sum(t.nbytes for t in calls[0].values())))
        for first in range(0, len(calls), together):
            some = calls[first : first + together]
            self._hand_over(*some)
            self._ask("calls", first=first, calls=len(some))

    def again(self) -> JudgeBeside:
        return JudgeBeside(self._case, self._seed, self._send, self._mapped, self._took)

    def _check(self, what: str, results: Results, **more: Any) -> tuple[Accuracy, dict[str, Any]]:
        self._hand_over(results)
        answer = self._dialog(self._ask("check", what=what, **more))
        return from_json(Accuracy, answer["accuracy"]), answer

    def _dialog(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Make the launches that a check with dropout asks for; return the judge's last answer.

        The judge writes the inputs of such a launch to its memory, and this updates the copies that the launch reads.
        """
        before = [(copy, copy.clone()) for copy, _ in self._copies] if "launch" in answer else []
        while "launch" in answer:
            for copy, shared in self._copies:
                copy.data.copy_(shared)
            if answer["launch"]["restores"]:
                self._state.restore()
            assert self._prepared is not None
            self._hand_over(self._prepared.canonical(self._prepared.launch()))
            answer = self._ask("launched")
        for copy, values in before:
            copy.data.copy_(values)
        self._of_check = tuple(answer["notes"])
        return answer

    def _hand_over(self, *calls: Results) -> None:
        """Copy the results of calls to the judge's memory. Raises ValueError where they do not fit the case."""
        for results in calls:
            for name in expected_results(self._case):
                check_form(self._case, name, results)
        names = [name for name in calls[0] if name.removeprefix("descale_") in expected_results(self._case)]
        taken = [{name: _plain(results[name]) for name in names} for results in calls]
        like = {
            name: [str(t.dtype).removeprefix("torch."), list(t.shape), list(t.stride())] for name, t in taken[0].items()
        }
        if like != self._like or len(calls) > len(self._places):
            answer = self._ask("results", like=like, calls=len(calls))
            self._like, self._places = like, [self._mapped.tensors(of_one) for of_one in answer["results"]]
        for places, of_call in zip(self._places, taken, strict=False):
            for name, t in of_call.items():
                _copy(places[name], t)
        if self._mapped.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._mapped.device)

    def _inputs(self, described: dict[str, Any]) -> Inputs:
        """Open inputs, and forget the memory for results. Raises NotShared."""
        self._like, self._places = {}, []
        one, other = described["descale"]
        return Inputs(**self._mapped.tensors(described), descale=(one, other))

    def _ask(self, do: str, /, **request: Any) -> dict[str, Any]:
        """Return the judge's answer. Raises ValueError where results do not fit the case, and JudgeError."""
        of = {} if self._head is None else {"head": self._head}
        answer = self._send({"do": do, **of, **request})
        self._took(answer.get("grown", 0))  # missing in an error of the parent
        if "error" in answer:
            kind = {"results": ValueError, "memory": JudgeOutOfMemoryError, "sharing": NotShared}
            raise kind.get(answer.get("of", ""), JudgeError)(answer["error"])
        return answer


def _plain(t: Tensor) -> Tensor:
    """Return the same result without long unused stretches between its values in memory."""
    t = t.detach()
    if t.is_neg():
        return t.resolve_neg()
    return t if extent_bytes(t) <= MOST_STRETCHED * t.nbytes else t.contiguous()


def _copy(to: Tensor, of: Tensor) -> None:
    """Copy a result to the judge's memory: on a CPU without torch, on a GPU without a person's torch modes."""
    import torch

    if of.device.type == "cpu" and to.stride() == of.stride():
        copy_bytes(to, of)
        return
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        torch._C.TensorBase.copy_(to, of)


def judge_of(instruments: Instruments, case: Case, seed: int, backend: Backend) -> tuple[CellJudge, str]:
    """Return the judge of a cell, and a note if memory could not be shared, so that the worker itself judges."""
    beside, refused = _beside(instruments, case, seed, backend)
    return beside or JudgeWithin(case, instruments.device, seed, backend), refused


def heads_judge_of(instruments: Instruments, case: Case, seed: int, backend: Backend) -> tuple[HeadsJudge, str]:
    """Return the judge of a case on several devices, and a sentence, as `judge_of` does."""
    beside, refused = _beside(instruments, case, seed, backend)
    return beside or HeadsWithin(case, instruments.device, seed, backend), refused


def _beside(instruments: Instruments, case: Case, seed: int, backend: Backend) -> tuple[JudgeBeside | None, str]:
    """Return the judge, or None, with a sentence where its memory cannot be shared."""
    if not (instruments.ask_judge and getattr(backend, "exact", True)):
        return None, ""
    try:
        return JudgeBeside(case, seed, instruments.ask_judge, instruments.mapped, instruments.memory.count_judge), ""
    except NotShared as error:
        answer = instruments.ask_judge({"do": "refused", "why": str(error)})
        if "error" in answer:
            raise JudgeError(answer["error"]) from None
        return None, f"judged within the process of its kernel: {error}"


def _count(now: Renewal | None) -> int:
    assert now
    return now.count
