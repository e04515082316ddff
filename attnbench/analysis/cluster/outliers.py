"""How far a unit must lie from the median of its model to be an outlier among so many.

**What units differ by** is a standard deviation of the logarithm of a unit's latency. Its variance is moderated
(results/noise.py) from two sources: the table (results/spreads.json: units, and beside them what other processes on the
card would find), and the units themselves, by Qn (Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation",
JASA 88, 1993), which up to half of them may spoil. With three units it is the table's, with hundreds their own.

**The threshold** is Student's t at FALSE_ALARM over all units, families of cells and both directions (Bonferroni),
times that deviation; the median of the model is not known exactly either, which widens it. Two units that differ tell
nothing of which is off: LEAST units are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.core import stats
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN

LEAST = 3  # units of a model
FALSE_ALARM = 0.01  # of a report on units that are all alike
MEASURED_FREEDOM = 8.0  # of the table's entry for a device: that of the H200 is from nine cards of one method
OWN_FREEDOM = 0.8  # degrees of freedom of Qn, a unit after the first: its efficiency is 82 %
LEAST_NOISE = 1e-3  # relative: what repeats better is not more alike for it
FOUND = 1.645  # 95 % quantile of the normal distribution
_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}  # Qn's corrections


@dataclass(frozen=True)
class Judgement:
    """What units of one model show in one family of cells, as logarithms."""

    middle: float
    deviation: float  # the standard deviation between units
    threshold: float  # beyond it, on either side of the middle, is an outlier
    own_share: float  # of the variance's degrees of freedom, that of the units themselves

    @property
    def found(self) -> float:
        """By how much slower a unit is that is found in 95 % of such clusters."""
        return self.threshold + FOUND * self.deviation


def judge(figures: Sequence[float], table: float, measured: bool, tests: int) -> Judgement | None:
    """Return the judgement on units from the logarithm of each one's latency; None below LEAST units.

    `table` is the standard deviation that the table states, `measured` on this device or assumed. `tests` is how many
    units times families are judged in the report.
    """
    if len(figures) < LEAST:
        return None
    from scipy import special  # type: ignore[import-untyped]

    prior = Prior(max(table, LEAST_NOISE) ** 2, MEASURED_FREEDOM if measured else FREEDOM)
    own = OWN_FREEDOM * (len(figures) - 1)
    variance, freedom = moderated(qn(figures) ** 2, own, prior)
    deviation = max(math.sqrt(variance), LEAST_NOISE)
    quantile = float(special.stdtrit(freedom, 1 - FALSE_ALARM / (2 * tests)))
    of_middle = math.sqrt(1 + MEDIAN**2 / len(figures))
    return Judgement(stats.median(figures), deviation, quantile * deviation * of_middle, own / freedom)


def qn(values: Sequence[float]) -> float:
    """Return Rousseeuw and Croux's Qn: the standard deviation from the first quartile of all distances."""
    import numpy as np

    n = len(values)
    half = n // 2 + 1
    ordered = np.sort(np.asarray(values, float))
    distances = np.concatenate([ordered[i:] - ordered[:-i] for i in range(1, n)])
    place = half * (half - 1) // 2 - 1
    small = _SMALL.get(n) or (n / (n + 1.4) if n % 2 else n / (n + 3.8))
    return float(2.2219 * small * np.partition(distances, place)[place])
