"""`fake`: a simulated backend, for tests and for trying attnbench without a GPU. Needs no torch.

Its times follow a saturating curve with 0.3 % seeded noise, on a clock of its own, so a run takes milliseconds. The
environment variable ATTNBENCH_FAKE, separated by commas or spaces, sets what goes wrong:

    error@2k crash@4k hang@8k oom@16k wrong@32k refuse@64k    a failure of that kind at that seqlen_q
    unordered@2k batched@4k process@8k                         bits that differ between launches (unless deterministic),
                                                               with the batch, between processes
    speed=0.98                                                 a factor on its speed
    missing                                                    the backend cannot be used
    busy=0.9                                                   share of time for which others use the simulated GPU
"""

from __future__ import annotations

import hashlib
import math
import os
import random
import time
from typing import TYPE_CHECKING

from attnbench.backends.base import BackendBase
from attnbench.core.backend import Prepared, Probe, Simulation, Unsupported
from attnbench.core.case import RESULT_ITEMSIZE, Case
from attnbench.core.errors import UserError
from attnbench.core.flops import attention_of, flops, ideal_bytes
from attnbench.core.record import Accuracy, Bitwise, TensorError
from attnbench.core.sizes import parse_size

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

FAULTS = ("error", "crash", "hang", "oom", "wrong", "refuse", "unordered", "batched", "process")
PEAK = 600e12  # FLOP/s that the curve approaches


class Fake(BackendBase):
    """The simulated backend. It reads ATTNBENCH_FAKE when it is created."""

    name = "fake"
    simulated = True
    steps = True
    several = True

    def __init__(self) -> None:
        self.now = 0  # the simulated clock, in nanoseconds
        self.speed = 1.0
        self.faults: dict[int, str] = {}
        self.missing = False
        for entry in _entries():
            what, _, at = entry.partition("@")
            if at and what in FAULTS:
                self.faults[parse_size(at)] = what
            elif what.startswith("speed="):
                self.speed = _number(entry, "1e-6", "1e6")
            elif what == "missing":
                self.missing = True
            elif not what.startswith("busy="):
                raise UserError(f"ATTNBENCH_FAKE: {entry!r} is not known")

    def probe(self) -> Probe:
        return self.installed()

    def installed(self) -> Probe:
        if self.missing:
            return Probe(reason="ATTNBENCH_FAKE says it is missing", install="unset ATTNBENCH_FAKE")
        return Probe(version="simulated")

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        fault = self.faults.get(case.shape.seqlen_q, "")
        self.fail(fault)
        s = case.shape
        rate = PEAK * self.speed * s.seqlen_k / (s.seqlen_k + 1024) * s.headdim / (s.headdim + 32)
        attention, share = flops(case), None
        if case.model_step:  # `speed` is a factor on attention only, not on the rest of a step
            layers = (attention_of(case, layer) for layer in range(case.model_step.layers))
            attention = sum(flops(layer) for layer in layers)
        rest = (flops(case) - attention) / PEAK
        seconds = 5e-6 + attention / rate + rest
        if case.step:
            share = attention / rate / seconds
        moved, computing = 0, None
        if case.ranks > 1:  # the other ranks' keys and values arrive at 300 GB/s, and no computation overlaps with it
            moved = ideal_bytes(case) * (case.ranks - 1) // case.ranks
            alone, seconds = 5e-6 + attention / rate / case.ranks, 25e-6 + attention / rate / case.ranks + moved / 3e11
            computing = alone / seconds
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
        memory = {"memory_peak": (ideal_bytes(case) if case.has_backward else out) // case.ranks}
        if case.has_backward:
            memory["memory_saved"] = out
        simulation = Simulation(lambda: self.now, accuracy, memory, share, computing, _bits(case, names, fault))
        return Prepared(launch, lambda _: {}, simulation=simulation, moved=moved)

    def fail(self, fault: str) -> None:
        """Fail as ATTNBENCH_FAKE sets: raise an error, or end the process (crash) or block it (hang)."""
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


def _bits(case: Case, names: tuple[str, ...], fault: str) -> Bitwise:
    """Return how the results of a simulated call compare bit by bit; the first gradient, or out, is at fault."""
    at_fault = names[1] if case.has_backward else names[0]
    differs = 3 if fault == "unordered" and not case.deterministic else 0
    alone, seed = case.shape.batch > 1, f"{case.key}/{os.getpid() if fault == 'process' else ''}"
    return Bitwise(
        launches=8,
        differing={name: differs * (name == at_fault) for name in names},
        digests={name: hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).hexdigest() for name in names},
        alone=(at_fault,) if alone and fault == "batched" else (),
        not_alone="" if alone else "its batch has one sequence",
    )


def busy_with_others() -> float | None:
    """Return the share of time for which other processes use the simulated GPU; None where ATTNBENCH_FAKE sets none."""
    found = [_number(entry, "0", "1") for entry in _entries() if entry.startswith("busy=")]
    return found[-1] if found else None


def _number(entry: str, least: str, most: str) -> float:
    """Return the number of an entry such as speed=0.98. Raises UserError where it has none from `least` to `most`."""
    try:
        number = float(entry.partition("=")[2])
    except ValueError:
        number = math.nan
    if not float(least) <= number <= float(most):
        raise UserError(f"ATTNBENCH_FAKE: {entry} is no number from {least} to {most}")
    return number


def _entries() -> list[str]:
    return [*filter(None, os.environ.get("ATTNBENCH_FAKE", "").replace(" ", ",").split(","))]
