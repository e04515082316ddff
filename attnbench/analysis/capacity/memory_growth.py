"""The growth of memory with a size: a + b n + c n^2, of which the terms are kept that the Bayesian criterion keeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

FLOOR = 1e-6  # mean squared relative residual, below which a better fit means nothing (rounding to blocks)
VISIBLE = 0.1  # share of the memory at the largest size, from which the quadratic term names the growth


@dataclass(frozen=True)
class Growth:
    """A fit of bytes over size: a + b n + c n^2, none of them negative."""

    a: float
    b: float
    c: float
    largest: int  # the largest size of the fit

    @property
    def name(self) -> Literal["constant", "linear", "quadratic"]:
        """The term that matters at the largest size."""
        total = self.at(self.largest)
        if self.c * self.largest**2 > VISIBLE * total:
            return "quadratic"
        return "linear" if self.b * self.largest > VISIBLE * total else "constant"

    def at(self, size: float) -> float:
        """Return the bytes of a size."""
        return self.a + self.b * size + self.c * size**2


def fit_growth(points: Sequence[tuple[int, float]]) -> Growth | None:
    """Return the fit of (size, bytes) by least squares of relative residuals; None for fewer than three sizes."""
    points = sorted(dict(points).items())
    if len(points) < 3:
        return None
    sizes, values = np.array(points, float).T
    largest, number = points[-1][0], len(points)
    columns = (sizes[:, None] / largest) ** np.arange(3) / values[:, None]
    fits = []
    for terms in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        own = columns[:, terms]
        found, _, rank, _ = np.linalg.lstsq(own, np.ones(number))
        if len(terms) < number and rank == len(terms) and min(found) >= 0:
            mean = float(np.mean((own @ found - 1) ** 2)) + FLOOR
            score = number * math.log(mean) + len(terms) * math.log(number)
            fits.append((score, dict(zip(terms, found.tolist(), strict=True))))
    _, best = min(fits, key=lambda fit: fit[0])
    a, b, c = (best.get(power, 0.0) / largest**power for power in range(3))
    return Growth(a, b, c, largest)
