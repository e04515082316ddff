"""Judge a case on several devices by some of its key heads, drawn at random.

Heads do not depend on each other, so a key head with its query heads and the whole sequence is a case on one device,
with the reference and the tolerance of any case.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from attnbench.core.case import Case
from attnbench.core.record import Accuracy
from attnbench.judge.tolerance import worst

CHECKED_HEADS = 4  # least number of key heads to check; one for each rank where there are more ranks


def draw_heads(case: Case) -> tuple[int, ...]:
    """Return the key heads to check: all, or one drawn from each of CHECKED_HEADS sections (or as many as ranks)."""
    count, most = case.shape.nheads_k, max(CHECKED_HEADS, case.ranks)
    if count <= most:
        return tuple(range(count))
    edges = [i * count // most for i in range(most + 1)]
    draw = random.SystemRandom()
    return tuple(draw.randrange(a, b) for a, b in itertools.pairwise(edges))


def head_case(case: Case) -> Case:
    """Return the case of one key head and its query heads, with the whole sequence on one device."""
    s = case.shape
    return replace(case, ranks=1, shape=replace(s, nheads=s.nheads // s.nheads_k, nheads_k=1))


def head_seed(seed: int, head: int) -> int:
    """Return the seed of the inputs of a key head, from the seed of the case."""
    return seed + 7919 * (head + 1)


def together(found: Sequence[Accuracy]) -> Accuracy:
    """Return the accuracy of several heads together: the worst error of each result, and all other flaws."""
    errors = {name: worst([one.errors[name] for one in found if name in one.errors]) for name in found[0].errors}
    unwritten = dict.fromkeys(name for one in found for name in one.unwritten)
    flaws = dict.fromkeys(flaw for one in found for flaw in one.flaws)
    heads = sum(one.heads for one in found)
    return Accuracy(errors, found[0].rows, heads, tuple(unwritten), tuple(flaws), found[0].seed)
