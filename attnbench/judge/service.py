"""The judge's process for the workers of a device: requests and answers in JSON, tensors in shared memory.

It loads neither a library under test nor a person's code, so such code cannot change a verdict by changing its own
process. It makes the inputs and the reference of a case once for all backends. It uses the device only while a worker
waits for an answer, except after a request to work ahead. Each worker of a group that is checked at the same time has a
number, "slot" (0 for a single worker), and its own shared memory (hearing.py). Requests ("do") and their answers:

    {"do": "open"}                            -> {}, with the device open
    {"do": "begin", "case": {...}, "seed": n, "lean": bool} -> {"flaw": text} for inputs that must not be measured, or
         {"flaw": null, "masked": bool, "hard": bool, "renewal_seed": n, "heads": [...]}; "lean" takes less memory, and
         the case after a lean one begins anew
    {"do": "ahead", "cases": [...], "seed": n} -> {}; the references of these cases are computed while workers work and
         nothing is timed
    {"do": "hard"}                            -> {"inputs": tensors}, in place of everything shared before
    {"do": "inputs"}                          -> {"inputs": tensors, "masked": tensors}, in place of everything shared
         before: the inputs, and the inputs of the launches before timing where they differ
    {"do": "results", "like": {name: [dtype, shape, stride]}, "calls": n} -> {"results": [tensors, ...]}, the memory
         for the results of n calls; checks read the results of the first
    {"do": "first_changed"}                   -> {"name": the input to which a launch has written, or null}
    {"do": "check", "what": WHAT, ...}        -> {"accuracy": {...} or null, "notes": [...]} of the results in this
         memory; for "first" also "problem", the evidence against operands in fp8, or null; for "calls" also "call", the
         number of the call
    {"do": "prepared", "dense": bool}         -> {}; the following launches are of a newly prepared call
    {"do": "launched"}                        -> as "check", after a launch for which a check with dropout has asked by
         {"launch": {"restores": bool}}; with "restores" the launch begins from the worker's first random state
    {"do": "calls", "first": m, "calls": n}   -> {}; the results in this memory are of the calls m to m + n - 1
    {"do": "room"}                            -> {"rooms": [tensors, ...]}, all memory that this process will share on a
         CPU, without tensors, for a worker that may open none later (core/shared_tensors.hold)
    {"do": "chain", "release", "keep", "rule" or "link", ...} -> chain_judge.py
    {"do": "distances"}                       -> {"distances": {name: distance from the results of call 0}}

In a case on several devices some key heads are checked, each as a separate case (heads.py). Requests after "begin" then
name a "head", and the answer to "check" also has "together", the verdict on all heads, null until all have one.
"tensors" are a description of core/shared_tensors.py. Each answer, with an error too, has "grown": the bytes of the
device's memory that this process has taken meanwhile. WHAT is one of hearing.CHECKS.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attnbench.core.case import Case
from attnbench.core.json import from_json
from attnbench.core.machine import Device
from attnbench.core.shared_tensors import Arena, Description
from attnbench.judge import chain_judge, inputs, warm_up
from attnbench.judge.case_judge import CaseJudge
from attnbench.judge.chain_judge import ChainJudge
from attnbench.judge.dialog import LaunchesOfWorker
from attnbench.judge.heads import draw_heads, head_case, head_seed
from attnbench.judge.hearing import Hearing, use

Judges = Mapping[int, CaseJudge]  # by key head; a case on one device has one judge
SWITCH = 2e-4  # seconds after which a thread that works ahead yields to a worker's request
ROOM, ROOM_OF_CHAINS = 2**27, 2**27  # bytes of memory on a CPU that is shared in advance
MUCH = 2**30  # most unused bytes that torch may keep on a GPU for this process
FREEING = ("begin", "hard", "check", "launched")  # requests that free memory, which torch then keeps


class JudgeService:
    """Judges the cases of one device."""

    def __init__(self, device: Device) -> None:
        import torch

        torch.set_float32_matmul_precision("highest")
        self.device = torch.device(str(device))
        self._known: tuple[Case, int, Judges] | None = None
        self._hearings: dict[int, Hearing] = {}  # by slot
        self._chains: ChainJudge | None = None
        self._open_arenas: list[Arena] = []  # whose memory is shared in advance
        self.grown = 0  # bytes of the device's memory that the latest request has taken
        self._thread, self._threads = ThreadPoolExecutor(1), torch.get_num_threads()
        self._ahead: dict[tuple[Case, int], Future[Judges | str]] = {}
        use(self.device)
        warm_up(self.device)

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request. Raises ValueError for results with another form than the case's."""
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
            case "room":
                return {"rooms": self._rooms()}
            case "ahead":
                self._work_ahead([from_json(Case, case) for case in request["cases"]], request["seed"])
                return {}
        if request["do"] in chain_judge.REQUESTS:
            if self._chains is None:
                self._chains = ChainJudge(self.device)
            return self._chains.answer(request)
        slot = request.get("slot", 0)
        if slot not in self._hearings:
            self._hearings[slot] = Hearing(self.device)
        hearing = self._hearings[slot]
        if request["do"] == "begin":
            return self._begin(
                hearing, from_json(Case, request["case"]), request["seed"], lean=request.get("lean", False)
            )
        return hearing.answer(request)

    def _rooms(self) -> list[Description]:
        if self.device.type != "cpu":
            return []
        if self._chains is None:
            arenas = [Arena(self.device, least) for least in (ROOM, ROOM_OF_CHAINS)]
            self._hearings[0], self._chains = Hearing(self.device, arenas[0]), ChainJudge(self.device, arenas[1])
            self._open_arenas = arenas
        return [arena.room() for arena in self._open_arenas]

    def _begin(self, hearing: Hearing, case: Case, seed: int, *, lean: bool) -> dict[str, Any]:
        """Make the inputs and the reference of a case, unless the latest case and seed are the same."""
        hearing.end()
        # Judges that check dropout change with the results that they get, and lean ones free memory: no other worker
        # uses them.
        own = lean or bool(case.dropout_p)
        if own or self._known is None or self._known[:2] != (case, seed):
            self._known = None
            for other in self._hearings.values():  # their case has ended
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
        """Return the judges of a case, by head, or the fault of its inputs."""
        if case.ranks == 1:
            one = self._made_of_one(case, seed)
            return one if isinstance(one, str) else {0: one}
        made: dict[int, CaseJudge] = {}
        for head in draw_heads(case):
            one = self._made_of_one(head_case(case), head_seed(seed, head))
            if isinstance(one, str):
                return one
            one.renewal_seed = next(iter(made.values()), one).renewal_seed  # all heads of a launch have one renewal
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
        """Make the judges of some cases in a thread, and drop earlier ones for which nobody has asked."""
        import torch

        sys.setswitchinterval(SWITCH)
        wanted = {(case, seed) for case in cases}
        for key in [key for key in self._ahead if key not in wanted]:
            self._ahead.pop(key).cancel()

        def make(case: Case) -> Judges | str:
            use(self.device)
            torch.set_num_threads(max(1, self._threads // 2))  # the worker needs the other threads
            made = self._made(case, seed)
            if not isinstance(made, str):
                for one in made.values():
                    one.compute_all()
            return made

        for case in cases:
            if (case, seed) not in self._ahead:
                self._ahead[case, seed] = self._thread.submit(make, case)

    def _free(self) -> int:
        """Return the free bytes of the device's memory, after all work of this process on the device."""
        import torch

        if self.device.type != "cuda":
            return 0
        torch.cuda.synchronize(self.device)
        return torch.cuda.mem_get_info(self.device)[0]

    def _give_back(self, do: str) -> None:
        """Give the memory that torch has cached back to the GPU.

        Always while a case is lean; else only after a request named in FREEING (`do`), and if it is more than MUCH.
        """
        import torch

        if self.device.type == "cuda":
            lean = any(hearing.lean for hearing in self._hearings.values())
            if lean or (do in FREEING and _kept(torch.cuda.memory_stats(self.device)) > MUCH):
                torch.cuda.empty_cache()


def _kept(stats: Mapping[str, int]) -> int:
    """Return the bytes of a device that torch keeps without using them."""
    return stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
