"""The judge as the workers of a device reach it: requests and answers in plain JSON, tensors in memory that it shares.

It has loaded neither a library under test nor a person's code, so nothing that such code does to its own process
changes a verdict. It makes the inputs and the reference of a case one time for all backends. It does nothing on the
device but while a worker waits for its answer, unless it was asked to work ahead. Each worker of a group that is judged
at the same time has a number of its own, "slot" (0 where there is one worker), and shared memory of its own
(hearing.py). Requests ("do") and their answers:

    {"do": "open"}                            -> {}, with the device open
    {"do": "begin", "case": {...}, "seed": n, "lean": bool} -> {"flaw": text}, of inputs that must not be measured, or
       {"flaw": null, "masked": bool, "hard": bool, "renewal_seed": n, "heads": [...]}; a lean one takes less memory,
       and the next one begins anew
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

Of a case on several devices some key heads are judged, each a case of its own (heads.py). Requests after "begin" then
say which "head", and the answer to "check" also has "together", the verdict on all heads, null until each was shown.
"tensors" are a description of core/shared_tensors.py. Each answer, also one with an error, has "grown": the bytes of
the device's memory that this process has taken meanwhile. WHAT is one of hearing.CHECKS.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attnbench.core.case import Case
from attnbench.core.json import from_json
from attnbench.core.machine import Device
from attnbench.judge import inputs, warm_up
from attnbench.judge.case_judge import CaseJudge
from attnbench.judge.dialog import LaunchesOfWorker
from attnbench.judge.heads import draw_heads, head_case, head_seed
from attnbench.judge.hearing import Hearing, use

Judges = Mapping[int, CaseJudge]  # by head; of a case on one device one
SWITCH = 2e-4  # seconds after which a thread that works ahead lets a worker's request pass
MUCH = 2**30  # bytes that torch may keep on a GPU for this process
FREEING = ("begin", "hard", "check", "launched")  # requests after which torch may keep freed memory


class JudgeService:
    """Judges the cases of one device."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")
        self.device = torch.device(str(device))
        self._known: tuple[Case, int, Judges] | None = None
        self._hearings: dict[int, Hearing] = {}  # by slot
        self.grown = 0  # bytes of the device's memory that the latest request has taken
        self._thread, self._threads = ThreadPoolExecutor(1), torch.get_num_threads()
        self._ahead: dict[tuple[Case, int], Future[Judges | str]] = {}
        use(self.device)
        warm_up(self.device)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Raises ValueError where results are none of the case's."""
        before, self.grown = self._free(), 0
        try:
            found = self._answer(request)
        finally:
            self._give_back(request["do"])
            self.grown = before - self._free()
        return {**found, "grown": self.grown}

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "open":
                return {}
            case "ahead":
                self._work_ahead([from_json(Case, case) for case in request["cases"]], request["seed"])
                return {}
        slot = request.get("slot", 0)
        if slot not in self._hearings:
            self._hearings[slot] = Hearing(self.device)
        hearing = self._hearings[slot]
        if request["do"] == "begin":
            return self._begin(
                hearing, from_json(Case, request["case"]), request["seed"], lean=request.get("lean", False)
            )
        return hearing.answer(request)

    def _begin(self, hearing: Hearing, case: Case, seed: int, *, lean: bool) -> dict[str, Any]:
        """Make the inputs and the reference of a case, unless they are those of the latest."""
        hearing.end()
        own = lean or bool(case.dropout_p)  # a judge that changes with what it is shown, or gives memory back
        if own or self._known is None or self._known[:2] != (case, seed):
            self._known = None
            for other in self._hearings.values():  # of the case before, which has ended
                other.end()
            ahead = self._ahead.pop((case, seed), None)
            made = ahead.result() if ahead else self._made(case, seed)
            if isinstance(made, str):
                return {"flaw": made}
            self._known = None if own else (case, seed, made)
        else:
            made = self._known[2]
        hearing.begin(made, lean=lean)
        one = next(iter(made.values()))
        more = {"masked": one.check.dout_masked, "hard": one.check.hard}
        return {"flaw": None, **more, "renewal_seed": one.renewal_seed, "heads": list(made)}

    def _made(self, case: Case, seed: int) -> Judges | str:
        """Return the judges of a case, by head, or the flaw of its inputs."""
        if case.ranks == 1:
            one = self._made_of_one(case, seed)
            return one if isinstance(one, str) else {0: one}
        made: dict[int, CaseJudge] = {}
        for head in draw_heads(case):
            one = self._made_of_one(head_case(case), head_seed(seed, head))
            if isinstance(one, str):
                return one
            one.renewal_seed = next(iter(made.values()), one).renewal_seed  # a launch has one renewal
            made[head] = one
        return made

    def _made_of_one(self, case: Case, seed: int) -> CaseJudge | str:
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

        def make(case: Case) -> Judges | str:
            use(self.device)
            torch.set_num_threads(max(1, self._threads // 2))  # of this thread; a worker has the others
            made = self._made(case, seed)
            if not isinstance(made, str):
                for one in made.values():
                    one.compute_all()
            return made

        for case in cases:
            if (case, seed) not in self._ahead:
                self._ahead[case, seed] = self._thread.submit(make, case)

    def _free(self) -> int:
        """Return the bytes of the device's memory that are free, when this process has nothing left to do there."""
        import torch

        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return torch.cuda.mem_get_info(self.device)[0]

    def _give_back(self, do: str) -> None:
        """Give back memory that torch keeps, where that is much, after a request that may have freed some."""
        import torch

        if self.device.type == "cuda":
            lean = any(hearing.lean for hearing in self._hearings.values())
            if lean or (do in FREEING and _kept(torch.cuda.memory_stats(self.device)) > MUCH):
                torch.cuda.empty_cache()


def _kept(stats: Mapping[str, int]) -> int:
    """Return the bytes of a device that torch keeps and has not given out."""
    return stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
