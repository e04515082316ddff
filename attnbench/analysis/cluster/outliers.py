"""Computes the distance from its model's median beyond which a unit is an outlier (docs/dev/cluster.md).

**The spread of units** is the standard deviation of the logarithm of a unit's latency. Its variance is moderated
(results/noise.py) from two sources: the table (results/spreads.json: the spread between units, and the spread between
processes on one card), and the units themselves, by Qn (Rousseeuw and Croux, "Alternatives to the Median Absolute
Deviation", JASA 88, 1993).

**Far off** is a unit beyond Student's t at FALSE_ALARM over all units, families of cells and both directions
(Bonferroni), times that deviation. The limit is widened because the median of the model is not known exactly either.

**An outlier** is far off and apart from the others: the ratio of its distance from the median to the distance of the
farthest unit that is no outlier is one that Student's t with TAIL degrees of freedom shows in FALSE_ALARM of reports.
Where P(distance > x) falls as x^-TAIL or faster, the largest distance is r times the second with a probability of at
most r^-TAIL, as the logarithms of such distances are exponential (Renyi; David and Nagaraja, "Order Statistics", 3rd
ed. 2003, section 2.5). This needs no scale, and two groups of units are not apart. The distances of few units lie where
the tail falls more slowly; the factor n / (n - 2) allows for it (simulated).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from attnbench.core import stats
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN

LEAST = 3  # units of a model
FALSE_ALARM = 0.01  # probability that a report names an outlier where no unit has a fault
TAIL = 3  # degrees of freedom of the heaviest tail for which FALSE_ALARM holds
OUTLIERS = 1 / 4  # of the units at most; one in any case
OWN_FREEDOM = 0.8  # degrees of freedom of Qn, a unit after the first: its efficiency is 82 %
LEAST_NOISE = 1e-3  # relative: a floor for units whose figures repeat even better
FOUND = 1.645  # 95 % quantile of the normal distribution
_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}  # Qn's corrections


@dataclass(frozen=True)
class Judgement:
    """The spread and the limits of units of one model in one family of cells, as logarithms."""

    middle: float
    deviation: float  # the standard deviation between units
    far: float  # beyond it, on either side of the middle, a unit is far off
    threshold: float  # at least `far`: beyond it a unit is an outlier
    own_share: float  # the share of the variance's degrees of freedom that comes from the units themselves

    @property
    def found(self) -> float:
        """The slowdown with which a unit is an outlier in 95 % of such clusters."""
        return self.threshold + FOUND * self.deviation


def judge(figures: Sequence[float], table: float, tests: int) -> Judgement | None:
    """Return the judgement on units from the logarithm of each one's latency; None below LEAST units.

    `table`: the standard deviation from the table. `tests`: the number of units times families judged in the report.
    """
    if len(figures) < LEAST:
        return None
    # Units come in production lots: the spread of these may be half or twice a table's entry, even a measured one.
    prior = Prior(max(table, LEAST_NOISE) ** 2, FREEDOM)
    own = OWN_FREEDOM * (len(figures) - 1)
    variance, freedom = moderated(qn(figures) ** 2, own, prior)
    deviation = max(math.sqrt(variance), LEAST_NOISE)
    quantile = float(special.stdtrit(freedom, 1 - FALSE_ALARM / (2 * tests)))
    far = quantile * deviation * math.sqrt(1 + MEDIAN**2 / len(figures))
    middle = stats.median(figures)
    threshold = max(far, _apart([abs(figure - middle) for figure in figures], FALSE_ALARM * len(figures) / tests, far))
    return Judgement(middle, deviation, far, threshold, own / freedom)


def _apart(distances: Sequence[float], level: float, far: float) -> float:
    """Return the distance from the median beyond which a unit is apart from the units that are no outliers."""
    units = len(distances)
    ratio = math.pow(level, -1 / TAIL) * units / (units - 2)
    ordered = sorted(distances, reverse=True)
    outliers = range(max(1, int(OUTLIERS * units)), 0, -1)
    first = next((n for n in outliers if ordered[n - 1] > max(far, ratio * ordered[n])), 1)
    return ratio * ordered[first]


def qn(values: Sequence[float]) -> float:
    """Return Rousseeuw and Croux's Qn: the standard deviation from the first quartile of all distances."""
    n = len(values)
    half = n // 2 + 1
    ordered = np.sort(np.asarray(values, float))
    distances = np.concatenate([ordered[i:] - ordered[:-i] for i in range(1, n)])
    place = half * (half - 1) // 2 - 1
    small = _SMALL.get(n) or (n / (n + 1.4) if n % 2 else n / (n + 3.8))
    return float(2.2219 * small * np.partition(distances, place)[place])
