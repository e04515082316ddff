"""The judge as the workers of a device reach it: requests and answers in plain JSON, tensors in memory that it shares.

It has loaded neither a library under test nor a person's code, so nothing that such code does to its own process
changes a verdict. It makes the inputs and the reference of a case one time for all backends, which come one after the
other. It does nothing on the device but while a worker waits for its answer, unless it was asked to work ahead.
Requests ("do") and their answers:

    {"do": "open"}                            -> {}, with the device open
    {"do": "begin", "case": {...}, "seed": n, "lean": bool} -> {"flaw": text}, of inputs that must not be measured, or
       {"flaw": null, "masked": bool, "hard": bool, "renewal_seed": n}; a lean one takes less memory, and the next one
       begins anew
    {"do": "ahead", "cases": [...], "seed": n} -> {}; what is right for these cases is computed while workers work, and
       nothing is timed
    {"do": "hard"}                            -> {"inputs": tensors}, in the place of all that was shared
    {"do": "inputs"}                          -> {"inputs": tensors, "masked": tensors}, in the place of all of those:
       the inputs as they were made, and those of the launches before timing where they differ
    {"do": "results", "like": {name: [dtype, shape, stride]}, "calls": n} -> {"results": [tensors, ...]}, to which the
       results of so many calls are copied; checks read those of the first
    {"do": "first_changed"}                   -> {"name": the input that a launch has written to, or null}
    {"do": "check", "what": WHAT, ...}        -> {"accuracy": {...} or null, "notes": [...]}, of the results there; of
       "first" also "problem": why they are none of operands in fp8, or null; of "calls" which "call" it is of
    {"do": "prepared", "dense": bool}         -> {}; the launches that follow are of a call that was prepared anew
    {"do": "launched"}                        -> as "check", after a launch that a check with dropout asked for by
       {"launch": {"restores": bool}}, from the state of random numbers that the worker had at first or not
    {"do": "calls", "first": m, "calls": n}   -> {}, after taking the results there as those of calls m to m + n - 1
    {"do": "distances"}                       -> {"distances": {name: from the results of call 0}}

"tensors" are a description of core/shared_tensors.py. Each answer also has "grown": the bytes of the device's memory
that this process has taken meanwhile. WHAT is one of CHECKS.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import Renewal
from attnbench.core.shared_tensors import Arena, Description
from attnbench.judge import inputs, warm_up
from attnbench.judge.case_judge import CaseJudge
from attnbench.judge.dialog import Dialog, LaunchesOfWorker
from attnbench.judge.dropout_check import DropoutResultCheck
from attnbench.judge.tolerance import check_form, expected_results

if TYPE_CHECKING:
    from torch import Tensor

CHECKS = ("hard", "first", "renewed", "rows", "restored", "calls")  # what `check` compares
SWITCH = 2e-4  # seconds after which a thread that works ahead lets a worker's request pass
MUCH = 2**30  # bytes that torch may keep on a GPU for this process


class JudgeService:
    """Judges the cases of one device."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")
        self.device = torch.device(str(device))
        self._arena = Arena(self.device)
        self._known: tuple[Case, int, CaseJudge] | None = None
        self._lean = False  # whether memory is scarce, so that what is not needed any more is given back
        self._thread, self._threads = ThreadPoolExecutor(1), torch.get_num_threads()
        self._ahead: dict[tuple[Case, int], Future[CaseJudge | str]] = {}
        self._launched: Inputs  # the inputs in shared memory
        self._results: list[dict[str, Tensor]] = []  # of calls, there too
        self._dialog: Dialog | None = None  # the check that waits for one
        self._use_device()
        warm_up(self.device)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Raises ValueError where results are none of the case's."""
        before = self._free()
        try:
            found = self._answer(request)
        finally:
            self._give_back()
        return {**found, "grown": before - self._free()}

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "open":
                return {}
            case "ahead":
                self._work_ahead([from_json(Case, case) for case in request["cases"]], request["seed"])
                return {}
            case "begin":
                return self._begin(from_json(Case, request["case"]), request["seed"], lean=request.get("lean", False))
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
                    return self._verdict(*self._check(request["what"], request))
                self._dialog = self._judge.launches.begin(partial(self._check, request["what"], request))
                return self._dialog_until()
            case "launched":
                assert self._dialog
                self._dialog.made()
                return self._dialog_until()
            case "calls":
                for number, results in enumerate(self._results[: request["calls"]], request["first"]):
                    self._judge.add_call(number, results)
                return {}
            case "distances":
                return {"distances": to_json(self._judge.distances(self._results[0]))}
            case other:
                raise ValueError(f"unknown request of the judge {other!r}")

    @property
    def _judge(self) -> CaseJudge:
        if self._known is None:
            raise ValueError("no case has begun")
        return self._known[2]

    def _begin(self, case: Case, seed: int, *, lean: bool) -> dict[str, Any]:
        """Make the inputs and the reference of a case, unless they are those of the latest."""
        if self._dialog:
            self._dialog.abandon()
            self._dialog = None
        if self._lean or case.dropout_p or self._known is None or self._known[:2] != (case, seed):
            self._known = None
            ahead = self._ahead.pop((case, seed), None)
            made = ahead.result() if ahead else self._made(case, seed)
            if isinstance(made, str):
                return {"flaw": made}
            self._known = case, seed, made
        self._lean = lean
        check = self._judge.check
        more = {"masked": check.dout_masked, "hard": check.hard}
        return {"flaw": None, **more, "renewal_seed": self._judge.renewal_seed}

    def _made(self, case: Case, seed: int) -> CaseJudge | str:
        """Return the judge of a case, or the flaw of its inputs."""
        given = inputs.make(case, str(self.device), seed)
        if flaw := inputs.find_flaw(given, case.data):
            return flaw
        made = CaseJudge(case, given, seed, launches=LaunchesOfWorker() if case.dropout_p else None)
        made.original = given
        return made

    def _work_ahead(self, cases: Sequence[Case], seed: int) -> None:
        """Make the judges of some cases in a thread; those of others that nobody has asked for are given up."""
        import torch

        sys.setswitchinterval(SWITCH)
        wanted = {(case, seed) for case in cases}
        for key in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(key).cancel()

        def make(case: Case) -> CaseJudge | str:
            self._use_device()
            torch.set_num_threads(max(1, self._threads // 2))  # of this thread; a worker has the others
            made = self._made(case, seed)
            if isinstance(made, CaseJudge):
                made.compute_all()
            return made

        for case in cases:
            if (case, seed) not in self._ahead:
                self._ahead[case, seed] = self._thread.submit(make, case)

    def _inputs(self) -> dict[str, Any]:
        """Share new copies of the inputs in the place of the hard ones and of results."""
        judge, check = self._judge, self._judge.check
        if self._lean:
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
        """Expect launches of a call that was prepared anew, on the dense dout or on that of `inputs`."""
        check, launches = self._judge.check, self._judge.launches
        if isinstance(check, DropoutResultCheck) and launches:
            if dense:
                check.launched_on(self._launched)
            check.launcher(Prepared(launches.launch, lambda _: self._results[0]))

    def _dialog_until(self) -> dict[str, Any]:
        """Return what the check that is going on needs: a launch, or nothing more, as it is done."""
        assert self._dialog
        kind, value = self._dialog.next()
        if kind == "launch":
            return {"launch": {"restores": value}}
        self._dialog = None
        return self._verdict(*value)

    def _verdict(self, accuracy: Accuracy | None, more: Mapping[str, Any]) -> dict[str, Any]:
        found = None if accuracy is None else to_json(accuracy)
        return {"accuracy": found, "notes": list(self._judge.check.notes), **more}

    def _placed(self, given: Inputs) -> Description:
        """Share copies of some inputs in the place of all that was shared."""
        self._results = []
        self._arena.reset()
        described, copies = self._arena.place(_named(given))
        self._launched = given.with_values(copies)
        return {**described, "descale": list(given.descale)}

    def _reserve(self, like: Mapping[str, Any], calls: int) -> list[Description]:
        """Return where the results of calls are to be copied. Raises ValueError where they are none of the case's."""
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
        self._use_device()
        judge, results = self._judge, self._results[0]
        match what:
            case "hard":
                return judge.hard.check_first(results), {"of_hard": list(judge.hard.notes)}
            case "first":
                accuracy = judge.check.check_first(results)
                if self._lean and not request.get("trial"):
                    judge.check.forget_dk_dv()
                return accuracy, {"problem": judge.check.operands_problem(accuracy)}
            case "restored":
                return judge.check.check_restored(results), {}
            case "calls":
                accuracy, number = judge.check_calls()
                return accuracy, {"call": number}
        renewal = Renewal(judge.renewal_seed, request["count"])
        if what == "renewed":
            return judge.check_renewed(renewal, results), {}
        if what == "rows":
            return judge.find_wrong_rows(renewal, results, Signature(runs=tuple(request["runs"]))), {}
        raise ValueError(f"unknown check {what!r}")

    def _use_device(self) -> None:
        """Make the device that of this thread."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def _free(self) -> int:
        """Return the bytes of the device's memory that are free, when this process has nothing left to do there."""
        import torch

        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return torch.cuda.mem_get_info(self.device)[0]

    def _give_back(self) -> None:
        """Give back memory that torch keeps, where that is much."""
        import torch

        if self.device.type == "cuda":
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            if self._lean or kept > MUCH:
                torch.cuda.empty_cache()


def _named(given: Inputs) -> dict[str, Tensor]:
    """Return all tensors of some inputs, by name; v is there where it is a view of k too."""
    found = {**given.values, "v": given.v}
    return found if given.page_table is None else {**found, "page_table": given.page_table}
