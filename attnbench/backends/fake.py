"""`fake`: a simulated backend, for tests and for trying the tool without a GPU. Needs no torch.

Its times follow a saturating curve with 0.3 % seeded noise, on a clock of its own, so a run takes milliseconds. The
environment variable ATTNBENCH_FAKE scripts what goes wrong, comma-separated:

    error@2k crash@4k hang@8k oom@16k wrong@32k refuse@64k    at that seqlen_q
    speed=0.98                                                 factor on its speed
    missing                                                    cannot be used here
"""

from __future__ import annotations

import math
import os
import random
import time
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import BackendBase
from attnbench.core.backend import Prepared, Probe, Script, Unsupported
from attnbench.core.case import RESULT_ITEMSIZE, Case
from attnbench.core.flops import flops, nbytes
from attnbench.core.record import Accuracy, TensorError
from attnbench.core.sizes import parse_size

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

FAULTS = ("error", "crash", "hang", "oom", "wrong", "refuse")
PEAK = 600e12  # FLOP/s that its curve approaches


class Fake(BackendBase):
    """Reads its script when it is made."""

    name = "fake"
    simulated = True

    def __init__(self) -> None:
        self.now = 0  # ns
        self.speed = 1.0
        self.faults: dict[int, str] = {}
        self.missing = False
        for word in filter(None, os.environ.get("ATTNBENCH_FAKE", "").replace(" ", ",").split(",")):
            what, _, at = word.partition("@")
            if at and what in FAULTS:
                self.faults[parse_size(at)] = what
            elif what.startswith("speed="):
                self.speed = float(what[6:])
            elif what == "missing":
                self.missing = True
            else:
                raise ValueError(f"ATTNBENCH_FAKE: {word!r} is not known")

    def probe(self) -> Probe:
        if self.missing:
            return Probe(reason="ATTNBENCH_FAKE says it is missing", install="unset ATTNBENCH_FAKE")
        return Probe(version="simulated")

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        fault = self.faults.get(case.shape.seqlen_q, "")
        self.fail(fault)
        s = case.shape
        rate = PEAK * self.speed * s.seqlen_k / (s.seqlen_k + 1024) * s.headdim / (s.headdim + 32)
        seconds = 5e-6 + flops(case) / rate
        noise = random.Random(case.key)
        first = [True]

        def launch() -> None:
            compile_time = 0.2 if first[0] else 0.0
            first[0] = False
            self.now += int(1e9 * (compile_time + seconds * math.exp(noise.gauss(0, 0.003))))

        error = 1.0 if fault == "wrong" else 1e-3
        names = ("out", "dq", "dk", "dv") if case.has_backward else ("out",)
        accuracy = Accuracy({n: TensorError(error, 1e-3, 2e-3, error) for n in names}, s.seqlen_q, s.nheads)
        out = s.batch * s.seqlen_q * s.nheads * s.headdim_v * RESULT_ITEMSIZE[case.dtype]
        memory = {"memory_peak": nbytes(case) if case.has_backward else out}
        if case.has_backward:
            memory["memory_saved"] = out
        return Prepared(launch, _nothing, script=Script(lambda: self.now, accuracy, memory))

    def fail(self, fault: str) -> None:
        """Fails as scripted: in the process for most, the process itself for crash and hang."""
        if fault == "error":
            raise RuntimeError("scripted error")
        if fault == "oom":
            raise MemoryError("scripted: out of memory")
        if fault == "refuse":
            raise Unsupported("scripted refusal")
        if fault == "crash":
            os.abort()
        while fault == "hang":
            time.sleep(60)


def _nothing(_: Any) -> dict[str, Any]:
    return {}
