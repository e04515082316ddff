"""Decisions look by look: each spends its share, settled cells stay settled, and too few pairs decide nothing."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]

from attnbench.analysis.gate.hypothesis_tests import FDR, decide
from attnbench.analysis.gate.repeated_looks import decide_in_looks
from attnbench.analysis.gate.rounds import Rounds
from attnbench.run.ab.schedule import LOOKS

FIRST = LOOKS[0]


def cell(
    change: float = 0.0, noise: float = 0.001, pairs: int = LOOKS[-1], seed: int = 0, margin: float = 0.03
) -> Rounds:
    rng = np.random.default_rng(seed)
    level = np.cumsum(rng.normal(0.0, 0.01, pairs))  # of the machine: in both
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
    """A difference that is a regression at the full error rate is none at a seventh of it."""
    values = [0.05 + 0.006 * z for z in (-1.2, -0.3, 0.4, 1.1)]
    one = Rounds([0.0] * FIRST, values, 0.03, "latency", paired=True)
    shares = [decide([one], share)[0] for share in (1.0, 1 / len(LOOKS))]
    assert shares[0].verdict == "regressed"
    assert shares[1].verdict == "inconclusive"
    assert decide_in_looks([one])[0][0].verdict == "inconclusive"
    (low, narrow), (lower, wide) = ((d.low, d.high) for d in shares)
    assert low is not None
    assert lower is not None
    assert lower < low
    assert (wide or 0) > (narrow or 0)


def test_settled_cells_count_among_the_hypotheses() -> None:
    """Of 50 cells 49 are settled; the last one must pass the threshold for one in 50."""
    rest = [cell(seed=i, pairs=FIRST) for i in range(1, 50)]
    one = cell(0.045, noise=0.002, pairs=FIRST)
    (alone, *_), (among, *_) = decide([one]), decide([replace(one, family="own"), *rest], 1.0, [False] + [True] * 49)
    assert alone.low is not None
    assert among.low is not None
    assert among.low < alone.low


def test_a_look_that_comes_early_takes_what_is_there() -> None:
    assert decide_in_looks([cell(0.1, pairs=3)])[0][1] == 3
    assert decide_in_looks([cell(0.1, pairs=3)])[0][0].verdict == "regressed"


def test_one_pair_or_two_decide_nothing_that_is_noisy() -> None:
    for pairs in (1, 2):
        decision, n = decide_in_looks([cell(0.5, pairs=pairs)])[0]
        assert (decision.verdict, decision.noise, decision.low, n) == ("inconclusive", None, None, pairs)
    exact = Rounds([0.0], [0.5], 0.01, "", paired=True)
    assert decide_in_looks([exact])[0][0].verdict == "regressed"


def test_three_noisy_pairs_have_the_interval_of_student_at_two_degrees_of_freedom() -> None:
    """Which is a factor of 54,000 here: the level of a look is a seventh of the error rate."""
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
