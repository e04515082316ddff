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
from dataclasses import dataclass, field, fields, replace
from typing import Any

from attnbench.analysis.recommend.findings import TRAINING, Candidate, Problem
from attnbench.core.case import Case
from attnbench.core.groups import grouped
from attnbench.core.record import WRONG

BORDER = 1.2  # most ratio of the lengths on both sides of a border that counts as known
GAP = 2.0  # most ratio of neighbouring lengths with one choice, between which nothing need be measured
TRAINS = (TRAINING, "fwd_bwd", "bwd")  # steps of training

Eligible = Callable[[str, Case], bool]  # whether a backend may be chosen for a case


@dataclass(frozen=True)
class Kind:
    """All of a problem but its batch and its lengths."""

    key: tuple[Any, ...]  # what its cases share
    step: str  # a direction, or TRAINING
    is_decode: bool  # not as many queries as keys; their number is in the key
    case: Case = field(compare=False)  # one of its cases

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
    for_all: bool = False  # whether `use` is one backend for all regions of the kind, not the fastest of each

    def candidate(self, problem: Problem) -> Candidate | None:
        """Return the candidate of the region's backend for one of its problems."""
        return next((one for one in problem.candidates if one.backend == self.use), None)

    @property
    def deterministic(self) -> bool:
        """Whether `use` stands for the deterministic variant of its library, in any of its problems."""
        return any(one.is_variant for problem in self.problems if (one := self.candidate(problem)))

    @property
    def loss(self) -> float:
        """How many times as long `use` takes as the fastest, at worst; 1 where it is the fastest, or there is none."""
        if not self.use:
            return 1.0
        return max((loss(problem, self.candidate(problem)) for problem in self.problems), default=1.0)


@dataclass(frozen=True)
class Single:
    """One backend for many problems, as for a program that cannot choose by shape."""

    use: str
    loss: float  # how many times as long as the fastest it takes, at worst
    where: Problem  # the problem of that loss
    mean: float  # the geometric mean of these ratios


def kind_of(problem: Problem) -> Kind:
    """Return the kind of a problem. A ragged batch has a kind of its own."""
    case, shape = problem.case, problem.case.shape
    decodes = shape.seqlen_q != shape.seqlen_k and not case.is_ragged
    others = tuple(getattr(case, one.name) for one in fields(case) if one.name != "shape")
    heads = shape.nheads, shape.nheads_k, shape.headdim, shape.headdim_v
    key = (*heads, shape.seqlen_q if decodes else 0, shape if case.is_ragged else None, *others)
    return Kind(key, problem.step, decodes, case)


def regions(problems: Sequence[Problem], eligible: Eligible | None = None, *, vary: bool = False) -> list[Region]:
    """Return the regions of the problems of one machine, for the backends that are eligible.

    Without `vary` each kind of training has one backend for all its batches and lengths, so that a run of training does
    not change its rounding from one step to the next; where that was not right, there is no choice.
    """
    found: list[Region] = []
    for kind, own in grouped(problems, kind_of).items():
        allowed = [_restricted(problem, eligible) for problem in own]
        keeps = kind.trains and not vary
        one = single([problem for problem in allowed if problem.use]) if keeps else None
        by_batch = grouped(allowed, lambda problem: problem.case.shape.batch)
        bounds = _bounds(sorted(by_batch))
        for batch, of_batch in sorted(by_batch.items()):
            ordered = sorted(of_batch, key=length)
            parts = _parts_of_one(ordered, one.use if one else "") if keeps else _parts(ordered)
            ends = _bounds_of_parts([part for part, _ in parts])
            for (part, names), lengths in zip(parts, ends, strict=True):
                use = _preferred(part, names)
                others = tuple(name for name in names if name != use)
                found.append(Region(kind, tuple(part), use, others, bounds[batch], lengths, keeps))
    return found


def unknown_borders(found: Sequence[Region]) -> list[tuple[Problem, Problem]]:
    """Return the neighbours in length on both sides of each border that is known to no better than BORDER."""
    pairs = itertools.pairwise(found)
    ends = [
        (left.problems[-1], right.problems[0])
        for left, right in pairs
        if (left.kind, left.batches) == (right.kind, right.batches) and left.use and right.use
    ]
    return [(low, high) for low, high in ends if length(high) > BORDER * length(low)]


def wide_gaps(found: Sequence[Region]) -> list[tuple[Problem, Problem]]:
    """Return the neighbours in length within a region that are further apart than GAP; training has none."""
    chosen = (region for region in found if region.use and not region.for_all)
    pairs = (pair for region in chosen for pair in itertools.pairwise(region.problems))
    return [(low, high) for low, high in pairs if length(high) > GAP * length(low)]


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
    """Return the one backend with the least mean loss among those that were wrong or failed in no problem; None: none.

    `names` are the backends that may be chosen, as keys; None for all. Problems without any right backend do not count.
    Between two lengths at which a backend was far behind it may be untried; the greater of both losses counts there.
    """
    solved, failed = [problem for problem in problems if problem.candidates], failed_somewhere(problems)
    every = dict.fromkeys(one.backend for problem in solved for one in problem.candidates if one.backend not in failed)
    found = []
    for name in every:
        losses = _losses(solved, name) if names is None or name in names else None
        if losses:
            loss, where = max(losses, key=lambda pair: pair[0])
            mean = math.exp(sum(math.log(loss) for loss, _ in losses) / len(losses))
            found.append(Single(name, loss, where, mean))
    return min(found, key=lambda one: one.mean, default=None)


def failed_somewhere(problems: Sequence[Problem]) -> set[str]:
    """Return the backends that were wrong, failed or hung in any problem; memory that none had is not counted."""
    bad = (*WRONG, "failed", "timeout")
    tried = (cell for problem in problems for parts in problem.tried for _, cell in parts)
    return {cell.backend for cell in tried if cell.status in bad}


def _losses(problems: Sequence[Problem], name: str) -> list[tuple[float, Problem]] | None:
    """Return the loss of a backend in each problem; None where it was not right, or untried at an end in length."""
    found: list[tuple[float, Problem]] = []
    for own in grouped(problems, lambda problem: (kind_of(problem), problem.case.shape.batch)).values():
        tried = [problem for problem in own if name in problem.tried_backends]
        if any(name not in {one.backend for one in problem.candidates} for problem in tried):
            return None
        losses = {length(problem): _loss_of(problem, name) for problem in tried}
        for problem in own:
            beside = ([n for n in losses if n <= length(problem)], [n for n in losses if n >= length(problem)])
            if not all(beside):
                return None
            found.append((max(losses[max(beside[0])], losses[min(beside[1])]), problem))
    return found


def loss(problem: Problem, one: Candidate | None) -> float:
    """Return how many times as long a candidate takes as the fastest backend that was right; inf for None."""
    return max(1.0, one.latency / problem.right[0].latency) if one and problem.right else math.inf


def _loss_of(problem: Problem, name: str) -> float:
    """Return the loss of a backend that was right, by its name."""
    return loss(problem, next((one for one in problem.right if one.backend == name), None))


def _restricted(problem: Problem, eligible: Eligible | None) -> Problem:
    if eligible is None:
        return problem
    wanted, variants = problem.wanted, {one.backend for one in problem.right if one.is_variant}

    def both(name: str) -> bool:
        return wanted(name) and eligible(name, replace(problem.case, deterministic=name in variants))

    return replace(problem, wanted=both)


def length(problem: Problem) -> int:
    """Return the number of keys of a problem."""
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


def _parts_of_one(ordered: Sequence[Problem], use: str) -> list[tuple[list[Problem], tuple[str, ...]]]:
    """Return problems by length in parts with one backend, and in parts without any where that was not right."""
    groups = itertools.groupby(ordered, lambda problem: any(one.backend == use for one in problem.candidates))
    return [([*own], (use,) if is_right else ()) for is_right, own in groups]


def _fastest(problem: Problem) -> tuple[str, ...]:
    """Return the backends that are the fastest within the uncertainty; () where that is not known."""
    return tuple(dict.fromkeys(one.backend for one in problem.fastest)) if problem.use else ()


def _preferred(part: Sequence[Problem], names: Sequence[str]) -> str:
    """Return PyTorch's default where it is one of the fastest in all problems of a part, else the fastest in sum."""
    defaults = {problem.default.backend for problem in part if problem.default}
    if kept := defaults & {*names}:
        return min(kept)
    return min(names, key=lambda name: math.prod(_loss_of(problem, name) for problem in part), default="")


def _bounds(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return size -> the range that it stands for: up to halfway (geometric mean) to its neighbours."""
    ends = [math.isqrt(low * high) for low, high in itertools.pairwise(sizes)]
    firsts, lasts = [sizes[0], *(end + 1 for end in ends)], [*ends, sizes[-1]]
    return dict(zip(sizes, zip(firsts, lasts, strict=True), strict=True))


def _bounds_of_parts(parts: Sequence[Sequence[Problem]]) -> list[tuple[int, int]]:
    ends = [math.isqrt(length(a[-1]) * length(b[0])) for a, b in itertools.pairwise(parts)]
    firsts, lasts = [length(parts[0][0]), *(end + 1 for end in ends)], [*ends, length(parts[-1][-1])]
    return list(zip(firsts, lasts, strict=True))
