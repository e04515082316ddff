"""A gate with noise that rounds hardly show: bad rounds, two speeds, coarse timers, other runs and other cards."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from attnbench.analysis.gate.findings import Judgement, Request, judge
from attnbench.analysis.gate.hypothesis_tests import decide
from attnbench.analysis.gate.margins import UNITS, Margins, between_units
from attnbench.analysis.gate.metric_findings import disturbed_rounds
from attnbench.analysis.gate.rounds import Rounds, smallest_tick
from attnbench.analysis.gate.two_speeds import jump
from attnbench.analysis.gate.verdicts import Decision
from attnbench.core.record import Record, Run
from attnbench.results import run_file
from attnbench.results.cells import cells
from attnbench.results.noise import MIN_SCATTER, between_runs
from attnbench.results.uncertainty import MEASURED
from builders import CPU, H200, case, ok, run

M = math.log1p(0.03)
CELLS = 30


def quiet(rng: random.Random, n: int = 5, by: float = 0.0) -> list[float]:
    return [rng.gauss(by, 0.001) for _ in range(n)]


def rounds_of(rng: random.Random, changes: Sequence[float], n: int = 5) -> list[Rounds]:
    return [Rounds(quiet(rng, n), quiet(rng, n, by), 0.03, "latency") for by in changes]


# Disturbed rounds


def measured(bad: int | None = None, slower: float = 1.05) -> list[Record]:
    """Return five rounds of each cell; in one round a third of the cells is slower."""
    rng = random.Random(1)
    return [
        ok(case(128 * (c + 1)), "triton", 300 * rng.gauss(1, 0.001) / (slower if at == (bad, 0) else 1), round=n)
        for n in range(5)
        for c in range(CELLS)
        for at in [(n, c % 3)]
    ]


def another(change: Callable[[Record], float]) -> list[Record]:
    """Return the same rounds with the times changed by `change`."""
    return [ok(r.case, "triton", 300 / change(r), round=r.round) for r in measured()]


def gate(before: Sequence[Record], after: Sequence[Record]) -> Judgement:
    return judge(run(before), run(after), Request(("latency",)))


@pytest.mark.parametrize("side", ["baseline", "current run"])
def test_a_disturbed_round_is_named_first_and_decides_nothing(side: str) -> None:
    bad, good = measured(3), measured()
    found = gate(bad, good) if side == "baseline" else gate(good, bad)
    assert {f.rounds for f in found.findings} == {(5, 5)}
    assert {f.verdict for f in found.findings} <= {"unchanged", "inconclusive"}
    said = f"Round 3 of the {side} differs in the latency of 10 of 30 cells, the others agree. "
    assert said + "Measure it again with attnbench run --resume FILE --again 3." in found.first


def test_two_slow_rounds_of_five_are_no_pass_and_no_regression() -> None:
    """Two rounds of five that are slow by a factor of two in all cells lead to neither pass nor regression."""
    slow = [ok(r.case, "triton", 150 if r.round in (1, 3) else 300, round=r.round) for r in measured()]
    for before, after in ((measured(), slow), ([r for r in measured() if r.round < 3], slow)):
        told = gate(before, after)
        assert {f.verdict for f in told.findings} == {"inconclusive"}
        assert (
            "Rounds 1 and 3 of the current run differ from its others in the latency of 30 of 30 cells" in told.first[0]
        )
        earlier = [run(before) for _ in range(2)]
        found = judge(run(before), run(after), Request(("latency",)), earlier)
        assert {f.verdict for f in found.findings} == {"inconclusive"}


def test_a_round_that_was_measured_again_is_told() -> None:
    good = measured()
    again = [ok(r.case, "triton", 300, round=2) for r in good if r.round == 2]
    told = "The current run has figures that were measured again, of which the later count: round 2 in 30 cells."
    repeated = run_file.with_records(run(good), [*good, *again])
    assert told in judge(run(good), repeated, Request(("latency",))).first
    assert gate(good, good).first == ()


def test_a_run_that_changed_is_not_disturbed() -> None:
    """Rounds that agree with each other are not disturbed, even if they differ from the baseline."""
    found = gate(measured(), another(lambda _: 1.1))
    assert {f.verdict for f in found.findings} == {"regressed"}
    assert not any(note.startswith("Round") for note in found.notes)


def test_which_rounds_are_disturbed() -> None:
    alike = [dict(enumerate([0.0] * 5))] * 20
    once = [{**cell, 2: 0.05} for cell in alike]
    assert disturbed_rounds(once, [0.03] * 20) == {2: 20}
    assert disturbed_rounds(once, [0.2] * 20) == {}  # the change is less than half the margin
    assert disturbed_rounds(once[:5], [0.03] * 5) == {}  # five cells may fall on one round of five by chance
    assert disturbed_rounds(once[:6], [0.03] * 6) == {2: 6}
    twice = [{**cell, (4 if i % 2 else 2): 0.05} for i, cell in enumerate(alike * 2)]
    assert disturbed_rounds(twice, [0.03] * 40) == {2: 20, 4: 20}
    scattered = [{**cell, i % 5: 0.05} for i, cell in enumerate(alike)]
    assert disturbed_rounds(scattered, [0.03] * 20) == {}
    assert disturbed_rounds([{0: 0.0, 1: 0.05}] * 20, [0.03] * 20) == {}  # either could be the disturbed one


# Two speeds


def test_the_count_of_differing_cells_is_of_those_that_could_explain_the_change() -> None:
    rng = random.Random(1)

    def test_of(apart: float, by: float = 0.0) -> Rounds:
        """Return a cell whose runs of the baseline differ by `apart`, and whose current run differs by `by`."""
        return Rounds(quiet(rng, 5, apart), quiet(rng, 5, by), 0.03, "latency", earlier=(quiet(rng), quiet(rng)))

    found = decide([test_of(0.0, 0.12), *map(test_of, (0.06, 0.03, 0.01, *[0.0] * 60))])
    assert (found[0].verdict, found[0].jumped) == ("inconclusive", 1)  # 0.03 and 0.01 are below a third of 0.12


def test_a_jump_is_two_groups_of_values_on_one_side() -> None:
    slow = jump([0.0, 0.001, 0.05, 0.051, 0.0], [0.0, 0.0, 0.0, 0.0, 0.05], M)
    assert slow is not None
    assert (slow.size, slow.slower) == (pytest.approx(0.05), 0.3)
    assert jump([0.0, 0.0, 0.0, 0.0, 0.02], [0.0] * 5, M) is None  # within the margin
    assert jump([0.0, 0.02, 0.04, 0.06, 0.1], [0.0] * 5, M) is None  # noise


def among_jumping(n: int, by: float) -> Decision:
    rng = random.Random(2)
    jumping = [
        Rounds(*([value + rng.choice((0.0, 0.06)) for value in quiet(rng, n)] for _ in "ab"), 0.03, "latency")
        for _ in range(12)
    ]
    return decide([*rounds_of(rng, [by, *[0.0] * 60], n), *jumping])[0]


def test_a_change_as_large_as_the_jumps_of_others_needs_more_rounds() -> None:
    found = among_jumping(5, 0.055)
    assert (found.verdict, found.more) == ("inconclusive", 1)
    assert 10 <= found.jumping <= 12
    assert found.low is not None
    assert found.low <= 0
    assert among_jumping(6, 0.055).verdict == "regressed"
    assert among_jumping(5, 0.12).verdict == "regressed"
    assert among_jumping(5, -0.055).verdict == "inconclusive"


def test_the_first_round_that_fills_a_cache_is_no_speed() -> None:
    first = [[5.0, *quiet(random.Random(i), 3)] for i in range(30)]
    slower = [[value + 0.7 for value in rounds] for rounds in first]
    found = decide([Rounds(*sides, 0.5, "first_call", True, cached=True) for sides in zip(first, slower, strict=True)])
    assert {d.verdict for d in found} == {"regressed"}


# Timers


def test_the_step_of_a_timer_is_found_in_its_readings() -> None:
    rng = random.Random(3)
    ticks = [[3e-6 * round(value / 3e-6 + rng.gauss(0, 2)) for _ in range(50)] for value in (4e-5, 1e-3, 0.2)]
    assert smallest_tick(ticks) == pytest.approx(3e-6)
    assert smallest_tick([[rng.gauss(1e-3, 1e-5) for _ in range(200)]]) < 1e-7
    assert smallest_tick([[1.0] * 5, [2.0] * 5]) == 0


def test_ties_are_no_certainty_where_a_timer_rounds() -> None:
    def of(step: float) -> str:
        return decide([Rounds([0.0] * 5, [0.06] * 5, 0.03, "latency", tick=step)] * 100)[0].verdict

    assert (of(0.0), of(0.01), of(0.06)) == ("regressed", "regressed", "inconclusive")


# Runs and units


def test_the_scatter_between_runs_is_seen_in_the_changes() -> None:
    rng = np.random.default_rng(4)
    variances = np.full(200, 0.001**2)
    for deviation in (0.005, 0.02):
        found = [between_runs(rng.normal(0, deviation, 200), variances) for _ in range(50)]
        assert np.sqrt(np.mean(found)) == pytest.approx(deviation, rel=0.15)
    assert np.sqrt(np.mean([between_runs(rng.normal(0, 0.001, 200), variances) for _ in range(50)])) < 0.0005
    assert between_runs(rng.normal(0, 0.02, MIN_SCATTER - 1), variances[: MIN_SCATTER - 1]) == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        [0.1] * CELLS,  # all alike
        [0.006 * i for i in range(CELLS)],  # all slower, each in its way
        [*[-0.02 * i for i in range(15)], *[0.0] * 14, 0.1],  # half of them faster, each in its way
        [*[(-1) ** i * 0.02 * i for i in range(15)], *[0.0] * 14, 0.1],  # half of them changed in both ways
    ],
)
def test_real_changes_are_no_scatter(changes: list[float]) -> None:
    for by, found in zip(changes, decide(rounds_of(random.Random(5), changes)), strict=True):
        if by > 0.06:
            assert found.verdict == "regressed"


def test_a_gate_says_that_cells_scatter_between_the_runs() -> None:
    rng = random.Random(6)
    found = decide(rounds_of(rng, [rng.gauss(0, 0.015) for _ in range(100)]))
    assert {d.verdict for d in found} <= {"unchanged", "inconclusive"}
    assert found[0].between == pytest.approx(0.015, rel=0.4)
    after = another(lambda record: random.Random(record.case.shape.seqlen_k).gauss(1, 0.02))
    (note,) = [note for note in gate(measured(), after).notes if note.startswith("Cells differ between the runs by")]
    assert "attnbench ab, which measures in turns" in note


def test_what_all_cells_have_in_common_calls_none_unchanged() -> None:
    """After a common change no cell is unchanged: if all are 0.5 % faster, one at 2.7 % slower may exceed 3 %."""
    rng = random.Random(7)
    found = decide(rounds_of(rng, [M - 0.005, *[-0.005] * 40]))
    assert [d.verdict for d in found] == ["inconclusive", *["unchanged"] * 40]
    assert decide(rounds_of(rng, [M - 0.005, *[0.0] * 40]))[0].verdict == "unchanged"


def on_unit(uuid: str | None) -> Run:
    return run(measured(), device=replace(H200, uuid=uuid))


def test_a_margin_below_what_units_differ_by_counts_as_that() -> None:
    units = between_units(on_unit("a"), on_unit("b"))
    assert units == MEASURED["H200 SXM"].cards
    assert not any(between_units(on_unit("b"), on_unit("b")))
    margins = Margins({"latency": 0.01}, (("triton 256*", {"latency": 0.08}),), units=units)
    apart = margins.of("latency", "triton 128 d128")
    assert apart == pytest.approx(math.expm1(UNITS * math.sqrt(2) * units.units(1.0)))
    assert apart == pytest.approx(0.0601, abs=1e-4)
    assert margins.of("latency", "triton 128 d128", load=0.0) == pytest.approx(0.0185, abs=1e-4)
    assert margins.of("latency", "triton 256 d128") == 0.08
    assert margins.of("memory_peak", "triton 128 d128") == 0.01
    found = judge(on_unit("a"), on_unit("b"), Request(("latency",), Margins({"latency": 0.01})))
    loads = [cell.load for cell in cells([on_unit("b")])]
    assert {f.margin for f in found.findings} == {margins.of("latency", "", load) for load in loads}
    assert any("cells of two units differ by up to 6%" in note for note in found.notes)


def test_a_unit_that_is_not_known_may_be_another() -> None:
    found = judge(on_unit("a"), on_unit(None), Request(("latency",), Margins({"latency": 0.01})))
    known = judge(on_unit("a"), on_unit("b"), Request(("latency",), Margins({"latency": 0.01})))
    assert [f.margin for f in found.findings] == [f.margin for f in known.findings]
    assert any("may be of two units of this GPU model, as the current run has no UUID" in note for note in found.notes)
    assert not any(between_units(run(measured(), device=CPU), run(measured(), device=CPU)))
