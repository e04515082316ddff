"""Cells: rounds, several runs, the relevant peak, the clock held."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnbench.core.case import Case
from attnbench.core.record import Measurement, Record
from attnbench.results.cells import by_key, cells, contest_of
from attnbench.results.uncertainty import MEASURED
from builders import CPU, H200, case, ended, environment, measurements, ok, run


def test_rounds_are_aggregated_by_their_median() -> None:
    rounds = [ok(case(), "triton", t, round=i) for i, t in enumerate((300.0, 500.0, 330.0))]
    (cell,) = cells([run(rounds)])
    assert cell.value("tflops") == pytest.approx(330)
    assert cell.value("utilization") == pytest.approx(330 / 989.4)


def test_speedup_compares_within_a_round() -> None:
    records = [ok(case(), "eager", t, round=i) for i, t in enumerate((10.0, 20.0))]
    records += [ok(case(), "triton", t, round=i) for i, t in enumerate((30.0, 60.0))]
    eager, triton = cells([run(records)])
    assert eager.value("speedup") == 1.0
    assert triton.value("speedup") == pytest.approx(3)


def test_speedup_without_eager() -> None:
    records = [ended(case(), "eager", "oom", "out of memory"), ok(case(), "triton", 30.0)]
    assert [c.value("speedup") for c in cells([run(records)])] == [None, None]
    records = [ok(case(), "eager", 10.0), ok(case(), "eager", 10.0, round=1), ok(case(), "triton", 40.0, round=7)]
    assert cells([run(records)])[1].value("speedup") == pytest.approx(4)


def test_the_last_record_of_a_job_wins() -> None:
    (cell,) = cells([run([ended(case(), "triton", "timeout", "120 s"), ok(case(), "triton", 300.0)])])
    assert cell.status == "ok"
    assert len(cell.rows) == 1


def test_status_of_rounds() -> None:
    good, bad = ok(case(), "triton", 300.0), ended(case(), "triton", "wrong", "out is off", round=1)
    (cell,) = cells([run([good, bad])])
    assert (cell.status, cell.reason, cell.value("tflops")) == ("wrong", "out is off", None)
    (cell,) = cells([run([good, replace(bad, status="wrong-kernel", reason="sgemm ran")])])
    assert (cell.status, cell.reason, cell.value("tflops")) == ("wrong-kernel", "sgemm ran", None)
    (cell,) = cells([run([bad, replace(bad, round=2, status="wrong-kernel")])])
    assert cell.status == "wrong"
    (cell,) = cells([run([good, replace(bad, status="oom")])])
    assert (cell.status, cell.value("tflops")) == ("ok", pytest.approx(300))


def test_given_peak_beats_the_datasheet() -> None:
    records = [ok(case(), "triton", 300.0)]
    for peak, expected in (
        ({}, 989.4e12),
        ({"": 1e15}, 1e15),
        ({"": 1e15, "bf16": 6e14}, 6e14),
        ({"fp16": 1.0}, 989.4e12),
    ):
        assert cells([run(records, peak=peak)])[0].rates.peak == expected
    unknown = replace(H200, name="GPU of tomorrow")
    assert cells([run(records, device=unknown)])[0].rates.peak is None
    assert cells([run(records, device=unknown)])[0].value("utilization") is None
    assert cells([run(records, device=CPU)])[0].rates.bandwidth is None


def test_a_given_peak_has_no_clock() -> None:
    records = [ok(case(), "triton", 300.0, clock_held=1.83e9)]
    (cell,) = cells([run(records)])
    assert cell.rates.clock == pytest.approx(1.83e9, rel=1e-3)
    assert cell.value("utilization_clock") == pytest.approx(300 / 989.4, rel=1e-3)
    (given,) = cells([run(records, peak={"bf16": 6e14})])
    assert (given.rates.clock, given.value("utilization_clock")) == (None, None)
    assert given.value("utilization") == pytest.approx(0.5)


def test_ceilings_are_of_the_run_and_the_dtype() -> None:
    records = [
        ok(case(), "triton", 300.0, ceiling_matmul=(6e14, 8e14), ceiling_copy=4e12),
        ended(
            case(), "eager", "failed", "x", measurements=measurements(ceiling_matmul=7e14, ceiling_copy=(2e12, 3e12))
        ),
        ok(case(dtype="fp16"), "triton", 300.0, ceiling_matmul=5e14),
    ]
    other = run([ok(case(2048), "triton", 300.0)])
    found = {(c.backend, c.case): c for c in cells([run(records), other])}
    bf16, fp16 = found["triton", case()], found["triton", case(dtype="fp16")]
    assert (bf16.rates.ceiling, bf16.rates.copy) == (7e14, 3e12)
    assert (fp16.rates.ceiling, fp16.rates.copy) == (5e14, 3e12)
    assert bf16.value("utilization_ceiling") == pytest.approx(3 / 7)
    assert found["triton", case(2048)].rates.ceiling is None


def held(*clocks: float | None, limits: tuple[str, ...] = (), **changes: object) -> list[bool]:
    records = [
        ok(case(1024 * 2**i), "triton", 300.0, limits=limits, **({} if hz is None else {"clock_held": hz}))
        for i, hz in enumerate(clocks)
    ]
    return [c.held_down for c in cells([run(records, **changes)])]


def test_cells_whose_clock_was_held_down() -> None:
    """A cell's clock was held down if it is below the run's best by the gauge, where there is one.

    A limit that NVML reports at full clock does not count.
    """
    assert held(None, None) == [False, False]
    assert held(None, limits=("power cap",)) == [True]
    assert held(1.98e9, 1.96e9, 1.94e9) == [False, False, True]
    assert held(1.98e9, 1.94e9, limits=("power cap",)) == [False, True]
    assert held(1.7e9, 1.7e9) == [False, False]  # a clock that a person has set
    assert held(1.7e9, 1.7e9, limits=("thermal",)) == [True, True]
    assert held(1.7e9, limits=("thermal",), environment=environment(clock_max_hz=None)) == [True]


@pytest.mark.parametrize(
    ("before", "under_load", "best", "after", "seconds", "held_down"),
    [
        (1.98e9, 1.73e9, 1.73e9, 1.96e9, 1e-3, False),  # cuDNN on an H100: no limit lowers the clock under load
        (1.94e9, 1.73e9, 1.73e9, 1.94e9, 1e-3, True),  # the device had not recovered from earlier work
        (1.98e9, 1.70e9, 1.73e9, 1.96e9, 1e-3, True),  # the clock fell during the cell
        (1.98e9, 1.73e9, 1.73e9, 1.80e9, 1e-3, False),  # the clock fell after a burst, and recovered in the pause
        (1.98e9, 1.73e9, 1.73e9, 1.80e9, 50e-3, True),  # the clock fell within a call longer than a burst
        (1.96e9, 1.73e9, 1.73e9, 1.96e9, 1e-3, False),
    ],
)
def test_what_holds_the_clock_down_by_method_2(
    before: float, under_load: float, best: float, after: float, seconds: float, held_down: bool
) -> None:
    def record(which: Case, *hz: float, seconds: float = 1e-3) -> Record:
        clocks = dict(zip(("before", "held", "best", "after"), hz, strict=True)) | {"idle": 1.98e9}
        values = {f"clock_{name}": Measurement("Hz", (clock,)) for name, clock in clocks.items()}
        made = ok(which, "triton", 300.0, limits=("power cap",))
        return replace(made, measurements={**values, "time": Measurement("s", (seconds,) * 10)})

    measured = record(case(), before, under_load, best, after, seconds=seconds)
    assert [c.held_down for c in cells([run([measured], method=2)])] == [held_down]


def test_runs_of_one_setting_join_and_others_stay_apart() -> None:
    a, b = run([ok(case(), "eager", 10.0)]), run([ok(case(), "triton", 30.0)])
    joined = cells([a, b])
    assert {c.device for c in joined} == {"NVIDIA H200"}
    assert joined[1].value("speedup") == pytest.approx(3)
    for later, told in (("2026-07-02T10:00:00+00:00", 16), ("2026-07-01T10:00:09+00:00", 19)):
        again = cells([a, replace(a, started=later)])
        starts = [start.replace("T", " ")[:told] for start in (a.started, later)]
        assert [c.device for c in again] == [f"NVIDIA H200 (run of {start})" for start in starts]
    three = cells([replace(a, started=f"2026-07-0{day}T10:00:00+00:00") for day in (1, 2)] + [again[-1].run])
    assert [c.device.count("run of") for c in three] == [1, 1, 1], "a start is told once"
    newer = replace(b, environment=environment(torch="2.12.0"))
    assert [c.device for c in cells([a, newer])] == [
        "NVIDIA H200 (torch 2.11.0+cu130)",
        "NVIDIA H200 (torch 2.12.0)",
    ]
    assert cells([a, newer])[1].value("speedup") is None
    assert [c.device for c in cells([a, a])] == ["NVIDIA H200 (#1)", "NVIDIA H200 (#2)"]
    others = [replace(b, started=f"2026-07-0{day}T10:00:00+00:00") for day in (2, 3)]
    labels = {"NVIDIA H200 (runs of 2026-07-01 10:00 to 2026-07-02 10:00)", "NVIDIA H200 (run of 2026-07-03 10:00)"}
    assert {c.device for c in cells([a, *others])} == labels, "true of each run that joined"
    assert len({(c.device, *c.key) for c in cells([a, *others])}) == 3, "one that joined a has its cells too"


def test_figures_of_two_cards_are_compared_with_what_cards_differ_by() -> None:
    """Latencies of two cards are compared by the spread of cards: 2 % is more than one varies, less than two."""

    def winners(first: str | None, second: str | None) -> int:
        records = ok(case(), "fa2", 600.0), ok(case(), "triton", 612.0)
        uuids = (replace(H200, uuid=uuid) for uuid in (first, second))
        return len(contest_of(cells([run([r], device=d) for r, d in zip(records, uuids, strict=True)])).winners)

    assert winners("GPU-1", "GPU-1") == 1
    assert winners("GPU-1", "GPU-2") == 2
    assert winners(None, None) == 2, "two runs that do not name their cards"
    both = contest_of(cells([run([ok(case(), "fa2", 600.0), ok(case(), "triton", 612.0)])]))
    assert len(both.winners) == 1, "one run"


def test_a_cell_names_itself_and_what_it_was_measured_on() -> None:
    made = run([ok(case(), "triton", 300.0, round=i) for i in (2, 0, 1)])
    (cell,) = cells([made])
    assert (cell.name, cell.device, cell.run) == ("triton 1k d128 full fwd", "NVIDIA H200", made)
    assert [row.record.round for row in cell.rows] == [0, 1, 2]
    assert cell.rounds("samples") == {0: 100, 1: 100, 2: 100}
    assert by_key([cell]) == {(case(), "triton"): cell}
    several = cells([run([ok(case(), "triton", 300.0), ok(case(dtype="fp16"), "triton", 300.0)])])
    assert [c.name for c in several] == ["triton 1k d128 full fwd bf16", "triton 1k d128 full fwd fp16"]
    alike = cells([run([ok(case(batch=b), "triton", 300.0) for b in (1, 2)])])
    assert [c.name for c in alike] == [f"triton 1k d128 full fwd b{b} h16" for b in (1, 2)]


def test_the_interval_is_that_of_the_uncertainty() -> None:
    one = ok(case(), "triton", 300.0, time=[0.9, *[1.0] * 8, 1.3])
    (cell,) = cells([run([one])])
    half = cell.value("ci")
    assert half == pytest.approx(1.96 * MEASURED["H200 SXM"].processes)
    assert cell.latency_interval == pytest.approx((math.exp(-half), math.exp(half)))
    for times in ((1.0,), (0.0, 0.0), (1.0, math.inf), (math.nan, 1.0)):
        assert cells([run([replace(one, measurements=measurements(time=times))])])[0].latency_interval is None


def test_what_is_not_finite_is_no_value_and_no_ceiling() -> None:
    odd = ok(case(), "triton", 300.0, clock_held=math.nan, ceiling_matmul=(math.inf, 6e14), ceiling_copy=math.nan)
    (cell,) = cells([run([odd])])
    assert (cell.rates.ceiling, cell.rates.copy) == (6e14, None)
    assert (cell.value("clock_held"), cell.rounds("clock_held")) == (None, {})
    assert not cell.held_down


@pytest.mark.parametrize(("spec", "ranked"), [("/mine.py:fast", False), ("attnbench.backends.sdpa:Flash", True)])
def test_what_beats_a_matmul_twice_stores_its_results_only_where_it_is_a_persons(spec: str, ranked: bool) -> None:
    """A rate over twice a matmul's shows stored results of a person's backend; of attnbench's own, a slowed matmul."""
    slow = {"ceiling_matmul": 100e12}
    (cell,) = cells([run([ok(case(), "fast", 400, **slow)], specs={"fast": spec})])
    assert cell.is_ranked == ranked
