"""The bound of a kernel from its counters: the parser of ncu's CSV, and the rules on invented counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import builders
from attnbench.analysis.profile.bounds import NOT_TOLD, sentence
from attnbench.analysis.profile.document import document
from attnbench.render import terminal
from attnbench.run.profile import counters, ncu, profile
from attnbench.run.profile.counters import COUNTERS, KernelCounters
from attnbench.run.workers import WorkerPool

SMS = 132
SHARES = ("tensor", "exp", "fma", "alu", "shared", "l2", "hbm", "occupancy", "possible")
MARK = ("spin_kernel(long)", {})


def kernel(stalls: Mapping[str, float] | None = None, **values: float) -> KernelCounters:
    """Return a kernel that fills the GPU for long, with the given changes; shares in per cent."""
    given = {name: value / 100 if name in SHARES else value for name, value in values.items()}
    base = {"seconds": 1e-3, "blocks": 4096.0, "waves": 31.0, "spilled": 0.0}
    return KernelCounters("k", {**base, **given}, stalls or {})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (kernel(tensor=30, exp=88), "busy: bound by exp"),
        (kernel(tensor=49, exp=50, l2=81), "busy: tensor cores and exp take turns"),  # together they fill the time
        (kernel(tensor=62, exp=64, shared=41), "busy: tensor cores and exp work at once in at least 26% of the time"),
        (kernel(tensor=67, exp=27, shared=77), f"busy: {NOT_TOLD}."),
        (kernel(hbm=87, l2=92), "L2 92%, HBM 87% busy: bound by HBM."),  # L2 passes HBM's data on
        (kernel(tensor=97, shared=98), "busy: bound by tensor cores."),  # wgmma reads shared memory
        (kernel(tensor=76, shared=81), "busy: bound by shared memory"),
        (kernel(tensor=70, exp=8), f"busy: {NOT_TOLD}."),
        (KernelCounters("k", {}), f"{NOT_TOLD}."),
        (kernel(hbm=40, tensor=3), f"busy: {NOT_TOLD}."),  # this GPU has no stall reasons
        (
            kernel(tensor=50, exp=20, blocks=32, waves=0.2),
            "32 blocks for 132 multiprocessors: the other multiprocessors idle; ",
        ),
        (kernel(tensor=85, blocks=251, waves=1.9), "busy: bound by tensor cores."),
        (kernel(tensor=85, blocks=158, waves=1.2), "1.2 waves: the last leaves 40% of the time idle; bound by tensor"),
        (kernel(tensor=85, blocks=132, waves=1.0), "busy: bound by tensor cores."),  # one block each, in turns
        (kernel(seconds=2e-6, tensor=90), "busy: 2.00 us is too short to tell what bounds it."),
        (kernel(tensor=20, spilled=3e9, exp=10), f"of spilled registers are read back; {NOT_TOLD}."),
    ],
)
def test_what_is_said_of_a_kernel(found: KernelCounters, said: str) -> None:
    assert said in sentence(found, SMS)


def test_a_share_beyond_one_is_left_out() -> None:
    read = {"l1tex__throughput.avg.pct_of_peak_sustained_active": ("240", "%"), "launch__grid_size": ("1", "")}
    found = counters.parse(output(MARK, ("k", read), MARK))
    assert found[0].values == {"blocks": 1.0}


def output(*kernels: tuple[str, Mapping[str, tuple[str, str]]]) -> str:
    lines = ['"ID","Process Name","Kernel Name","Metric Name","Metric Unit","Metric Value"']
    for i, (name, metrics) in enumerate(kernels):
        given = metrics or {"gpu__time_duration.sum": ("1", "nsecond")}
        lines += [f'"{i}","python","{name}","{metric}","{unit}","{value}"' for metric, (value, unit) in given.items()]
    return "\n".join(["==PROF== Connected", *lines])


STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
ATTENTION = {
    "gpu__time_duration.sum": ("1,250,000", "nsecond"),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("62.5", "%"),
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": ("48", "%"),
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("n/a", ""),
    "launch__grid_size": ("4,096", ""),
    "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum": ("0", "byte"),
    STALLED.format("long_scoreboard"): ("3.0", "inst"),
    STALLED.format("gmma"): ("1.0", "inst"),
    STALLED.format("selected"): ("1.0", "inst"),
    STALLED.format("math_pipe_throttle"): ("n/a", "inst"),
}
TEXT = output(("reduce", {}), MARK, ("void flash_fwd<128>(T)", ATTENTION), ("combine", {}), MARK, ("reduce", {}))


def test_counters_are_read_in_the_units_of_core() -> None:
    attention, combine = counters.parse(TEXT)
    wanted = {"seconds": 1.25e-3, "tensor": 0.625, "exp": 0.48, "blocks": 4096.0, "spilled": 0.0}
    assert attention.values == pytest.approx(wanted)  # counters that the GPU lacks (n/a) are left out
    assert attention.stalls == {"long_scoreboard": 3.0, "gmma": 1.0}  # a warp that issues does not wait
    assert attention.top_stalls == (("long scoreboard", 0.75), ("gmma", 0.25))
    assert combine.values == pytest.approx({"seconds": 1e-9})


def test_an_unknown_counter_is_left_out_and_the_rest_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    absent = COUNTERS["exp"].metrics[0]

    def run(_tool: str, _python: str | None, _request: Any, metrics: Sequence[str]) -> str:
        asked.append(metrics)
        return f"==ERROR== Failed to find metric {absent}\n" if absent in metrics else TEXT

    monkeypatch.setattr(ncu, "run", run)
    assert len(counters.measure("/ncu", None, {})) == 2
    assert [absent in metrics for metrics in asked] == [True, False]
    assert all(metrics[-1] == counters.STALLED for metrics in asked)


def test_the_document_has_the_table_and_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "find", lambda: "/ncu")
    monkeypatch.setattr(counters, "measure", lambda *_: counters.parse(TEXT))
    plain = profile.Profile("mine", "events", "cold", (1.3e-3,), 0.1, memory_peak=0)
    pool = WorkerPool({"mine": "mine.py:f"}, {})
    found, _ = profile.add(profile.COUNTERS, [plain], pool, builders.case(), builders.H200, lambda _: None)
    outcome = profile.Outcome(builders.environment(builders.H200), builders.case(), None, tuple(found))
    text = " ".join(terminal.text(document(outcome)).split())
    assert "mine, flash_fwd, 100% of its time: tensor cores 62%, exp and conversions (XU) 48% busy" in text
    assert text.count("exp and conversions (XU) 48%") == 2, "in the sentence and in the table"
    assert "counters that ncu does not give here: FMA, ALU, shared memory and L1, L2, HBM, warps in flight" in text
