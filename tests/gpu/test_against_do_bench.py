"""attnbench's timer against triton.testing.do_bench: the same closures, in turns, in one process.

do_bench's default of 100 ms runs into the power cap, where the clock falls; so it is given bursts with pauses too.
"""

from __future__ import annotations

from functools import partial

import pytest

from attnbench import backends, environment, inputs, stats
from attnbench.bench import Bench
from attnbench.measure.timing import Pacer, collect, pause
from attnbench.types import Case, Policy, Shape

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("default"),
]

TURNS = 5
BURSTS = 4
SHORTEST = 0.5e-3  # seconds; below, the peers differ by the launch gap that events contain


def cases() -> list[Case]:
    found = []
    for seqlen, d in ((4096, 64), (4096, 128), (16384, 64), (16384, 128)):
        for causal in (False, True):
            shape = Shape(16384 // seqlen, seqlen, seqlen, 2048 // d, 2048 // d, d, d)
            found += [Case(shape, "bf16", direction, causal) for direction in ("fwd", "bwd")]
    return found


def ratio(name: str, case: Case, bench: Bench, policy: Policy) -> tuple[float, float] | None:
    """(latency, attnbench / do_bench) by medians over turns."""
    from triton.testing import do_bench

    backend = backends.load(name, backends.BACKENDS[name])
    prepared = backend.prepare(case, inputs.make(case, str(bench.device), 0))
    prepared.launch()
    events = bench.events
    assert events is not None

    def measured() -> float:
        events.reset()
        pacer = Pacer(events.clocks, events.best_clock, policy.burst_s)
        return stats.median(collect(partial(events.samples, prepared.launch), policy, pace=pacer))

    if measured() < SHORTEST:
        return None
    ratios, latencies = [], []
    for turn in range(TURNS):
        ours = theirs = 0.0
        for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            if who == "ours":
                ours = measured()
            else:
                bursts = []
                for _ in range(BURSTS):
                    bursts.append(do_bench(prepared.launch, warmup=1, rep=10, return_mode="median") / 1e3)
                    pause(0.05)
                theirs = stats.median(bursts)
        ratios.append(ours / theirs)
        latencies.append(ours)
    return stats.median(latencies), stats.median(ratios)


def test_agrees_within_2_percent_in_the_median() -> None:
    device = environment.describe("cuda:0").device
    bench, policy = Bench(device), Policy()
    found = []
    for name in ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient"):
        for case in cases():
            if (pair := ratio(name, case, bench, policy)) is not None:
                found.append(pair[1])
                s = case.shape
                print(f"{name:15} d{s.headdim} {s.seqlen_k:6} causal={case.causal:d} {case.direction}", end=" ")
                print(f"{pair[0] * 1e6:9.1f} us  attnbench/do_bench {pair[1]:.4f}")
            bench.recover()
    print(f"median {stats.median(found):.4f}, from {min(found):.4f} to {max(found):.4f}, {len(found)} cells")
    assert len(found) >= 20
    assert abs(stats.median(found) - 1) < 0.02
