"""One value of each cell from all cards that measured it, and how much of it is theirs: a mixed model.

With y the logarithm of what card k measured of cell c, the median over its n rounds (latency or energy),

    y(c, k) = cell(c) + card(k, kind of c) + rest(c, k).

- **cell** is what is asked: a case on one backend, of one version and measuring method.
- **card** is normal with mean 0 and shared by all cells of a kind on that card, whatever their backend. There are two
  kinds: cells that reach NEAR_LIMIT of the datasheet's rate, in which the power limit sets the clock, and cards differ
  by what a chip draws; and all others. Of 18 H200s and 15 H100s in results/ the first differ by 0.9 %, the others by
  0.2 to 0.3 %, and which card is fast among the first says nothing of the others.
- **rest** is how a card differs in this cell alone, with its own variance for each kind, and the noise of n processes:
  that of one over n, times pi / 2 for a median of more than two.

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
from attnbench.results.uncertainty import FREEDOM, MEDIAN, NORMAL, Effects, Spread, student

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]

NEAR_LIMIT = 0.5  # of the datasheet's rate: above, the power limit sets the clock
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
    near_limit: bool = True  # whether it reaches NEAR_LIMIT
    informs: bool = True  # whether it tells how its cards differ


@dataclass(frozen=True)
class Variances:
    """What cards of a machine differ by, in cells near the power limit and in others."""

    near_limit: Effects
    others: Effects
    quantile: float = NORMAL  # of half a 95 % interval over these standard deviations
    estimated: bool = False  # from the cards at hand

    def of(self, near_limit: bool) -> Effects:
        return self.near_limit if near_limit else self.others


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
        left = self._y - (self._y @ self._cards_of)[self._effect]
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
        on_cards = np.bincount(self._effect, of_pairs, self._cards_of.shape[1])
        of_pairs -= self._cards_of @ on_cards
        counted = np.flatnonzero(np.abs(of_pairs) > 1e-12)
        return counted, of_pairs[counted]

    def effects(self, weights: Mapping[K, float]) -> tuple[dict[tuple[Card, bool], float], dict[Pair[K], float]]:
        """Return how far cards move a weighted sum: by what their cells share, and by each cell's own part.

        Each is half a 95 % interval, with the sign of its weight: independent, but where two sums have the same.
        """
        shared: dict[tuple[Card, bool], float] = {}
        own: dict[Pair[K], float] = {}
        quantile = self.variances.quantile
        for i, weight in zip(*(part.tolist() for part in self.weights(weights)), strict=True):
            pair = self.pairs[i]
            near_limit = self._readings[pair.key].near_limit
            effects = self.variances.of(near_limit)
            at = pair.card, near_limit
            shared[at] = shared.get(at, 0.0) + quantile * effects.cards * weight
            own[pair] = quantile * effects.cells * weight
        return shared, own

    @cached_property
    def variances(self) -> Variances:
        """Those of the table, or of the cards at hand and the table."""
        table = Variances(self.spread.near_limit, self.spread.others)
        number = self._cards_in_common
        if number < LEAST_CARDS:
            return table
        found = reml(self._readings, self.spread)
        freedom = number - 1.0
        joined = [_joined(getattr(found, name), getattr(table, name), freedom) for name in ("near_limit", "others")]
        return Variances(*joined, student(FREEDOM + freedom), estimated=True)

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
    def _effect(self) -> Integers:
        """The number of the effect of each pair: of its card on cells of this kind."""
        return _numbers([(card, self._readings[key].near_limit) for key, card in self.pairs])

    @cached_property
    def _precision(self) -> Floats:
        """One over the variance of each pair, without what its card's cells share."""
        import numpy as np

        found = []
        for key, card in self.pairs:
            reading = self._readings[key]
            noise = of_median(len(reading.rounds[card])) * max(self.spread.processes, LEAST) ** 2
            found.append(1 / (self.variances.of(reading.near_limit).cells ** 2 + noise))
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
        kinds = dict(zip(self._effect.tolist(), (self._readings[key].near_limit for key, _ in self.pairs), strict=True))
        deviations = np.array([self.variances.of(kinds[n]).cards for n in range(len(kinds))])
        absorbed, system = _mixed_model(self._cell, self._effect, self._precision * informs, deviations)
        return absorbed @ np.linalg.solve(system, np.diag(deviations))


def of_median(rounds: int) -> float:
    """Return the variance of the median of normal values, over that of one of them; of one or two it is the mean."""
    return (MEDIAN**2 if rounds > 2 else 1.0) / rounds


def _tells(reading: Reading) -> bool:
    return reading.informs and len(reading.rounds) > 1


def _numbers(names: Sequence[Hashable]) -> Integers:
    """Return a number for each name, from 0 in the order in which they come first."""
    import numpy as np

    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], int)


def _mixed_model(cell: Integers, effect: Integers, precision: Floats, deviations: Floats) -> tuple[Floats, Floats]:
    """Return what is left of the effects, scaled to a variance of 1, when cells are absorbed: MZ, and I + Z'MZ.

    M = R - R X (X'RX)^-1 X'R, with X the cells, Z the effects times their standard deviations and R the precisions.
    """
    import numpy as np

    scaled = np.zeros((len(cell), len(deviations)))
    scaled[np.arange(len(cell)), effect] = precision * deviations[effect]
    totals = np.bincount(cell, precision)
    sums = np.zeros((len(totals), len(deviations)))
    np.add.at(sums, (cell, effect), precision * deviations[effect])
    shares = np.divide(precision, totals[cell], out=np.zeros_like(precision), where=totals[cell] > 0)
    absorbed = scaled - shares[:, None] * sums[cell]
    system = np.eye(len(deviations))
    np.add.at(system, effect, deviations[effect][:, None] * absorbed)
    return absorbed, system


def _joined(found: Effects, table: Effects, freedom: float) -> Effects:
    """Return standard deviations that times t(FREEDOM + freedom) are half of a 95 % interval."""
    each = []
    for ours, known in zip((found.cards, found.cells), (table.cards, table.cells), strict=True):
        prior = Prior((NORMAL * known / student(FREEDOM)) ** 2, FREEDOM)
        each.append(math.sqrt(moderated(ours**2, freedom, prior)[0]))
    return Effects(*each)


def reml(readings: Mapping[K, Reading], start: Spread) -> Variances:
    """Return the standard deviations that make what several cards measured of the same cells most likely.

    That of processes is estimated beside them. Where a kind of cells was measured by no two cards, its deviations stay
    those of `start`.
    """
    import numpy as np
    from scipy import optimize  # type: ignore[import-untyped]

    told = {key: reading for key, reading in readings.items() if _tells(reading)}
    pairs = [(key, card, reading) for key, reading in told.items() for card in reading.rounds]
    y = np.array([stats.median([*reading.rounds[card].values()]) for _, card, reading in pairs])
    rounds = np.array([of_median(len(reading.rounds[card])) for _, card, reading in pairs])
    near = np.array([reading.near_limit for *_, reading in pairs])
    cell, effect = _numbers([key for key, *_ in pairs]), _numbers([(c, r.near_limit) for _, c, r in pairs])
    near_effect = np.zeros(effect.max() + 1, bool)
    near_effect[effect] = near

    def unlikely(logs: Floats) -> float:
        """Return minus the logarithm of the restricted likelihood, without its constant."""
        process, *of_kinds = np.exp(logs)
        cards = np.where(near_effect, of_kinds[0], of_kinds[2])
        cells = np.where(near, of_kinds[1], of_kinds[3])
        precision = 1 / (cells**2 + process**2 * rounds)
        absorbed, system = _mixed_model(cell, effect, precision, cards)
        totals = np.bincount(cell, precision)
        means = np.bincount(cell, precision * y) / totals
        right = y @ absorbed
        square = precision @ (y - means[cell]) ** 2 - right @ np.linalg.solve(system, right)
        return float(np.log(totals).sum() - np.log(precision).sum() + np.linalg.slogdet(system)[1] + square) / 2

    deviations = (start.processes, *(getattr(start, kind)[i] for kind in ("near_limit", "others") for i in (0, 1)))
    least = optimize.minimize(
        unlikely,
        np.log(np.maximum(deviations, 1e-4)),
        method="L-BFGS-B",
        bounds=[(math.log(1e-5), math.log(1.0))] * 5,
    )
    _, *found = np.exp(least.x).tolist()
    kinds = [
        Effects(*found[2 * i : 2 * i + 2]) if any(near == is_near) else getattr(start, kind)
        for i, (kind, is_near) in enumerate((("near_limit", True), ("others", False)))
    ]
    return Variances(*kinds, estimated=True)
