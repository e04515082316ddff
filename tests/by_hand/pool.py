"""The value of a cell from all cards of a machine, and the uncertainty of sums of cells (docs/dev/compare.md).

It uses whole matrices: the best linear unbiased prediction of the effects of cards, from the covariances of all pairs
of (cell, card). The variances are the table's, which hold where fewer than ten cards measured common cells.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import latency
from .device import NORMAL, Spread
from .latency import Figure
from .raw import Key

Weights = Mapping[Key, float]
STEADIEST = 1e-4  # least standard deviation of processes


@dataclass(frozen=True)
class Pair:
    key: Key
    card: Any
    logs: Mapping[int, float]  # round -> logarithm
    load: float
    by_memory: bool  # decode: a card's effect under load does not apply

    @property
    def loads(self) -> tuple[float, float, float]:
        return 1.0, self.load * (not self.by_memory), self.load * self.by_memory

    @property
    def noise(self) -> float:
        """The variance of the median over rounds, over the variance of one round."""
        n = len(self.logs)
        return (math.pi / 2 if n > 2 else 1.0) / n


class Pool:
    """All pairs of (cell, card) of one machine, measured in bursts or without pauses."""

    def __init__(self, figures: Mapping[Key, Figure], cards: Mapping[Key, Mapping[int, Any]], spread: Spread) -> None:
        self.spread, self.pairs = spread, list[Pair]()
        for key, figure in figures.items():
            of_card: dict[Any, dict[int, float]] = defaultdict(dict)
            for number, seconds in figure.rounds.items():
                of_card[cards[key][number]][number] = math.log(seconds)
            self.pairs += [Pair(key, card, logs, figure.load, figure.by_memory) for card, logs in of_card.items()]
        self.figures = figures
        self.own = np.array([self.own_part(pair.load) for pair in self.pairs])  # variance of a card in one cell
        self.variance = self.own**2 + [pair.noise * max(spread.processes, STEADIEST) ** 2 for pair in self.pairs]
        self.precision: dict[Key, float] = defaultdict(float)
        for pair, variance in zip(self.pairs, self.variance, strict=True):
            self.precision[pair.key] += 1 / variance
        self.predicting: np.ndarray[Any, Any] | None = None
        self.names = list(dict.fromkeys(pair.card for pair in self.pairs))
        columns = [[(pair.card == name) * by for name in self.names for by in pair.loads] for pair in self.pairs]
        self.effects = np.array(columns)  # pairs x (card in any work, under load, under load by memory)
        medians = [statistics.median(map(math.exp, pair.logs.values())) for pair in self.pairs]
        self.logs = np.log(medians)
        self.deviations = np.array([spread.any_work, spread.under_load, spread.under_load] * len(self.names))

    def own_part(self, load: float) -> float:
        return self.spread.cell * (1 - load) + self.spread.loaded_cell * load

    def prediction(self, telling: Collection[Key]) -> np.ndarray[Any, Any]:
        """Return the matrix (effects, pairs) that maps the logarithms of the pairs to the effects of cards."""
        told = [i for i, pair in enumerate(self.pairs) if pair.key in telling]
        found = np.zeros((len(self.deviations), len(self.pairs)))
        if not told:
            return found
        z, keys = self.effects[told], list(dict.fromkeys(self.pairs[i].key for i in told))
        covariance = (z * self.deviations**2) @ z.T + np.diag(self.variance[told])
        x = np.array([[self.pairs[i].key == key for key in keys] for i in told], float)
        inverse = np.linalg.inv(covariance)
        left = inverse - inverse @ x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse)
        found[:, told] = (self.deviations**2)[:, None] * z.T @ left
        return found

    def of_pairs(self, weights: Weights, predicting: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the weight of each pair in a sum of cells."""
        found = np.zeros(len(self.pairs))
        for i, pair in enumerate(self.pairs):
            if pair.key in weights:
                found[i] = weights[pair.key] / self.variance[i] / self.precision[pair.key]
        return found - (found @ self.effects) @ predicting

    def sum(self, by: np.ndarray[Any, Any]) -> float:
        return float(by @ self.logs)

    def of_rounds(self, weights: Weights, by: np.ndarray[Any, Any]) -> float:
        """Return t(d) sqrt(sum of e_r^2), where e_r is the change of a sum by round r, a process."""
        moves: dict[Any, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        asked: dict[Any, set[int]] = defaultdict(set)
        for pair, weight in zip(self.pairs, by, strict=True):
            n = len(pair.logs)
            if n > 1:
                mean = statistics.fmean(pair.logs.values())
                for number, log in pair.logs.items():
                    moves[pair.card][number] += weight * math.sqrt(pair.noise / (n - 1)) * (log - mean)
                    if pair.key in weights:
                        asked[pair.card].add(number)
        variances = {card: sum(e * e for e in of.values()) for card, of in moves.items()}
        total = sum(variances.values())
        if not total:
            return 0.0
        degrees = {card: (len(asked[card]) if len(asked[card]) > 1 else len(of)) - 1 for card, of in moves.items()}
        freedom = total**2 / sum(variance**2 / degrees[card] for card, variance in variances.items())
        return latency.student(freedom) * math.sqrt(total)

    def of_processes(self, by: np.ndarray[Any, Any]) -> float:
        """Return 1.96 p sqrt(sum of v^2), where v is the weight of a backend's cells with a single round on a card."""
        shares: dict[tuple[int, str], float] = defaultdict(float)
        for pair, weight in zip(self.pairs, by, strict=True):
            if len(pair.logs) == 1:
                shares[next(iter(pair.logs)), pair.key[1]] += weight
        return NORMAL * self.spread.processes * math.hypot(*shares.values())

    def of_samples(self, weights: Weights) -> float:
        """Return the part of the uncertainty from the samples of cells with a single round."""
        alone = ((w, self.figures[k]) for k, w in weights.items())
        return math.hypot(
            *(math.inf if one.alone is None else w * one.alone for w, one in alone if len(one.rounds) == 1)
        )

    def of_cards(self, by: np.ndarray[Any, Any]) -> dict[Any, float]:
        """Return the independent effects of cards on a sum, each times its standard deviation."""
        shared = (by @ self.effects) * self.deviations
        names = [(name, kind) for name in self.names for kind in ("any work", "load", "memory")]
        own = {(pair.card, pair.key): w * part for pair, w, part in zip(self.pairs, by, self.own, strict=True)}
        return {**dict(zip(names, shared, strict=True)), **own}
