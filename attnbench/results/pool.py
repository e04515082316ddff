"""One value of each cell from all cards that measured it, and how much of it is theirs: a mixed model.

With y the logarithm of what card k measured of cell c, the median over its n rounds (latency or energy),

    y(c, k) = cell(c) + card(k) + load(c) loaded_card(k) + rest(c, k).

- **cell** is what is asked: a case on one backend, of one version and measuring method.
- **card** and **loaded_card** are normal with mean 0, and shared by all cells of a card whatever their backend: how it
  differs in any work, and how besides in work that the power limit slows, where a chip that draws less runs faster. The
  **load** of a cell is 0 up to LOADED_FROM of the datasheet's rate, 1 from LOADED_TO on, and linear between. Of 20 H200s
  and of 15 H100s in results/ cards differ by 0.2 % in any work and by 0.8 % more under full load.
- **rest** is how a card differs in this cell alone, by more under load, and the noise of n processes: that of one over
  n, times pi / 2 for a median of more than two.

Cells are fixed effects, cards random ones. Cells and cards are estimated together by Henderson's mixed model equations
(Henderson, "Best Linear Unbiased Estimation and Prediction under a Selection Model", Biometrics 31(2), 1975), with the
cells absorbed, so that what is solved is as large as twice the number of cards. A cell that only a fast card measured
is so corrected by what that card shows in cells that others measured too. Where no cell was measured by two cards the
value is that card's own.

The variances are those of the table by device (uncertainty.py), or where LEAST_CARDS cards or more measured cells in
common, estimated from these by restricted maximum likelihood (Patterson and Thompson, "Recovery of inter-block
information when block sizes are unequal", Biometrika 58(3), 1971) and joined with the table's (noise.py). Cells that
may hold something else than the card's speed (`Reading.informs`) take no part in that.

Any sum of cells is linear in y, with the weights of `Pool.weights`: a card's effect enters a geometric mean of a
hundred cells of one card as it enters one of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from attnbench.core import stats
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN, NORMAL, Cards, Spread, student

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]

LOADED_FROM, LOADED_TO = 0.3, 0.6  # of the datasheet's rate
LEAST_CARDS = 6  # that measured cells in common, to estimate the variances from them
LEAST = 1e-9  # a standard deviation, so that a device whose cards and processes are all alike has weights too

K = TypeVar("K", bound=Hashable)


class Card(NamedTuple):
    """One device; those of a model that no file names count as one."""

    model: str
    uuid: str | None


@dataclass(frozen=True)
class Reading:
    """What the cards of one machine measured of a cell, as natural logarithms."""

    rounds: Mapping[Card, Mapping[int, float]]  # card -> round -> value; a round is of one process a backend
    load: float = 1.0  # from 0 to 1
    informs: bool = True  # whether it tells how its cards differ


@dataclass(frozen=True)
class Variances:
    """What cards of a machine differ by."""

    deviations: Cards
    quantile: float = NORMAL  # of half a 95 % interval over these standard deviations
    estimated: bool = False  # from the cards at hand


class Pair(NamedTuple, Generic[K]):
    """A cell on a card."""

    key: K
    card: Card


class Pool(Generic[K]):
    """The cells of one model of device with one power limit, by all its cards."""

    def __init__(self, readings: Mapping[K, Reading], of: Spread) -> None:
        self.spread = of
        self._readings = readings
        self.pairs = [Pair(key, card) for key, reading in readings.items() for card in reading.rounds]
        self._at: dict[K, list[int]] = {}
        for i, pair in enumerate(self.pairs):
            self._at.setdefault(pair.key, []).append(i)

    @cached_property
    def values(self) -> Mapping[K, float]:
        """Cell -> the logarithm of its latency or energy on a card of the model."""
        import numpy as np

        if self._unconnected:
            return {key: float(self._y[at[0]]) for key, at in self._at.items()}
        left = self._y - self._loads @ (self._y @ self._cards_of)
        found = np.bincount(self._cell, self._mean * left)
        return dict(zip(self._at, found.tolist(), strict=True))

    def rounds(self, pair: int) -> Mapping[int, float]:
        """Return round -> value of one of `pairs`."""
        key, card = self.pairs[pair]
        return self._readings[key].rounds[card]

    def weights(self, weights: Mapping[K, float]) -> tuple[Integers, Floats]:
        """Return which of `pairs` count in a weighted sum of cells, and by how much.

        The weights of the pairs of a cell add up to that of the cell; those of cells that are not in the sum, which
        tell of its cards, add up to 0.
        """
        import numpy as np

        if self._unconnected:
            return np.array([self._at[key][0] for key in weights], int), np.array([*weights.values()], float)
        of_pairs = np.zeros(len(self.pairs))
        for key, weight in weights.items():
            at = self._at[key]
            of_pairs[at] = weight * self._mean[at]
        of_pairs -= self._cards_of @ (of_pairs @ self._loads)
        counted = np.flatnonzero(np.abs(of_pairs) > 1e-12)
        return counted, of_pairs[counted]

    def effects(self, weights: Mapping[K, float]) -> dict[Hashable, float]:
        """Return how far cards move a weighted sum, each part half a 95 % interval with the sign of its weight.

        Parts are independent, and named by card, and by cell where they are of one cell: those of one name in two sums
        are alike.
        """
        found: dict[Hashable, float] = {}
        known, quantile = self.variances.deviations, self.variances.quantile
        for i, weight in zip(*(part.tolist() for part in self.weights(weights)), strict=True):
            (key, card), load = self.pairs[i], self._readings[self.pairs[i].key].load
            found[card, "any work"] = found.get((card, "any work"), 0.0) + quantile * known.all * weight
            found[card, "under load"] = found.get((card, "under load"), 0.0) + quantile * known.loaded * load * weight
            found[card, key] = quantile * known.of_cell(load) * weight
        return found

    @cached_property
    def variances(self) -> Variances:
        """Those of the table, or of the cards at hand and the table."""
        table, number = self.spread.cards, self._cards_in_common
        if number < LEAST_CARDS:
            return Variances(table)
        freedom = number - 1.0
        found = reml(self._readings, self.spread)
        each = [_joined(ours, known, freedom) for ours, known in zip(found, table, strict=True)]
        return Variances(Cards(*each), student(FREEDOM + freedom), estimated=True)

    @property
    def _cards_in_common(self) -> int:
        """The number of cards that measured a cell which another measured too."""
        return len({card for reading in self._readings.values() if _tells(reading) for card in reading.rounds})

    # ---- The model as arrays, an entry for each pair.

    @cached_property
    def _unconnected(self) -> bool:
        """Whether no cell was measured by two cards."""
        return len(self._at) == len(self.pairs)

    @cached_property
    def _y(self) -> Floats:
        import numpy as np

        return np.array([stats.median([*self._readings[key].rounds[card].values()]) for key, card in self.pairs])

    @cached_property
    def _cell(self) -> Integers:
        import numpy as np

        return np.repeat(np.arange(len(self._at)), [len(at) for at in self._at.values()])

    @cached_property
    def _loads(self) -> Floats:
        """Pairs x effects: by how much an effect of a card is in each pair; first those in any work, then under load."""
        return _loads_of([(card, self._readings[key].load) for key, card in self.pairs])

    @cached_property
    def _precision(self) -> Floats:
        """One over the variance of each pair, without what its card's cells share."""
        import numpy as np

        process, known = max(self.spread.processes, LEAST), self.variances.deviations
        found = []
        for key, card in self.pairs:
            reading = self._readings[key]
            found.append(1 / (known.of_cell(reading.load) ** 2 + of_median(len(reading.rounds[card])) * process**2))
        return np.array(found)

    @cached_property
    def _mean(self) -> Floats:
        """The share of each pair in the value of its cell, once the effects of cards are taken out."""
        import numpy as np

        return self._precision / np.bincount(self._cell, self._precision)[self._cell]

    @cached_property
    def _cards_of(self) -> Floats:
        """What multiplies `_y` to give the effects of cards: pairs x effects."""
        import numpy as np

        informs = np.array([self._readings[key].informs for key, _ in self.pairs])
        known = self.variances.deviations
        deviations = np.repeat((known.all, known.loaded), self._loads.shape[1] // 2)
        absorbed, system = _mixed_model(self._cell, self._loads * deviations, self._precision * informs)
        return absorbed @ np.linalg.solve(system, np.diag(deviations))


def load(utilization: float | None) -> float:
    """Return the load of a cell that reaches a share of the datasheet's rate; the full load where that is not known."""
    share = 1.0 if utilization is None else (utilization - LOADED_FROM) / (LOADED_TO - LOADED_FROM)
    return min(1.0, max(0.0, share))


def of_median(rounds: int) -> float:
    """Return the variance of the median of normal values, over that of one of them; of one or two it is the mean."""
    return (MEDIAN**2 if rounds > 2 else 1.0) / rounds


def _tells(reading: Reading) -> bool:
    return reading.informs and len(reading.rounds) > 1


def _loads_of(pairs: Sequence[tuple[Card, float]]) -> Floats:
    import numpy as np

    known: dict[Card, int] = {}
    cards = np.array([known.setdefault(card, len(known)) for card, _ in pairs], int)
    found = np.zeros((len(pairs), 2 * len(known)))
    found[np.arange(len(pairs)), cards] = 1.0
    found[np.arange(len(pairs)), len(known) + cards] = [load for _, load in pairs]
    return found


def _mixed_model(cell: Integers, effects: Floats, precision: Floats) -> tuple[Floats, Floats]:
    """Return MZ and I + Z'MZ: the equations of the effects Z, scaled to a variance of 1, with the cells X absorbed.

    M = R - R X (X'RX)^-1 X'R, with R the precisions. The pairs of a cell follow each other.
    """
    import numpy as np

    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    totals = np.add.reduceat(precision, starts)
    shares = np.divide(precision, totals[cell], out=np.zeros_like(precision), where=totals[cell] > 0)
    scaled = precision[:, None] * effects
    absorbed = scaled - shares[:, None] * np.add.reduceat(scaled, starts)[cell]
    return absorbed, np.eye(effects.shape[1]) + effects.T @ absorbed


def _joined(found: float, table: float, freedom: float) -> float:
    """Return a standard deviation that times t(FREEDOM + freedom) is half of a 95 % interval."""
    prior = Prior((NORMAL * table / student(FREEDOM)) ** 2, FREEDOM)
    return math.sqrt(moderated(found**2, freedom, prior)[0])


def reml(readings: Mapping[K, Reading], start: Spread) -> Cards:
    """Return the standard deviations that make what several cards measured of the same cells most likely.

    That of processes is estimated beside them.
    """
    import numpy as np
    from scipy import optimize  # type: ignore[import-untyped]

    told = [reading for reading in readings.values() if _tells(reading)]
    pairs = [(card, reading) for reading in told for card in reading.rounds]
    y = np.array([stats.median([*reading.rounds[card].values()]) for card, reading in pairs])
    noise = np.array([of_median(len(reading.rounds[card])) for card, reading in pairs])
    load = np.array([reading.load for _, reading in pairs])
    cell = np.repeat(np.arange(len(told)), [len(reading.rounds) for reading in told])
    loads = _loads_of([(card, reading.load) for card, reading in pairs])
    y -= (np.bincount(cell, y) / np.bincount(cell))[cell]  # which changes nothing but how it is rounded

    def unlikely(logs: Floats) -> float:
        """Return minus the logarithm of the restricted likelihood, without its constant."""
        process, *rest = np.exp(logs)
        known = Cards(*rest)
        precision = 1 / (known.of_cell(load) ** 2 + process**2 * noise)
        effects = loads * np.repeat((known.all, known.loaded), loads.shape[1] // 2)
        absorbed, system = _mixed_model(cell, effects, precision)
        totals = np.bincount(cell, precision)
        means = np.bincount(cell, precision * y) / totals
        right = y @ absorbed
        square = precision @ (y - means[cell]) ** 2 - right @ np.linalg.solve(system, right)
        return float(np.log(totals).sum() - np.log(precision).sum() + np.linalg.slogdet(system)[1] + square) / 2

    first = np.log(np.maximum((start.processes, *start.cards), 1e-4))
    least = optimize.minimize(unlikely, first, method="L-BFGS-B", bounds=[(math.log(1e-5), 0.0)] * 5)
    return Cards(*np.exp(least.x[1:]).tolist())
