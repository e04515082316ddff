"""The statistics of a gate, with one interim look and with several, against textbook values and scipy's tests."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as reference
from scipy import stats as scipy_stats

from attnbench.analysis.gate.hypothesis_tests import EQUIVALENCE, FDR, decide
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.rounds import Rounds
from attnbench.results.noise import MIN_CELLS, Prior, moderated, prior_from_changes, prior_from_variances
from attnbench.run.ab.schedule import LOOKS

M = math.log1p(0.03)
QUIET = (-0.001, 0.001, 0.0, 0.0005, -0.0005)


def shifted(by: float, values: tuple[float, ...] = QUIET) -> list[float]:
    return [v + by for v in values]


def one(by: float, margin: float = 0.03, values: tuple[float, ...] = QUIET, **more: bool) -> str:
    return decide([Rounds(list(values), shifted(by, values), margin, "latency", **more)])[0].verdict


@pytest.mark.parametrize("paired", [False, True])
def test_the_p_values_are_those_of_students_test(paired: bool) -> None:
    """A single cell regresses exactly from the shift at which scipy's test against the margin gives FDR."""
    rng = random.Random(3)
    x, y = ([rng.gauss(0, 0.01) for _ in range(n)] for n in (5, 5 if paired else 4))
    test = reference.ttest_rel if paired else reference.ttest_ind

    def p(shift: float) -> float:
        return float(test([v + shift - M for v in y], x, alternative="greater").pvalue)

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p(middle) > FDR else (low, middle)
    shifts = (low - 1e-6, high + 1e-6)
    just = [decide([Rounds(x, [v + shift for v in y], 0.03, "latency", paired)])[0] for shift in shifts]
    assert [d.verdict for d in just] == ["inconclusive", "regressed"]
    assert just[1].low == pytest.approx(0.03, abs=1e-5)


def test_equivalence_is_two_one_sided_tests() -> None:
    rng = random.Random(4)
    x, y = ([rng.gauss(0, 0.01) for _ in range(5)] for _ in range(2))
    for shift in (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, -0.02):
        moved = [v + shift for v in y]
        lower = reference.ttest_ind(moved, [v - M for v in x], alternative="greater").pvalue
        upper = reference.ttest_ind(moved, [v + M for v in x], alternative="less").pvalue
        shown = decide([Rounds(x, moved, 0.03, "latency")])[0].verdict == "unchanged"
        assert shown == (max(lower, upper) <= EQUIVALENCE)


def test_many_cells_are_corrected_for() -> None:
    """A cell with a p value between FDR / 10 and FDR is no regression beside 9 unchanged cells."""
    noisy = (-0.01, 0.01, 0.0, 0.005, -0.005)
    by = M + 0.018
    slow = Rounds(list(noisy), shifted(by, noisy), 0.03, "latency")
    same = Rounds(list(noisy), list(noisy), 0.03, "other")
    assert decide([slow])[0].verdict == "regressed"
    assert decide([slow] + [same] * 9)[0].verdict == "inconclusive"
    turned = [noisy[i:] + noisy[:i] for i in range(5)]
    many = [Rounds(list(turned[i]), shifted(by, turned[2 * i % 5]), 0.03, "latency") for i in range(5)] * 2
    assert {d.verdict for d in decide(many)} == {"regressed"}  # each is more credible where many worsened


def test_tests_without_noise_do_not_dilute_the_others() -> None:
    noisy = (-0.01, 0.01, 0.0, 0.005, -0.005)
    slow = Rounds(list(noisy), shifted(M + 0.018, noisy), 0.03, "latency")
    exact = Rounds([1.0] * 5, [1.0] * 5, 0.01)
    assert decide([slow] + [exact] * 300)[0].verdict == "regressed"


def test_values_that_tie_are_exact() -> None:
    found = decide([Rounds([0.0] * 5, [by] * 5, 0.01) for by in (0.0, 0.009, 0.011, -0.011)])
    assert [d.verdict for d in found] == ["unchanged", "unchanged", "regressed", "improved"]
    assert [(d.low, d.high) == (d.change, d.change) for d in found] == [True] * 4
    assert decide([Rounds([0.0], [0.0], 0.0)])[0].verdict == "unchanged"  # a margin of 0 allows no change


def test_pairs_cancel_what_a_round_has_in_common() -> None:
    """With a first round that fills a cache, unpaired sides are too noisy to decide; paired rounds do not differ."""
    cached = (2.0, 0.001, 0.0, 0.002, -0.001)
    assert one(0.0, values=cached) == "inconclusive"
    assert one(0.0, values=cached, paired=True) == "unchanged"
    assert one(0.06, values=cached, paired=True) == "regressed"
    assert one(-0.06, values=cached, paired=True) == "improved"
    once = [Rounds(list(cached), [0.5, *cached[1:]], 0.5, "first_call", paired=True)]
    assert decide(once)[0].verdict == "inconclusive"  # one pair of five differs


def test_one_pair_decides_nothing_however_many_cells() -> None:
    rng = random.Random(5)
    cells = [Rounds([0.0], [rng.gauss(0, 0.001)], 0.5, "first_call", paired=True) for _ in range(100)]
    cells[0] = Rounds([0.0], [3.0], 0.5, "first_call", paired=True)
    found = decide(cells)
    assert {d.verdict for d in found} == {"inconclusive"}
    assert found[0].low is None


def test_one_round_a_side_borrows_its_noise_from_the_other_cells() -> None:
    rng = random.Random(6)
    some = [Rounds([0.0], [rng.gauss(0, 0.002)], 0.03, "latency") for _ in range(MIN_CELLS)]
    verdicts = [d.verdict for d in decide([*some, Rounds([0.0], [0.3], 0.03, "latency")])]
    assert verdicts == ["unchanged"] * MIN_CELLS + ["regressed"]
    few = decide([*some[:3], Rounds([0.0], [0.3], 0.03, "latency")])
    assert {d.verdict for d in few} == {"inconclusive"}
    assert all(d.low is None for d in few)


def test_more_rounds_of_the_current_run_alone_settle_what_a_long_baseline_leaves_open() -> None:
    """More rounds of the current run settle a cell only if the baseline is long; else the baseline's error remains."""
    wide, by = (-0.02, 0.02, 0.0, 0.015, -0.015), M + 0.018
    few, many = (decide([Rounds(list(wide) * n, shifted(by, wide), 0.03, "latency")])[0] for n in (1, 8))
    assert few.more is not None
    assert few.more_current is None
    assert many.more_current in range(1, 11)
    assert decide([Rounds(list(wide) * 8, shifted(by, wide * 3), 0.03, "latency")])[0].verdict == "regressed"


def test_no_number_of_rounds_settles_what_lies_at_the_margin() -> None:
    noisy = (-0.01, 0.01, 0.0, 0.005, -0.005)
    found = decide([Rounds(list(noisy), shifted(M + 1e-5, noisy), 0.03, "latency")])[0]
    assert (found.verdict, found.more) == ("inconclusive", None)


def test_no_number_of_rounds_is_asked_for_where_kernels_moved_with_those_that_nothing_changed() -> None:
    rng = random.Random(8)
    sides = [[[rng.gauss(by, 0.003) for _ in range(5)] for by in (0.0, 0.035)] for _ in range(30)]
    for found in decide([Rounds(*of, 0.03, "latency", control=i < 20) for i, of in enumerate(sides)]):
        assert (found.verdict, found.more, found.more_current) == ("inconclusive", None, None)
        assert found.in_common == pytest.approx(0.035, abs=0.005)


values = st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=6)


@settings(deadline=None)  # a busy machine may be slow
@given(st.lists(st.builds(Rounds, values, values, st.sampled_from((0.0, 0.01, 0.03, 0.5)), st.sampled_from(("", "a")))))
@example([Rounds([0.0], [0.0], 0.0), Rounds([0.0, 0.0, 0.0, -0.28, -0.19], [0.0, 0.0, 0.0, 0.3, 0.3], 0.5, "a")])
def test_the_interval_says_what_the_verdict_says(tests: list[Rounds]) -> None:
    for test, found in zip(tests, decide(tests), strict=True):
        if found.low is None or found.high is None:
            assert found.verdict == "inconclusive"
            continue
        assert found.low <= found.change <= found.high
        up, down, slack = test.margin, 1 / (1 + test.margin) - 1, 1e-9
        if found.verdict == "regressed":
            assert found.low >= up - slack
        elif found.verdict == "improved":
            assert found.high <= down + slack
        elif found.verdict == "unchanged":
            assert down - slack <= found.low <= found.high <= up + slack
        else:
            assert found.low <= up + slack
            assert found.high >= down - slack
            assert found.slow_rounds or found.high >= up - slack or found.low <= down + slack


@settings(deadline=None)  # a busy machine may be slow
@example([Rounds([0.0, 2e-05], [-0.029296875], 0.03, "a")])
@given(st.lists(st.builds(Rounds, values, values, st.just(0.03), st.just("a")), min_size=1))
def test_swapping_the_sides_swaps_the_verdicts(tests: list[Rounds]) -> None:
    mirror = {"regressed": "improved", "improved": "regressed"}
    swapped = decide([Rounds(t.current, t.baseline, t.margin, t.family) for t in tests])
    for found, other in zip(decide(tests), swapped, strict=True):
        if found.slow_rounds or other.slow_rounds:  # slow rounds of the current run prevent "unchanged"
            assert {found.verdict, other.verdict} <= {"unchanged", "inconclusive"}
        else:
            assert other.verdict == mirror.get(found.verdict, found.verdict)


@pytest.mark.parametrize(("freedom", "scale"), [(3.0, 0.002), (8.0, 0.01), (30.0, 1.0)])
def test_the_prior_finds_what_the_variances_were_drawn_from(freedom: float, scale: float) -> None:
    rng = random.Random(8)
    variances = []
    for _ in range(4000):
        sigma2 = scale**2 * freedom / rng.gammavariate(freedom / 2, 2)
        variances.append(sigma2 * rng.gammavariate(4, 2) / 8)
    found = prior_from_variances(variances, [8] * len(variances))
    assert found.freedom == pytest.approx(freedom, rel=0.25)
    assert math.sqrt(found.variance) == pytest.approx(scale, rel=0.05)


def test_the_prior_wants_enough_cells_that_vary() -> None:
    assert prior_from_variances([1.0] * (MIN_CELLS - 1), [8] * (MIN_CELLS - 1)) == Prior()
    assert prior_from_variances([0.0] * 30 + [1.0] * 25, [8] * 55) == Prior()  # most values are ties
    assert prior_from_variances([1.0] * 30, [0] * 30) == Prior()
    assert prior_from_changes([0.1] * (MIN_CELLS - 1), [2.0] * (MIN_CELLS - 1)) == Prior()
    assert prior_from_changes([0.1] * 30, [2.0] * 30) == Prior()  # equal changes show no noise


def test_moderation_is_the_mean_by_degrees_of_freedom() -> None:
    assert moderated(4.0, 8, Prior(1.0, 4.0)) == (3.0, 12.0)
    assert moderated(4.0, 8, Prior()) == (4.0, 8)
    assert moderated(0.0, 0, Prior(1.0, 4.0)) == (1.0, 4.0)
    assert moderated(0.0, 0, Prior()) == (0.0, 0.0)


FIRST = LOOKS[0]


def cell(
    change: float = 0.0, noise: float = 0.001, pairs: int = LOOKS[-1], seed: int = 0, margin: float = 0.03
) -> Rounds:
    rng = np.random.default_rng(seed)
    level = np.cumsum(rng.normal(0.0, 0.01, pairs))  # drift of the machine, on both sides
    a, b = (level + rng.normal(0.0, noise, pairs) for _ in range(2))
    return Rounds(a.tolist(), (b + math.log1p(change)).tolist(), margin, "latency", paired=True)


def test_what_is_clear_is_settled_at_the_first_look() -> None:
    found = decide_in_looks([cell(), cell(0.1), cell(-0.1)])
    assert [(d.verdict, n) for d, n in found] == [("unchanged", FIRST), ("regressed", FIRST), ("improved", FIRST)]


def test_what_is_settled_stays_as_it_was_whatever_comes_later() -> None:
    calm, other = cell(), cell(0.03, noise=0.01, seed=1)
    early = [replace(c, baseline=c.baseline[:FIRST], current=c.current[:FIRST]) for c in (calm, other)]
    (settled, _), (still_open, _) = decide_in_looks(early)
    assert (settled.verdict, still_open.verdict) == ("unchanged", "inconclusive")
    wild = replace(calm, current=[*calm.current[:FIRST], *(v + 1 for v in calm.current[FIRST:])])
    (found, n), (later, m) = decide_in_looks([wild, other])
    assert (found, n) == (settled, FIRST)
    assert m > FIRST
    assert later.noise != still_open.noise


def test_each_look_spends_its_share_alone() -> None:
    """Each look has its own share of the error rate: a regression at the full rate is none at a seventh of it."""
    values = [0.05 + 0.006 * z for z in (-1.2, -0.3, 0.4, 1.1)]
    one = Rounds([0.0] * FIRST, values, 0.03, "latency", paired=True)
    shares = [decide([one], share)[0] for share in (1.0, 1 / len(LOOKS))]
    assert shares[0].verdict == "regressed"
    assert shares[1].verdict == "inconclusive"
    assert decide_in_looks([one])[0][0].verdict == "inconclusive"
    assert (shares[1].high or 0) > (shares[0].high or 0)


def test_settled_cells_count_among_the_hypotheses() -> None:
    """Settled cells count as hypotheses too: the last open cell of 50 must pass the threshold for one of 50."""
    rest = [cell(seed=i, pairs=FIRST) for i in range(1, 50)]
    one = cell(0.045, noise=0.002, pairs=FIRST)
    (alone, *_), (among, *_) = decide([one]), decide([replace(one, family="own"), *rest], 1.0, [False] + [True] * 49)
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low


@pytest.mark.filterwarnings("error")
def test_a_change_beyond_all_floats_is_a_very_large_one() -> None:
    (decision,) = decide([Rounds([-11.0] * 5, [709.5] * 5, 0.03)])
    assert 1e300 < decision.change < math.inf


def test_one_pair_or_two_decide_nothing_that_is_noisy() -> None:
    for pairs in (1, 2):
        decision, n = decide_in_looks([cell(0.5, pairs=pairs)])[0]
        assert (decision.verdict, decision.noise, decision.low, n) == ("inconclusive", None, None, pairs)
    exact = Rounds([0.0], [0.5], 0.01, "", paired=True)
    assert decide_in_looks([exact])[0][0].verdict == "regressed"


def test_three_noisy_pairs_have_the_interval_of_student_at_two_degrees_of_freedom() -> None:
    """Three noisy pairs have Student's interval at two degrees of freedom: at a look's level a factor of 54,000."""
    differences = [1.0, -0.8, 0.9]
    ((found, pairs),) = decide_in_looks([Rounds([0.0] * 3, differences, 0.03, "latency", paired=True)])
    half = scipy_stats.t.ppf(1 - FDR / len(LOOKS), 2) * statistics.stdev(differences) / math.sqrt(3)
    assert (pairs, found.verdict) == (3, "inconclusive")
    assert found.low is not None
    assert found.high is not None
    mean = statistics.mean(differences)
    assert (found.low, found.high) == pytest.approx((math.expm1(mean - half), math.expm1(mean + half)))
    assert found.high > 5e4


def test_cells_with_few_pairs_leave_the_noise_of_the_others_alone() -> None:
    others = [cell(seed=i) for i in range(30)]
    few = [cell(seed=i, noise=0.5, pairs=2) for i in range(30, 60)]
    beside, alone = decide_in_looks([*others, *few])[:30], decide_in_looks(others)
    assert [d.noise for d, _ in beside] == [d.noise for d, _ in alone]
