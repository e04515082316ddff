"""The judge's side of a hearing: all checks of one worker's results for one case.

A hearing has the memory that the judge shares with the worker. service.py explains the requests that `Hearing.answer`
takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.json import to_json
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import Renewal
from attnbench.core.shared_tensors import Arena, Description
from attnbench.judge.case_judge import Calls, CaseJudge, Results, copied, has_same_bits
from attnbench.judge.dialog import Dialog
from attnbench.judge.dropout_check import DropoutResultCheck
from attnbench.judge.heads import together
from attnbench.judge.tolerance import check_form, expected_results

if TYPE_CHECKING:
    import torch
    from torch import Tensor

KEPT = 2**28  # most bytes of a launch's results that are kept, to recognise the same results later
CHECKS = ("hard", "first", "renewed", "rows", "restored", "calls")  # values of "what" in a request "check"


class Hearing:
    """A worker's hearing: its shared memory on a device, the judges of its case, and the verdicts so far."""

    def __init__(self, device: torch.device, arena: Arena | None = None) -> None:
        self._device = device
        self._arena = arena or Arena(device)
        self._judges: Mapping[int, CaseJudge] = {}  # by key head; a case on one device has one judge
        self._head = 0  # key head of the present request
        self._shown: dict[str, dict[int, Accuracy]] = {}  # name of the check -> key head -> its verdict
        self.lean = False  # whether memory is scarce and is freed as soon as possible
        self._launched: Inputs  # the inputs that launches read, in shared memory
        self._results: list[dict[str, Tensor]] = []  # results of calls, in shared memory
        self._calls = Calls()
        self._right: tuple[Results, Accuracy] | None = None  # right results on the case's inputs, and their accuracy
        self._dialog: Dialog | None = None  # the check that waits for a launch

    def begin(self, judges: Mapping[int, CaseJudge], *, lean: bool) -> None:
        """Begin a case with its judges by key head, which several hearings may share."""
        self._judges, self.lean = judges, lean

    def end(self) -> None:
        """Forget the case and its verdicts; the shared memory stays."""
        if self._dialog:
            self._dialog.abandon()
        self._judges, self._dialog, self.lean = {}, None, False
        self._results, self._calls, self._shown, self._right = [], Calls(), {}, None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Raises ValueError for results with another form than the case's."""
        self._head = request.get("head", next(iter(self._judges), 0))
        match request["do"]:
            case "hard":
                return {"inputs": self._placed(self._judge.hard.inputs)}
            case "inputs":
                return self._inputs()
            case "results":
                return {"results": self._reserve(request["like"], request["calls"])}
            case "first_changed":
                return {"name": self._judge.first_changed(self._launched)}
            case "prepared":
                self._prepared(dense=request["dense"])
                return {}
            case "check":
                if self._judge.launches is None:
                    accuracy, more = self._check(request["what"], request)
                    return self._verdict(accuracy, {**more, **self._of_all_heads(request, accuracy)})
                self._dialog = self._judge.launches.begin(partial(self._check, request["what"], request))
                return self._dialog_until()
            case "launched":
                assert self._dialog
                self._dialog.made()
                return self._dialog_until()
            case "calls":
                for number, results in enumerate(self._results[: request["calls"]], request["first"]):
                    if number == 0 and (known := self._known(results)):
                        assert self._right
                        self._calls.begin(self._right[0], known)
                    else:
                        self._calls.add(number, results)
                return {}
            case "distances":
                return {"distances": to_json(self._calls.distances(self._results[0]))}
            case other:
                raise ValueError(f"unknown request of the judge {other!r}")

    @property
    def _judge(self) -> CaseJudge:
        if not self._judges:
            raise ValueError("no case has begun")
        if self._head not in self._judges:
            raise ValueError(f"head {self._head!r} was not drawn for the check")
        return self._judges[self._head]

    def _inputs(self) -> dict[str, Any]:
        """Place new copies of the inputs in shared memory, over the hard inputs and results."""
        judge, check = self._judge, self._judge.check
        if self.lean or len(self._judges) > 1:
            judge.forget_hard()
        found = {"inputs": self._placed(judge.original)}
        reads = self._launched
        if check.dout_masked:
            assert check.inputs.dout is not None
            found["masked"], copies = self._arena.place({"dout": check.inputs.dout})
            reads = reads.with_values(copies)
        if isinstance(check, DropoutResultCheck):
            check.launched_on(reads)
        return found

    def _prepared(self, *, dense: bool) -> None:
        """Expect launches of a newly prepared call, on the dense dout or on the dout of `inputs`."""
        check, launches = self._judge.check, self._judge.launches
        if isinstance(check, DropoutResultCheck) and launches:
            if dense:
                check.launched_on(self._launched)
            check.launcher(Prepared(launches.launch, lambda _: self._results[0]))

    def _dialog_until(self) -> dict[str, Any]:
        """Return the launch that the running check asks for, or its verdict if it has ended."""
        assert self._dialog
        kind, value = self._dialog.next()
        if kind == "launch":
            return {"launch": {"restores": value}}
        self._dialog = None
        return self._verdict(*value)

    def _verdict(self, accuracy: Accuracy | None, more: Mapping[str, Any]) -> dict[str, Any]:
        found = None if accuracy is None else to_json(accuracy)
        return {"accuracy": found, "notes": list(self._judge.check.notes), **more}

    def _of_all_heads(self, request: Mapping[str, Any], accuracy: Accuracy | None) -> dict[str, Any]:
        """Return {"together": the verdict on all key heads, None until each has one}; {} where one head is checked.

        A head with a wrong result stays wrong, whatever its other results.
        """
        if len(self._judges) == 1 or accuracy is None or request.get("trial"):
            return {}
        shown = self._shown.setdefault(request["what"], {})
        if self._head not in shown or shown[self._head].ok:
            shown[self._head] = accuracy
        return {"together": to_json(together([*shown.values()])) if len(shown) == len(self._judges) else None}

    def _placed(self, given: Inputs) -> Description:
        """Place copies of some inputs in shared memory, in place of everything there."""
        self._results = []
        self._arena.reset()
        described, copies = self._arena.place(_named(given))
        self._launched = given.with_values(copies)
        return {**described, "descale": list(given.descale)}

    def _reserve(self, like: Mapping[str, Any], calls: int) -> list[Description]:
        """Return the memory for results of calls. Raises ValueError for results with another form than the case's."""
        import torch

        case = self._judge.case
        forms = {
            name: torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="meta")
            for name, (dtype, shape, stride) in like.items()
        }
        for name in expected_results(case):
            check_form(case, name, forms)
        found = [self._arena.reserve(forms) for _ in range(calls)]
        self._results = [tensors for _, tensors in found]
        return [described for described, _ in found]

    def _check(self, what: str, request: Mapping[str, Any]) -> tuple[Accuracy | None, dict[str, Any]]:
        use(self._device)
        judge, results = self._judge, self._results[0]
        match what:
            case "hard":
                return judge.hard.check_first(results), {"of_hard": list(judge.hard.notes)}
            case "first":
                accuracy = judge.check.check_first(results)
                if not judge.check.dout_masked:
                    self._keep(results, accuracy)
                if self.lean and not request.get("trial"):
                    judge.check.forget_dk_dv()
                return accuracy, {"problem": judge.check.operands_problem(accuracy)}
            case "restored":
                accuracy = self._known(results) or judge.check.check_restored(results)
                self._keep(results, accuracy)
                return accuracy, {}
            case "calls":
                accuracy, number = judge.check_calls(self._calls)
                self._calls, self._right = Calls(), None  # the last check is done, and others need the memory
                return accuracy, {"call": number}
        renewal = Renewal(judge.renewal_seed, request["count"])
        if what == "renewed":
            return judge.check_renewed(renewal, results), {}
        if what == "rows":
            return judge.find_wrong_rows(renewal, results, Signature(runs=tuple(request["runs"]))), {}
        raise ValueError(f"unknown check {what!r}")

    def _keep(self, results: Results, accuracy: Accuracy) -> None:
        """Keep results of a launch on the case's inputs, if they are right and at most KEPT bytes."""
        right = self._right is None and accuracy.ok and len(self._judges) == 1 and self._judge.launches is None
        if right and not self.lean and sum(t.nbytes for t in results.values()) <= KEPT:
            self._right = copied(results), accuracy

    def _known(self, results: Results) -> Accuracy | None:
        """Return the kept accuracy for results with the same bits as the kept results; None for others."""
        return self._right[1] if self._right and has_same_bits(results, self._right[0]) else None


def use(device: torch.device) -> None:
    """Make a GPU the current device of this thread."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)


def _named(given: Inputs) -> dict[str, Tensor]:
    """Return all tensors of some inputs by name, v included where it is a view of k."""
    found = {**given.values, "v": given.v}
    return found if given.page_table is None else {**found, "page_table": given.page_table}
