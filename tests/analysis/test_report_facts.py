"""The facts of a report: what its figures include and what they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attnbench.analysis.report.cautions import cautions
from attnbench.analysis.report.facts import facts
from attnbench.core.record import Bitwise, Proof, Record
from attnbench.results.cells import cells
from builders import CPU, H200, case, ok, run


def told(*records: Record, **changes: Any) -> str:
    """Return the facts without the first one, on the uncertainty, which every report has."""
    found = facts(cells([run(records, **changes)]))
    return "\n".join(map(str, found[found[0].what.startswith("Uncertainty") :] if found else ()))


def test_how_sure_latencies_are_and_where_that_is_known_from() -> None:
    def said(*records: Record, **changes: Any) -> str:
        return str(next(iter(facts(cells([run(records, **changes)]))), ""))

    calm, noisy = ok(case(), "triton", 300.0), ok(case(2048), "triton", 300.0, spread=0.5)
    text = said(calm, calm, noisy)
    assert text.startswith("Uncertainty of the latency: 5.6% in the median of 2 cells, 11% at most; 95 %, for other")
    assert "Between processes: H200 SXM, measured: " in text
    unknown = replace(H200, name="NVIDIA H300")
    assert "Between processes: not measured on this device; GPUs, assumed: twice the H200's." in said(
        calm, device=unknown
    )
    assert "95 %, for other processes on this card." in text
    assert "95 %, for other processes on this machine." in said(calm, device=CPU)
    rounds = [ok(case(), "triton", 300.0 + i, round=i) for i in range(3)]
    assert said(*rounds).endswith("From 3 rounds.")
    simulated = said(calm, device=replace(H200, kind="fake", name="fake"))
    assert simulated.endswith("Between processes: the simulated device: all its processes are alike.")


def turns(
    backend: str, events: float, graph: float | None, cupti: float, seqlen: int = 1024, toll: float = 0
) -> Record:
    traced = (1 + toll) * events
    taken = {"turns_events": (events,) * 8, "turns_cupti": ((1 + toll) * cupti,) * 8, "turns_traced": (traced,) * 8}
    return ok(case(seqlen), backend, 300.0, **taken, **({"turns_graph": (graph,) * 8} if graph else {}))


def test_the_cross_check() -> None:
    records = [
        turns("triton", 1000e-6, 1000e-6, 999e-6),
        turns("triton", 1000e-6, 1004e-6, 990e-6, 2048),
        turns("triton", 1000e-6, 1001e-6, 997e-6, 4096, toll=0.03),
        turns("triton", 50e-6, 49.5e-6, 48.5e-6, 8192),
        turns("eager", 20e-6, None, 16.5e-6),
        turns("eager", 10e-6, None, 8e-6, 2048),
    ]
    eager, triton = told(*records).splitlines()
    assert eager == "Cross-check of eager: CUPTI reads 2.0 to 3.5 us less than CUDA events in 2 shorter cells."
    for said in (
        "CUDA graph replay differs from CUDA events by 0.1% in the median and 0.4% in the worst of 3 cells of 100 us",
        "CUPTI differs from CUDA events of the same calls by 0.3% in the median and 1% in the worst of 3 cells",
        "tracing costs 0%, 3% at most.",
    ):
        assert said in triton
    made = run(records)
    assert not cautions(cells([made]), [made])


def test_what_tracing_slows_is_said_where_the_latency_is_a_span() -> None:
    def traced(by: float, seqlen: int, **changes: Any) -> Record:
        taken = {"time": (50e-6,) * 30, "span": (48e-6 + by,) * 30, "span_events": (50e-6 + by,) * 30}
        return ok(case(seqlen), "eager", 300.0, **taken, **changes)

    slow = "Tracing slows 1 cell whose latency is a span: eager 2k d128 full fwd."
    assert slow in told(traced(0.0, 1024), traced(1.4e-6, 2048))
    assert "Tracing" not in told(traced(1.2e-6, 2048))  # 2 %, and the gap may grow by 0.3 us
    assert "Tracing" not in told(traced(1.4e-6, 2048, host_bound=True))
    (cell,) = cells([run([traced(5e-6, 2048)], peak={"bf16": 1e16})])
    assert cell.uncertainty is not None
    assert cell.uncertainty.added == pytest.approx(0.1), "so that it ties with what tracing does not slow"
    assert "Latency is of traced calls." in told(ok(case(2048), "eager", 300.0, time=(1e-3,) * 30, timer="cupti"))


def test_short_kernels_and_their_launch_gaps() -> None:
    def short(backend: str, seqlen: int, gap: float, **changes: Any) -> Record:
        return ok(case(seqlen), backend, 300.0, time=(50e-6,) * 30, span=(50e-6 - gap,) * 30, **changes)

    records = [short("triton", 1024, 1.2e-6), short("triton", 2048, 2.3e-6), short("eager", 1024, 4e-6)]
    assert told(*records) == (
        "Latency is the kernels' own span (CUPTI) in 3 cells, of cases whose fastest takes under 100 us. CUDA events "
        "include a launch gap: eager 4.0 us, triton 1.2 to 2.3 us. -m launch_gap shows it by cell."
    )
    bound = short("eager", 1024, 40e-6, host_bound=True)
    assert "include a launch gap. -m" in told(bound)  # its readings include the host's time
    assert told(ok(case(), "eager", 30.0)) == ""


def test_what_records_say_is_said_once() -> None:
    text = "cross-check: graph: a cold L2 needs {} copies of its operands, more than 512"
    records = [ok(case(1024 * 2**i), "triton", 300.0, notes=(text.format(600 + i),)) for i in range(3)]
    records += [ok(case(), "eager", 30.0, notes=(text.format(700), "no \x1b[31mjoules")), ok(case(2048), "eager", 30.0)]
    assert told(*records).splitlines() == [
        "cross-check: graph: a cold L2 needs 600 to 700 copies of its operands, more than 512 (4 cells: eager, triton)",
        "no joules (1 cell: eager)",
    ]


def test_turns_of_traced_calls_alone_tell_nothing_of_events() -> None:
    half = ok(case(), "triton", 300.0, turns_traced=(1e-3,) * 8, turns_cupti=(1e-3,) * 8)
    assert told(half) == ""


def test_memory_that_torch_does_not_know_is_of_a_gpu() -> None:
    def took(backend: str, peak: int, outside: int) -> Record:
        return ok(case(), backend, 300.0, memory_peak=peak * 2**20, memory_driver=(peak + outside) * 2**20)

    records = [took("sdpa-cudnn", 64, 128), took("eager", 64, 30), took("triton", 4000, 100)]
    assert told(*records).startswith("Memory outside torch's allocator: sdpa-cudnn 128 MiB (")
    assert told(*records, device=CPU) == ""


def test_what_differs_in_bits_says_its_own_remedy() -> None:
    def said(bits: Bitwise, **of_case: Any) -> str:
        return told(replace(ok(replace(case(), **of_case), "triton", 300.0), bitwise=replace(bits, no_process="")))

    by_launch, by_batch = Bitwise(8, {"dq": 3}, {"dq": "0f"}), Bitwise(8, {"dq": 0}, {"dq": "0f"}, alone=("dq",))
    assert "does not repeat itself bit by bit" in said(by_launch)
    assert "--deterministic" in said(by_launch)
    assert "--deterministic" not in said(by_launch, deterministic=True)  # it is this variant
    assert "they depend on the batch" in said(by_batch)
    assert "--deterministic" not in said(by_batch)


def test_a_latency_by_a_clock_outside_is_told_with_what_it_leaves_out() -> None:
    proof = Proof((8, 16, 32), 1e-5, 8e-6, 0.1, 84, {"processes": "root's processes are not limited"})
    text = told(replace(ok(case(), "triton", 300.0), timer="outside", l2="warm", proof=proof))
    assert "84 results along chains of launches are right" in text
    assert "up to 8.00 us" in text
    assert "Not fenced here: processes (root's processes are not limited)." in text
    checked = replace(proof, launches=())  # by check, without a latency
    assert "clock" not in told(replace(ok(case(), "triton", 300.0), proof=checked))
