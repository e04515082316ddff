"""What a gate decides on: the rounds of one metric of one cell, and those of many by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from attnbench.results.made import Made

if TYPE_CHECKING:
    from attnbench.results.arrays import Bools, Floats, Ints, Labels


@dataclass(frozen=True)
class Rounds:
    """One metric of one cell: logarithms of its rounds' values, larger is worse."""

    baseline: Sequence[float]
    current: Sequence[float]
    margin: float  # relative: 0.03 is 3 %
    family: str = ""  # tests of one family help each other to know the noise; "" for a metric without noise
    paired: bool = False  # the rounds of the two sides belong together one by one, and only their differences count


@dataclass(frozen=True, eq=False)
class AllRounds(Made[Rounds]):
    """Many Rounds: a row of each, and how many there are on either side; what stands behind these means nothing."""

    baseline: Floats
    current: Floats
    n: Ints
    m: Ints
    margin: Floats
    family: Labels
    paired: Bools

    def __len__(self) -> int:
        return len(self.n)

    def make(self, i: int) -> Rounds:
        sides = self.baseline[i, : self.n[i]].tolist(), self.current[i, : self.m[i]].tolist()
        return Rounds(*sides, self.margin[i].item(), self.family[i].item(), self.paired[i].item())

    def first(self, pairs: Ints, family: Labels) -> AllRounds:
        """So many rounds of each, as another family."""
        return replace(self, n=pairs, m=pairs, family=family)


def of(rounds: Sequence[Rounds]) -> AllRounds:
    """Those by column as they are, others made so."""
    import numpy as np

    if isinstance(rounds, AllRounds):
        return rounds
    before, after = [r.baseline for r in rounds], [r.current for r in rounds]
    n, m = (np.array([*map(len, side)], np.int64) for side in (before, after))
    margin, family, paired = (np.array([getattr(r, name) for r in rounds]) for name in ("margin", "family", "paired"))
    return AllRounds(_padded(before), _padded(after), n, m, margin, family, paired)


def joined(parts: Sequence[AllRounds]) -> AllRounds:
    """One behind the other."""
    return AllRounds(*(stacked([getattr(part, field.name) for part in parts]) for field in fields(AllRounds)))


def stacked(columns: Sequence[Any]) -> Any:
    """One behind the other; tables are made as wide as the widest."""
    import numpy as np

    if columns[0].ndim > 1:
        width = max(column.shape[1] for column in columns)
        columns = [np.pad(column, ((0, 0), (0, width - column.shape[1]))) for column in columns]
    return np.concatenate(columns)


def weight(n: Any, m: Any, paired: Any) -> Floats:
    """The variance of a change over that of one round (of one difference)."""
    import numpy as np

    found: Floats = np.where(paired, 1 / n, 1 / n + 1 / m)
    return found


def freedom(n: Any, m: Any, paired: Any) -> Ints:
    """Degrees of freedom of that variance."""
    import numpy as np

    found: Ints = np.where(paired, n - 1, n + m - 2)
    return found


def _padded(rows: Sequence[Sequence[float]]) -> Floats:
    import numpy as np

    found = np.zeros((len(rows), max(map(len, rows), default=0)))
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found
