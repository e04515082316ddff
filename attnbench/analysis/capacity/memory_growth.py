"""The growth of memory with a size: a + b n + c n^2, of which the terms are kept that the Bayesian criterion keeps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    largest = points[-1][0]
    fits = []
    for terms in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
        if len(terms) >= len(points):
            continue
        rows = [[(size / largest) ** power / value for power in terms] for size, value in points]
        found = _least_squares(rows)
        if found is None or min(found) < 0:
            continue
        residuals = [sum(x * f for x, f in zip(row, found, strict=True)) - 1 for row in rows]
        mean = sum(r * r for r in residuals) / len(points) + FLOOR
        score = len(points) * math.log(mean) + len(terms) * math.log(len(points))
        fits.append((score, dict(zip(terms, found, strict=True))))
    if not fits:
        return None
    terms_of = min(fits, key=lambda fit: fit[0])[1]
    a, b, c = (terms_of.get(power, 0.0) / largest**power for power in range(3))
    return Growth(a, b, c, largest)


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Return x that makes each row times x as near to 1 as can be; None where the rows do not tell."""
    n = len(rows[0])
    m = [[sum(r[i] * r[j] for r in rows) for j in range(n)] + [sum(r[i] for r in rows)] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(m[k][i]))
        m[i], m[pivot] = m[pivot], m[i]
        if not m[i][i]:
            return None
        for k in range(n):
            if k != i:
                factor = m[k][i] / m[i][i]
                m[k] = [x - factor * y for x, y in zip(m[k], m[i], strict=True)]
    return [m[i][n] / m[i][i] for i in range(n)]
