"""Regions of shapes with one backend each, from the problems that recommend answers.

A kind of problem is all of a problem but its batch and its lengths. At one measured batch of a kind, the lengths from
one measurement to the next have one backend for as long as one is among the fastest of all, so that a program changes
its backend as seldom as possible. A region ends halfway (geometric mean) between the measured sizes on both sides;
nothing is said of sizes beyond the measured ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.analysis.recommend.findings import TRAINING, Candidate, Problem
from attnbench.core.case import Case
from attnbench.core.groups import grouped

BORDER = 1.2  # most ratio of the lengths on both sides of a border that counts as known
TRAINS = (TRAINING, "fwd_bwd", "bwd")  # steps of training

Eligible = Callable[[str, Case], bool]  # whether a backend may be chosen for a case


@dataclass(frozen=True)
class Kind:
    """All of a problem but its batch and its lengths."""

    case: Case  # with batch and lengths of 1; a ragged batch has its own
    step: str  # a direction, or TRAINING
    is_decode: bool  # few queries, whose number is in `case`, against many keys

    @property
    def trains(self) -> bool:
        """Whether it is a step of training."""
        return self.step in TRAINS


@dataclass(frozen=True)
class Region:
    """The problems of one batch size and a range of lengths, and the backend to use for all sizes of the region."""

    kind: Kind
    problems: tuple[Problem, ...]  # by length
    use: str  # the backend; "" where none was right, or none is known to be the fastest
    others: tuple[str, ...]  # backends that are as fast within the uncertainty, in all its problems
    batches: tuple[int, int]  # first and last batch of the region
    lengths: tuple[int, int]  # first and last length (seqlen_k) of the region
    by_collapse: bool = False  # whether `use` is one backend for all regions of the kind, not the fastest of each

    def candidate(self, problem: Problem) -> Candidate | None:
        """Return the candidate of the region's backend for one of its problems."""
        return next((one for one in problem.candidates if one.backend == self.use), None)

    @property
    def loss(self) -> float:
        """How many times as long `use` takes as the fastest, at worst; 1 where it is the fastest, or there is none."""
        if not self.use:
            return 1.0
        return max((_loss(problem, self.use) for problem in self.problems), default=1.0)


@dataclass(frozen=True)
class Single:
    """One backend for many problems, as for a program that cannot choose by shape."""

    use: str
    loss: float  # how many times as long as the fastest it takes, at worst
    where: Problem  # the problem of that loss
    mean: float  # the geometric mean of these ratios


def kind_of(problem: Problem) -> Kind:
    """Return the kind of a problem."""
    case, shape = problem.case, problem.case.shape
    if case.is_ragged:
        return Kind(case, problem.step, is_decode=False)
    decodes = shape.seqlen_q != shape.seqlen_k
    queries = shape.seqlen_q if decodes else 1
    small = replace(shape, batch=1, seqlen_q=queries, seqlen_k=queries)
    return Kind(_resized(case, small), problem.step, decodes)


def _resized(case: Case, shape: object) -> Case:
    """Return a case with another shape, without what depends on its lengths."""
    return replace(case, shape=shape, shared_prefix=0)  # type: ignore[arg-type]


def regions(problems: Sequence[Problem], eligible: Eligible | None = None, *, vary: bool = False) -> list[Region]:
    """Return the regions of the problems of one machine, for the backends that are eligible.

    Without `vary` each kind of training has one backend for all its batches and lengths, so that a run of training does
    not change its rounding from one step to the next.
    """
    found: list[Region] = []
    for kind, own in grouped(problems, kind_of).items():
        allowed = [_restricted(problem, eligible) for problem in own]
        one = single(allowed) if kind.trains and not vary else None
        by_batch = grouped(allowed, lambda problem: problem.case.shape.batch)
        bounds = _bounds(sorted(by_batch))
        for batch, of_batch in sorted(by_batch.items()):
            ordered = sorted(of_batch, key=_length)
            parts = [(ordered, (one.use,))] if one else _parts(ordered)
            ends = _bounds_of_parts([part for part, _ in parts])
            for (part, names), lengths in zip(parts, ends, strict=True):
                use = _preferred(part, names)
                others = tuple(name for name in names if name != use)
                found.append(Region(kind, tuple(part), use, others, bounds[batch], lengths, one is not None))
    return found


def unknown_borders(found: Sequence[Region]) -> list[tuple[Region, Region]]:
    """Return the pairs of neighbouring regions whose border is known to no better than BORDER in length."""
    pairs = itertools.pairwise(found)
    return [
        (left, right)
        for left, right in pairs
        if (left.kind, left.batches) == (right.kind, right.batches)
        and _length(right.problems[0]) > BORDER * _length(left.problems[-1])
    ]


def between(low: int, high: int) -> int:
    """Return a length about halfway (geometric mean) between two, a multiple of a large power of two where it can be.

    Raises ValueError where there is none.
    """
    if high - low < 2:
        raise ValueError(f"no length lies between {low} and {high}")
    step = 2 ** max(0, int(math.log2((high - low) / 4))) if high - low >= 4 else 1
    middle = step * round(math.sqrt(low * high) / step)
    return min(max(middle, low + 1), high - 1)


def single(problems: Sequence[Problem], names: Mapping[str, str] | None = None) -> Single | None:
    """Return the one backend with the least mean loss among those that are right in all problems; None without any.

    `names` are the backends that may be chosen, as keys; None for all. Problems without any right backend do not count.
    """
    solved = [problem for problem in problems if problem.candidates]
    if not solved:
        return None
    everywhere = set.intersection(*({one.backend for one in problem.candidates} for problem in solved))
    losses = {
        name: [(_loss(problem, name), problem) for problem in solved]
        for name in (one.backend for one in solved[0].candidates)
        if name in everywhere and (names is None or name in names)
    }
    if not losses:
        return None
    means = {name: math.exp(sum(math.log(loss) for loss, _ in of) / len(of)) for name, of in losses.items()}
    use = min(means, key=lambda name: means[name])
    loss, where = max(losses[use], key=lambda pair: pair[0])
    return Single(use, loss, where, means[use])


def _loss(problem: Problem, name: str) -> float:
    """Return how many times as long a backend takes as the fastest that was right; inf where it has no figure."""
    own = next((one.latency for one in problem.right if one.backend == name), math.inf)
    return max(1.0, own / problem.right[0].latency) if problem.right else 1.0


def _restricted(problem: Problem, eligible: Eligible | None) -> Problem:
    if eligible is None:
        return problem
    wanted, case = problem.wanted, problem.case
    return replace(problem, wanted=lambda name: wanted(name) and eligible(name, case))


def _length(problem: Problem) -> int:
    return problem.case.shape.seqlen_k


def _parts(ordered: Sequence[Problem]) -> list[tuple[list[Problem], tuple[str, ...]]]:
    """Return problems by length in as few parts as possible, each with the backends that are the fastest in all."""
    parts: list[tuple[list[Problem], tuple[str, ...]]] = []
    for problem in ordered:
        names = _fastest(problem)
        if parts:
            last, before = parts[-1]
            shared = tuple(name for name in before if name in names)
            if shared or before == names == ():
                parts[-1] = [*last, problem], shared
                continue
        parts.append(([problem], names))
    return parts


def _fastest(problem: Problem) -> tuple[str, ...]:
    """Return the backends that are the fastest within the uncertainty; () where that is not known."""
    return tuple(dict.fromkeys(one.backend for one in problem.fastest)) if problem.use else ()


def _preferred(part: Sequence[Problem], names: Sequence[str]) -> str:
    """Return PyTorch's default where it is one of the fastest in all problems of a part, else the fastest in sum."""
    defaults = {problem.default.backend for problem in part if problem.default}
    if kept := defaults & {*names}:
        return min(kept)
    return min(names, key=lambda name: math.prod(_loss(problem, name) for problem in part), default="")


def _bounds(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return size -> the range that it stands for: up to halfway (geometric mean) to its neighbours."""
    ends = [math.isqrt(low * high) for low, high in itertools.pairwise(sizes)]
    firsts, lasts = [sizes[0], *(end + 1 for end in ends)], [*ends, sizes[-1]]
    return dict(zip(sizes, zip(firsts, lasts, strict=True), strict=True))


def _bounds_of_parts(parts: Sequence[Sequence[Problem]]) -> list[tuple[int, int]]:
    ends = [math.isqrt(_length(a[-1]) * _length(b[0])) for a, b in itertools.pairwise(parts)]
    firsts, lasts = [_length(parts[0][0]), *(end + 1 for end in ends)], [*ends, _length(parts[-1][-1])]
    return list(zip(firsts, lasts, strict=True))
