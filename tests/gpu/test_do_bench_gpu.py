"""attnbench's timer agrees with triton.testing.do_bench on the same launches, in turns in one process."""

from __future__ import annotations

import pytest
from peer_timers import PEER_TIMERS, compare_timers

from attnbench import backends
from attnbench.core import stats
from attnbench.core.case import Case, Shape
from attnbench.core.policy import Policy
from attnbench.judge import inputs
from attnbench.worker import environment
from attnbench.worker.measure_cell import CellMeasurer

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("default"),
]


def cases() -> list[Case]:
    found = []
    for seqlen, d in ((4096, 64), (4096, 128), (16384, 64), (16384, 128)):
        for causal in (False, True):
            shape = Shape(16384 // seqlen, seqlen, seqlen, 2048 // d, 2048 // d, d, d)
            found += [Case(shape, "bf16", direction, causal) for direction in ("fwd", "bwd")]
    return found


def test_agrees_within_2_percent_in_the_median() -> None:
    device = environment.with_quick_rates(environment.describe("cuda:0").device)
    measurer, policy = CellMeasurer(device), Policy()
    found = []
    for name in ("sdpa-flash", "sdpa-cudnn", "sdpa-efficient"):
        for case in cases():
            prepared = backends.load(name, backends.BACKENDS[name]).prepare(
                case, inputs.make(case, str(measurer.device), 0)
            )
            prepared.launch()
            if (both := compare_timers(measurer, prepared.launch, policy, PEER_TIMERS["do_bench"])) is not None:
                found.append(both.ratio)
                s = case.shape
                print(f"{name:15} d{s.headdim} {s.seqlen_k:6} causal={case.causal:d} {case.direction}", end=" ")
                print(f"{both.latency * 1e6:9.1f} us  attnbench/do_bench {both.ratio:.4f}, cycles {both.cycles:.4f}")
            del prepared
            measurer.recover()
    print(f"median {stats.median(found):.4f}, from {min(found):.4f} to {max(found):.4f}, {len(found)} cells")
    assert len(found) >= 20
    assert abs(stats.median(found) - 1) < 0.02
