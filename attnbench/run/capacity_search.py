"""The next size in the search for the largest that fits: a pure function of the outcomes so far.

Sizes are on a grid of PER_OCTAVE steps to a factor of 2. The search starts with fractions of a forecast, which show the
growth of memory and time, then doubles or halves until one size fits and a larger one does not, then bisects. A size
that fits counts even above a size that does not, but not above a wrong result: in that case the smallest wrong size is
searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

PER_OCTAVE = 16
LARGEST = 2**26
FRACTIONS = (64, 16, 4, 1)  # parts of the forecast, in the order of the first steps
UNIT = {"seqlen": 128, "batch": 1}  # sizes are multiples of this

Outcome = Literal["fits", "wrong", "refused", "stops"]  # "stops": out of memory, too slow, failed


@dataclass(frozen=True)
class Bracket:
    """The limits found so far: the largest size that fits, below any wrong one, and the next that does not."""

    fits: int | None
    stops: int | None


def grid(unit: int) -> tuple[int, ...]:
    """Return the sizes that a search may try: multiples of `unit` on a geometric grid, all powers of two included."""
    octaves = (LARGEST // unit).bit_length() - 1
    return tuple(sorted({unit * round(2 ** (i / PER_OCTAVE)) for i in range(octaves * PER_OCTAVE + 1)}))


def bracket(known: Mapping[int, Outcome]) -> Bracket:
    """Return the bracket of the known outcomes. A refused size below one that fits does not matter."""
    wrong = min((size for size, outcome in known.items() if outcome == "wrong"), default=None)
    fits = max(
        (size for size, outcome in known.items() if outcome == "fits" and (wrong is None or size < wrong)), default=None
    )
    above = [size for size, outcome in known.items() if outcome != "fits" and size > (fits or 0)]
    return Bracket(fits, min(above, default=None))


def next_size(known: Mapping[int, Outcome], sizes: Sequence[int], start: int) -> int | None:
    """Return the size to try next, one of `sizes`; None where the search is done.

    `start` is the size that fits by the forecast.
    """
    if all(outcome == "fits" for outcome in known.values()):
        for size in (_nearest(sizes, start // fraction) for fraction in FRACTIONS):
            if size not in known:
                return size
    found = bracket(known)
    if found.stops is not None and known[found.stops] == "refused":
        power = 1 << found.stops.bit_length()  # a library may refuse only some sizes; a power of two decides
        if power in sizes and power not in known:
            return power
    if found.fits is None:
        return _below(known, sizes, found.stops)
    at = sizes.index(found.fits)
    if found.stops is None:
        above = _nearest(sizes, 2 * found.fits)
        return above if above > found.fits else None
    middle = (at + sizes.index(found.stops)) // 2
    return sizes[middle] if middle > at else None


def _below(known: Mapping[int, Outcome], sizes: Sequence[int], stops: int | None) -> int | None:
    """Return a size below all tried ones, the further below the more have failed; None where there is none."""
    least = min(known) if stops is None else min(stops, *known)
    if least == sizes[0]:
        return None
    return _nearest(sizes, max(sizes[0], least >> min(2 ** (len(known) - 1), 8)))


def _nearest(sizes: Sequence[int], size: int) -> int:
    return min(sizes, key=lambda one: abs(one - size))
