"""One value of each cell from all cards that measured it, by a mixed model of cells and cards.

With y the logarithm of card k's value of cell c, the median over its n rounds (latency or energy),

    y(c, k) = cell(c) + card(k) + load(c) loaded_card(k, kind of c) + rest(c, k).

- **cell** is the wanted value: a case on one backend, of one version and measuring method.
- **card** and **loaded_card** are normal with mean 0, and shared by all cells of a card on any backend: the card's
  difference in all work, and its further difference in work that the power limit slows, where a chip that draws less
  power runs faster. The **load** of a cell (uncertainty.py) is 0 up to LOADED_FROM of the datasheet's rate, 1 from
  LOADED_TO on, and linear between. The H200s and H100s in results/ differ by 0.2 % in all work and by 0.8 % more under
  full load. Cells without a known rate count as full load, and so does decode, as no two cards in results/ measured it.
  Decode
  is bound by memory, so its load is a kind of its own, about which a card's other cells say nothing.
- **rest** is the card's difference in this cell alone, which is larger under load, and the noise of n processes: the
  variance of one over n, times pi / 2 for a median of more than two.

Cells are fixed effects, cards random ones. Cells and cards are estimated together by Henderson's mixed model equations
(Henderson, "Best Linear Unbiased Estimation and Prediction under a Selection Model", Biometrics 31(2), 1975), with the
cells absorbed, so that the system's size is three times the number of cards. A cell measured only by a fast card is
thus corrected by this card's results in cells that other cards measured too. Where no cell was measured by two cards,
the value is the card's own.

The variances are taken from the table by device (uncertainty.py). Where LEAST_CARDS cards or more measured common
cells, they are estimated from these by restricted maximum likelihood (Patterson and Thompson, "Recovery of inter-block
information when block sizes are unequal", Biometrika 58(3), 1971) and joined with the table's (noise.py). Cells that
may show something else than the card's speed (`Reading.informs`) take no part in the estimate.

Any sum of cells is linear in y, with the weights of `Pool.weights`: a card's effect is the same in a geometric mean of
a hundred cells of the card as in one of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from attnbench.core import stats
from attnbench.results.noise import Prior, moderated
from attnbench.results.uncertainty import FREEDOM, MEDIAN, NORMAL, Cards, Spread, student

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Integers = NDArray[numpy.int64]
    Matrix: TypeAlias = Any  # of numpy, or a sparse one of scipy

LEAST_CARDS = 10  # with common cells, to estimate variances; with 6 cards intervals hold the truth in 92 %
KINDS = ("any work", "under load", "under load by memory")  # kinds of a card's effects
LEAST = 1e-4  # deviation of processes, so that alike cards, as of a simulated device, have weights

DENSE = 20_000  # elements below which numpy's matrices are faster than scipy's sparse ones

K = TypeVar("K", bound=Hashable)


class Card(NamedTuple):
    """One device; all unnamed devices of a model count as one."""

    model: str
    uuid: str | None


@dataclass(frozen=True)
class Reading:
    """The values of a cell by the cards of one machine, as natural logarithms."""

    rounds: Mapping[Card, Mapping[int, float]]  # card -> round -> value; a round is one process per backend
    process: Hashable = None  # cells with the same value share a process in each round, as the cells of a backend do
    load: float = 1.0  # from 0 to 1
    by_memory: bool = False  # whether memory is loaded, so that a card's other cells say nothing about it
    informs: bool = True  # whether it shows the differences of its cards


@dataclass(frozen=True)
class Variances:
    """The differences between the cards of a machine, as standard deviations."""

    deviations: Cards
    quantile: float = NORMAL  # half a 95 % interval over these standard deviations
    estimated: bool = False  # whether from the cards at hand


class _Rounds(NamedTuple):
    """Rounds of cells: the pair of each, the number of its process, and its effect on a sum with weight 1."""

    pair: Integers
    number: Integers
    moves: Floats
    card: Integers  # the card of each process number

    def of_cards(self, which: NDArray[numpy.bool_]) -> Integers:
        """Return the number of processes of each card among some entries."""
        import numpy as np

        counted = np.bincount(self.number[which], minlength=len(self.card)) > 0
        return np.bincount(self.card[counted], minlength=int(self.card.max()) + 1)


class Pool(Generic[K]):
    """The cells of one model of device with one power limit, by all its cards."""

    def __init__(self, readings: Mapping[K, Reading], of: Spread) -> None:
        self.spread = of
        self.readings = readings
        self.pairs = [(key, card) for key, reading in readings.items() for card in reading.rounds]
        self._at: dict[K, list[int]] = {}
        for i, (key, _) in enumerate(self.pairs):
            self._at.setdefault(key, []).append(i)

    @cached_property
    def values(self) -> Mapping[K, float]:
        """Cell -> the logarithm of its latency or energy on a card of the model."""
        import numpy as np

        if self._unconnected:
            return {key: float(self._y[at[0]]) for key, at in self._at.items()}
        left = self._y - self._loads @ (self._y @ self._cards_of)
        found = np.bincount(self._cell, self._mean * left)
        return dict(zip(self._at, found.tolist(), strict=True))

    def weights(self, weights: Mapping[K, float]) -> Floats:
        """Return the weights of `pairs` in a weighted sum of cells.

        The weights of a cell's pairs add up to the cell's weight; for cells outside the sum, which inform about its
        cards, they add up to 0.
        """
        import numpy as np

        found = np.zeros(len(self.pairs))
        for key, weight in weights.items():
            at = self._at[key]
            found[at] = weight * self._mean[at]
        if self._unconnected:
            return found
        at = [i for key in weights for i in self._at[key]]  # few of many, mostly of one cell
        return found - self._cards_of @ (found[at] @ self._loads[at])

    def of_processes(self, weights: Mapping[K, float]) -> float:
        """Return half the 95 % interval of a weighted sum of cells for other processes on these cards.

        Round r of a card moves the sum by the total, over the cells with several rounds, of its weight / n x sqrt(n /
        (n - 1)) x its distance from the card's mean (x sqrt(pi / 2) for a median of more than two). A round is the unit
        of replication (Liang and Zeger, "Longitudinal data analysis using generalized linear models", Biometrika 73(1),
        1986). The degrees of freedom of the cards' variances together are Satterthwaite's (Biometrics Bulletin 2(6),
        1946). Where a card has a single round of a cell, the table's deviation of processes counts; it moves the cells
        of a process alike.
        """
        import numpy as np

        of_pairs, rounds = self.weights(weights), self._rounds
        moved = np.bincount(rounds.number, of_pairs[rounds.pair] * rounds.moves, len(rounds.card))
        variances = np.bincount(rounds.card, moved**2)
        total, half = float(variances.sum()), 0.0
        if total > 0:
            asked = np.isin(rounds.pair, [i for key in weights for i in self._at[key]])
            every, of_asked = (rounds.of_cards(which) for which in (np.ones(len(asked), bool), asked))
            freedoms = np.maximum(np.where(of_asked > 1, of_asked, every) - 1, 1)
            half = student(total**2 / float((variances**2 / freedoms).sum())) * math.sqrt(total)
        alone, process = self._alone
        of_table = np.bincount(process, of_pairs[alone]) if len(alone) else np.zeros(0)
        return math.hypot(half, NORMAL * self.spread.processes * float(np.linalg.norm(of_table)))

    def rounds_of(self, key: K) -> list[int]:
        """Return the number of rounds in which each card measured a cell."""
        return [len(rounds) for rounds in self.readings[key].rounds.values()]

    def is_of_one_card(self, key: K) -> bool:
        """Return whether the value of a cell is a single card's own, uncorrected by other cells."""
        import numpy as np

        return len(self._at[key]) == 1 and bool(np.count_nonzero(self.weights({key: 1.0})) == 1)

    @cached_property
    def variances(self) -> Variances:
        """The standard deviations of the table, or of the cards at hand joined with the table's."""
        table, number = self.spread.cards, self._cards_in_common
        if number < LEAST_CARDS:
            return Variances(table)
        freedom = number - 1.0
        found = reml(self.readings, self.spread)
        each = [_joined(ours, known, freedom) for ours, known in zip(found, table, strict=True)]
        return Variances(Cards(*each), student(FREEDOM + freedom), estimated=True)

    @property
    def _cards_in_common(self) -> int:
        """The number of cards that measured a cell in common with another card."""
        return len({card for reading in self.readings.values() if _tells(reading) for card in reading.rounds})

    # ---- The model as arrays with an entry for each pair.

    @cached_property
    def _unconnected(self) -> bool:
        """Whether no cell was measured by two cards."""
        return len(self._at) == len(self.pairs)

    @cached_property
    def _y(self) -> Floats:
        import numpy as np

        return np.array([_median(self.readings[key].rounds[card]) for key, card in self.pairs])

    @cached_property
    def _rounds(self) -> _Rounds:
        """The rounds of the pairs with several rounds."""
        import numpy as np

        numbers, cards = dict[tuple[Card, int], int](), {card: i for i, card in enumerate(self.cards)}
        found: list[tuple[int, int, float]] = []
        for i, (key, card) in enumerate(self.pairs):
            rounds = self.readings[key].rounds[card]
            if len(rounds) > 1:
                mean = math.fsum(rounds.values()) / len(rounds)
                scale = math.sqrt(of_median(len(rounds)) / (len(rounds) - 1))
                for number, log in rounds.items():
                    found.append((i, numbers.setdefault((card, number), len(numbers)), scale * (log - mean)))
        pairs, of, moves = zip(*found, strict=True) if found else ((), (), ())
        own = [cards[card] for card, _ in numbers]
        return _Rounds(np.array(pairs, int), np.array(of, int), np.array(moves, float), np.array(own, int))

    @cached_property
    def _alone(self) -> tuple[Integers, Integers]:
        """The pairs with a single round, and the number of each one's process."""
        import numpy as np

        numbers = dict[tuple[Hashable, int], int]()
        found = [
            (i, numbers.setdefault((self.readings[key].process, next(iter(rounds))), len(numbers)))
            for i, (key, card) in enumerate(self.pairs)
            if len(rounds := self.readings[key].rounds[card]) == 1
        ]
        return np.array([i for i, _ in found], int), np.array([number for _, number in found], int)

    @cached_property
    def cards(self) -> list[Card]:
        """The cards that measured any cell."""
        return list(dict.fromkeys(card for _, card in self.pairs))

    @cached_property
    def _load(self) -> Floats:
        import numpy as np

        return np.array([self.readings[key].load for key, _ in self.pairs])

    @cached_property
    def _deviations(self) -> Floats:
        """The standard deviations of the effects."""
        return _of_effects(self.variances.deviations, len(self.cards))

    @cached_property
    def _cell(self) -> Integers:
        import numpy as np

        return np.repeat(np.arange(len(self._at)), [len(at) for at in self._at.values()])

    @cached_property
    def _loads(self) -> Floats:
        """Pairs x effects: the part of each effect in each pair; for each of KINDS the effects of all cards."""
        import numpy as np

        by_memory = np.array([self.readings[key].by_memory for key, _ in self.pairs])
        return _loads_of([card for _, card in self.pairs], self._load, by_memory)

    @cached_property
    def _precision(self) -> Floats:
        """One over the variance of each pair, without the effects that a card's cells share."""
        import numpy as np

        noise = np.array([of_median(len(self.readings[key].rounds[card])) for key, card in self.pairs])
        noise *= max(self.spread.processes, LEAST) ** 2
        found: Floats = 1 / (self.variances.deviations.of_cell(self._load) ** 2 + noise)
        return found

    @cached_property
    def _mean(self) -> Floats:
        """The share of each pair in the value of its cell, once the effects of cards are taken out."""
        import numpy as np

        return self._precision / np.bincount(self._cell, self._precision)[self._cell]

    @cached_property
    def _cards_of(self) -> Floats:
        """The matrix (pairs x effects) by which `_y` is multiplied to give the effects of cards."""
        import numpy as np

        informs = np.array([self.readings[key].informs for key, _ in self.pairs])
        absorbed, informed = _mixed_model(*_equations(self._cell, self._loads), self._precision * informs)
        deviations = self._deviations
        solved = np.linalg.solve(_system(informed, deviations), np.diag(deviations))
        found: Floats = absorbed @ (deviations[:, None] * solved)
        return found


def of_cards(*sides: tuple[Pool[K], Mapping[K, float]]) -> float:
    """Return half the 95 % interval that cards add to the difference of two weighted sums of cells, each from a pool.

    A card that measured both sides moves them alike.
    """
    import numpy as np

    shared, own = defaultdict[Hashable, float](float), defaultdict[Hashable, float](float)
    apart = len({card for pool, _ in sides for card in pool.cards}) == sum(len(pool.cards) for pool, _ in sides)
    for number, (pool, weights) in enumerate(sides):
        sign = -1 if number else 1
        of_pairs = sign * pool.variances.quantile * pool.weights(weights)
        names = [(card, kind) for kind in KINDS for card in pool.cards]
        for name, moved in zip(names, (of_pairs @ pool._loads * pool._deviations).tolist(), strict=True):
            shared[name] += moved
        of_cells = of_pairs * pool.variances.deviations.of_cell(pool._load)
        if apart:
            own[sign] = float(np.linalg.norm(of_cells))
        else:
            for i in np.flatnonzero(of_cells).tolist():
                own[pool.pairs[i]] += float(of_cells[i])
    return math.hypot(*shared.values(), *own.values())


def of_median(rounds: int) -> float:
    """Return the variance of the median of normal values over the variance of one value.

    The median of one or two values is their mean.
    """
    return (MEDIAN**2 if rounds > 2 else 1.0) / rounds


def _median(rounds: Mapping[int, float]) -> float:
    """Return the logarithm of the median over rounds, as reports show it."""
    return math.log(stats.median([math.exp(log) for log in rounds.values()]))


def _tells(reading: Reading) -> bool:
    return reading.informs and len(reading.rounds) > 1


def _of_effects(known: Cards, cards: int) -> Floats:
    """Return the standard deviation of each effect of `cards` cards, in the order of KINDS."""
    import numpy as np

    return np.repeat((known.all, known.loaded, known.loaded), cards)


def _loads_of(cards: Sequence[Card], loads: Floats, by_memory: NDArray[numpy.bool_]) -> Floats:
    """Return pairs x effects: 1 in the column of its card, and its load in the column of its kind."""
    import numpy as np

    known: dict[Card, int] = {}
    column = np.array([known.setdefault(card, len(known)) for card in cards], int)
    found = np.zeros((len(cards), len(KINDS) * len(known)))
    found[np.arange(len(cards)), column] = 1.0
    found[np.arange(len(cards)), np.where(by_memory, 2, 1) * len(known) + column] = loads
    return found


def _equations(cell: Integers, effects: Floats) -> tuple[Matrix, Matrix]:
    """Return X' (cells x pairs, 1 where a pair is of the cell) and Z, the `effects` (pairs x effects, two of a pair).

    `cell` is the number of each pair's cell. Matrices of many elements are sparse.
    """
    import numpy as np
    from scipy import sparse  # type: ignore[import-untyped]

    pairs = np.arange(len(cell))
    of_cells = sparse.csr_array((np.ones(len(cell)), (cell, pairs)))
    return (of_cells.toarray(), effects) if effects.size < DENSE else (of_cells, sparse.csr_array(effects))


def _mixed_model(of_cells: Matrix, effects: Matrix, precision: Floats) -> tuple[Matrix, Floats]:
    """Return MZ (pairs x effects) and Z'MZ: the equations of the effects Z, with the cells X absorbed.

    M = R - R X (X'RX)^-1 X'R, with R the precisions. X' and Z are as from `_equations`.
    """
    import numpy as np
    from scipy import sparse

    def weighted(weights: Floats, rows: Matrix) -> Matrix:
        dense = isinstance(rows, np.ndarray)
        return weights[:, None] * rows if dense else sparse.diags_array(weights) @ rows

    totals = of_cells @ precision
    shares = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0)
    scaled = weighted(precision, effects)
    absorbed = scaled - weighted(precision, of_cells.T @ weighted(shares, of_cells @ scaled))
    informed = effects.T @ absorbed
    return absorbed, informed if isinstance(informed, np.ndarray) else informed.toarray()


def _system(informed: Floats, deviations: Floats) -> Floats:
    """Return I + Z'MZ with the effects Z scaled to a variance of 1, from the unscaled Z'MZ of `_mixed_model`."""
    import numpy as np

    return np.eye(len(deviations)) + deviations[:, None] * informed * deviations


def _joined(found: float, table: float, freedom: float) -> float:
    """Return a standard deviation whose product with t(FREEDOM + freedom) is half a 95 % interval."""
    prior = Prior((NORMAL * table / student(FREEDOM)) ** 2, FREEDOM)
    return math.sqrt(moderated(found**2, freedom, prior)[0])


def reml(readings: Mapping[K, Reading], start: Spread) -> Cards:
    """Return the most likely standard deviations, given the values of several cards for the same cells.

    The deviation of processes is estimated with them.
    """
    import numpy as np
    from scipy import optimize

    told = [reading for reading in readings.values() if _tells(reading)]
    pairs = [(card, reading) for reading in told for card in reading.rounds]
    y = np.array([_median(reading.rounds[card]) for card, reading in pairs])
    noise = np.array([of_median(len(reading.rounds[card])) for card, reading in pairs])
    load = np.array([reading.load for _, reading in pairs])
    cell = np.repeat(np.arange(len(told)), [len(reading.rounds) for reading in told])
    loads = _loads_of([card for card, _ in pairs], load, np.array([reading.by_memory for _, reading in pairs]))
    used = np.flatnonzero(loads.any(axis=0))  # most cards have no cell of a kind
    kinds, equations = used // (loads.shape[1] // len(KINDS)), _equations(cell, loads[:, used])
    y -= (np.bincount(cell, y) / np.bincount(cell))[cell]  # changes only the rounding

    def unlikely(logs: Floats) -> float:
        """Return minus the logarithm of the restricted likelihood, without its constant."""
        process, *rest = np.exp(logs)
        known = Cards(*rest)
        deviations = _of_effects(known, 1)[kinds]
        precision = 1 / (known.of_cell(load) ** 2 + process**2 * noise)
        absorbed, informed = _mixed_model(*equations, precision)
        system = _system(informed, deviations)
        totals = np.bincount(cell, precision)
        means = np.bincount(cell, precision * y) / totals
        right = (y @ absorbed) * deviations
        square = precision @ (y - means[cell]) ** 2 - right @ np.linalg.solve(system, right)
        return float(np.log(totals).sum() - np.log(precision).sum() + np.linalg.slogdet(system)[1] + square) / 2

    first = np.log(np.maximum((start.processes, *start.cards), 1e-4))
    least = optimize.minimize(unlikely, first, method="L-BFGS-B", bounds=[(math.log(1e-5), 0.0)] * 5)
    return Cards(*np.exp(least.x[1:]).tolist())
