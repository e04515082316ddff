"""The judge as the workers of a device reach it: requests and answers in plain JSON, tensors in memory that it shares.

It has loaded neither a library under test nor a person's code, so nothing that such code does to its own process
changes a verdict. It makes the inputs and the reference of a case one time for all backends, which come one after the
other, and does nothing on the device but while a worker waits for its answer. Requests ("do") and their answers:

    {"do": "open"}                            -> {}, with the device open
    {"do": "begin", "case": {...}, "seed": n} -> {"flaw": text}, of inputs that must not be measured, or
       {"flaw": null, "inputs": tensors, "masked": tensors or null, "renewal_seed": n}, of the inputs as they were made,
       and of those of the first launches, where they differ
    {"do": "hard"}                            -> {"inputs": tensors}
    {"do": "results", "like": {name: [dtype, shape]}} -> {"results": tensors}, to which results are copied
    {"do": "first_changed"}                   -> {"name": the input that a launch has written to, or null}
    {"do": "check", "what": WHAT, ...}        -> {"accuracy": {...} or null, "notes": [...]}, of the results there; of
       "first" also "problem": why they are none of operands in fp8, or null; of "calls" which "call" it is of
    {"do": "call", "call": n}                 -> {}, after taking the results there as those of call n
    {"do": "distances"}                       -> {"distances": {name: from the results of call 0}}

"tensors" are a description of core/shared_tensors.py. Each answer also has "grown": the bytes of the device's memory
that this process has taken meanwhile. WHAT is one of CHECKS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.backend import Inputs, Signature
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.machine import Device
from attnbench.core.record import Accuracy
from attnbench.core.renewed_inputs import Renewal
from attnbench.core.shared_tensors import Arena, Description
from attnbench.judge import inputs, warm_up
from attnbench.judge.case_judge import CaseJudge
from attnbench.judge.tolerance import check_form, expected_results

if TYPE_CHECKING:
    from torch import Tensor

CHECKS = ("hard", "first", "renewed", "rows", "restored", "calls")  # what `check` compares
SCARCE = 0.25  # of a GPU's memory: where less is free, torch gives back what it keeps


class JudgeService:
    """Judges the cases of one device."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")
        self.device = torch.device(str(device))
        self._arena = Arena(self.device)
        self._known: tuple[Case, int, CaseJudge] | None = None
        self._launched: Inputs  # the inputs in shared memory
        self._results: dict[str, Tensor] = {}  # there too
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
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
            case "begin":
                return self._begin(from_json(Case, request["case"]), request["seed"])
            case "hard":
                given = self._judge.hard.inputs
                return {"inputs": {**self._arena.place(_named(given))[0], "descale": list(given.descale)}}
            case "results":
                return {"results": self._reserve(request["like"])}
            case "first_changed":
                return {"name": self._judge.first_changed(self._launched)}
            case "check":
                accuracy, more = self._check(request["what"], request)
                return {"accuracy": None if accuracy is None else to_json(accuracy), **more}
            case "call":
                self._judge.add_call(request["call"], self._results)
                return {}
            case "distances":
                return {"distances": to_json(self._judge.distances(self._results))}
            case other:
                raise ValueError(f"unknown request of the judge {other!r}")

    @property
    def _judge(self) -> CaseJudge:
        if self._known is None:
            raise ValueError("no case has begun")
        return self._known[2]

    def _begin(self, case: Case, seed: int) -> dict[str, Any]:
        """Make the inputs and the reference of a case, unless they are the latest; share new copies of the inputs."""
        if self._known is None or self._known[:2] != (case, seed):
            self._known = None
            given = inputs.make(case, str(self.device), seed)
            if flaw := inputs.find_flaw(given, case.data):
                return {"flaw": flaw}
            self._known = case, seed, CaseJudge(case, given, seed)
            self._judge.original = given
        self._results = {}
        self._arena.reset()
        judge, check = self._judge, self._judge.check
        tensors, copies = self._arena.place(_named(judge.original))
        self._launched = judge.original.with_values(copies)
        masked = None
        if check.dout_masked:
            assert check.inputs.dout is not None
            masked, _ = self._arena.place({"dout": check.inputs.dout})
        found = {**tensors, "descale": list(judge.original.descale)}
        return {"flaw": None, "inputs": found, "masked": masked, "renewal_seed": judge.renewal_seed}

    def _reserve(self, like: Mapping[str, Any]) -> Description:
        """Return where results are to be copied. Raises ValueError where they are none of the case's."""
        import torch

        case = self._judge.case
        forms = {
            name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
            for name, (dtype, shape) in like.items()
        }
        for name in expected_results(case):
            check_form(case, name, forms)
        found, self._results = self._arena.reserve(forms)
        return found

    def _check(self, what: str, request: Mapping[str, Any]) -> tuple[Accuracy | None, dict[str, Any]]:
        judge, results = self._judge, self._results
        match what:
            case "hard":
                return judge.hard.check_first(results), {"notes": list(judge.hard.notes)}
            case "first":
                accuracy = judge.check.check_first(results)
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

    def _free(self) -> int:
        """Return the bytes of the device's memory that are free, when this process has nothing left to do there."""
        import torch

        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return torch.cuda.mem_get_info(self.device)[0]

    def _give_back(self) -> None:
        """Give back memory that torch keeps, where the device has little."""
        import torch

        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            if free < SCARCE * total:
                torch.cuda.empty_cache()


def _named(given: Inputs) -> dict[str, Tensor]:
    """Return all tensors of some inputs, by name; v is there where it is a view of k too."""
    found = {**given.values, "v": given.v}
    return found if given.page_table is None else {**found, "page_table": given.page_table}
