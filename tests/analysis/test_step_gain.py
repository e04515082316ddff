"""The gain of a faster attention kernel in a step: the arithmetic, and documents of runs with known answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

import builders
from attnbench.analysis.step.document import document
from attnbench.analysis.step.findings import Timed, amdahl
from attnbench.core.case import Case, Shape
from attnbench.core.record import Record, Run

TEXT = "prefill llama-3.1-8b 4/32 arch=llama hidden=4096 intermediate=14336 vocab=128256"
STEP = Case(Shape(1, 4096, 4096, 32, 8, 128, 128), "bf16", "fwd", True, step=TEXT)


def timed(latency: float, attention: float | None, idle: float = 0.0) -> Timed:
    return Timed(cast(Any, None), latency, attention, idle)


def test_a_prediction_takes_the_attention_of_another_step() -> None:
    slow, fast = timed(10.0, 4.0), timed(7.1, 1.0)
    assert slow.predicted(fast) == pytest.approx(7.0)
    assert slow.off(fast) == pytest.approx(7.0 / 7.1 - 1)
    assert slow.share == 0.4
    assert timed(10.0, None).off(fast) is None
    assert (amdahl(0.3), amdahl(1.0, 2.0)) == (pytest.approx(1 / (0.7 + 0.2)), 2.0)
    assert timed(11.0, 4.0, idle=1.0).predicted(fast) == pytest.approx(7.0)
    assert slow.predicted(timed(7.5, 1.0, idle=0.5)) == pytest.approx(7.5)


def step(backend: str, latency: float, attention: float, traced: float, **changes: Any) -> Record:
    taken = builders.measurements(time=[latency] * 10, attention=attention, step_traced=traced)
    return Record(STEP, backend, 0, "ok", measurements=taken, timer="events", l2="cold", **changes)


def run(*steps: tuple[str, float, float]) -> Run:
    """Return a run of STEP from (backend, latency, attention's time in a traced step of this latency)."""
    records = [step(backend, latency, attention, latency) for backend, latency, attention in steps]
    return builders.run(records, peak={"bf16": 1e16})  # the times are invented


def test_the_answer_says_what_a_faster_kernel_is_worth() -> None:
    shown = document([run(("step-eager", 10e-3, 4e-3), ("step-sdpa", 7e-3, 1e-3), ("step-flex_attention", 9e-3, 2e-3))])
    (answer,) = shown.answer
    assert "7.00 ms with step-sdpa, the fastest of 3. Attention is 14% of it" in answer
    assert "a kernel 1.5x faster makes the step 1.05x faster" in answer
    assert "From step-eager to it: predicted 7.00 ms, measured 7.00 ms" in answer
    rows = {row["backend"]: row for row in shown.rows}
    assert rows["step-flex_attention"]["off"] == pytest.approx(8 / 7 - 1)
    assert rows["step-sdpa"]["attention_share"] == pytest.approx(1 / 7)
    (caution,) = shown.cautions
    assert "step-flex_attention" in caution.what
    assert "step-eager" not in caution.what


def test_a_step_that_ties_or_is_hardly_known_is_not_called_the_fastest() -> None:
    (tied,) = document([run(("step-eager", 7.01e-3, 4e-3), ("step-sdpa", 7e-3, 1e-3))]).answer
    assert "7.00 ms with step-sdpa, alike within the uncertainty with step-eager. Attention" in tied
    loud = replace(step("step-sdpa", 7e-3, 1e-3, 7e-3), measurements=builders.measurements(time=[1e-3, 5e-3, 9e-2]))
    with_eager = builders.run([loud, step("step-eager", 9e-3, 4e-3, 9e-3)], peak={"bf16": 1e16})
    (unknown,) = document([with_eager]).answer
    assert "5.00 ms with step-sdpa; step-sdpa may be faster, since it is known to ±566% only." in unknown


def test_time_of_kernels_is_scaled_where_tracing_slowed_them() -> None:
    (row,) = document([builders.run([step("step-sdpa", 10e-3, 4e-3, 20e-3)])]).rows
    assert row["attention_time"] == pytest.approx(2e-3)


def test_the_device_is_idle_where_its_kernels_take_less_than_the_step() -> None:
    steps = [step("step-eager", 11e-3, 4e-3, 10e-3), step("step-sdpa", 7e-3, 1e-3, 7e-3)]
    rows = {row["backend"]: row for row in document([builders.run(steps)]).rows}
    assert rows["step-eager"]["idle_time"] == pytest.approx(1e-3)
    assert rows["step-sdpa"]["idle_time"] == 0
    assert rows["step-eager"]["off"] == pytest.approx(0)


@pytest.mark.parametrize(("traced", "told"), [(9e-3, True), (9.9e-3, False), (10e-3, False)])
def test_a_host_bound_step_is_told_unless_its_kernels_ran_all_the_time(traced: float, told: bool) -> None:
    """A step is host-bound unless its kernels ran all the time; then the host only waits for a full queue."""
    shown = document([builders.run([step("step-eager", 10e-3, 4e-3, traced, host_bound=True)])])
    assert any("host launched too slowly" in caution.what for caution in shown.cautions) == told
