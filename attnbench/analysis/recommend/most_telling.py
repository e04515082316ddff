"""Chooses the part of a recommendation that fits on a screen: the newest machines, with the cases that tell most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from attnbench.analysis.recommend.findings import Problem, least_special
from attnbench.core.groups import grouped
from attnbench.results import case_names
from attnbench.results.cells import Machine

MOST_MACHINES = 3
MOST_CASES, FEW_CASES = 12, 4  # cases of a machine; FEW_CASES where there are more machines than are shown


def newest_machines(problems: Sequence[Problem]) -> list[Machine]:
    """Return at most MOST_MACHINES machines, of each GPU model first the one with plain cases and the newest run."""
    special = least_special(problems)
    started: dict[str, str] = {}
    for problem in problems:
        newest = max((cell.run.started for of in problem.tried for _, cell in of), default="")
        started[problem.device] = max(newest, started.get(problem.device, ""))
    machines = {problem.device: problem.machine for problem in problems}
    seen = Counter[str]()  # number of machines of a model that come before
    ranked = []
    newest_first = sorted(started, key=lambda device: started[device], reverse=True)
    for device in sorted(newest_first, key=lambda device: special[device]):
        model, _ = machines[device]
        ranked.append((seen[model], machines[device]))
        seen[model] += 1
    return [machine for _, machine in sorted(ranked, key=lambda pair: pair[0])[:MOST_MACHINES]]


def most_telling(problems: Sequence[Problem], most: int) -> list[Problem]:
    """Return that many problems of each device and model, in their order: of many kinds, and spread over the lengths.

    Where there are too many kinds (all of a case but its lengths and batch), plain kinds are taken first, then the
    kinds with the most backends.
    """
    chosen: set[int] = set()
    for own in grouped(problems, lambda problem: (problem.device, problem.model)).values():
        ranked = sorted(grouped(own, _kind).values(), key=_rank)[:most]
        each, more = divmod(most, len(ranked))
        for place, of in enumerate(ranked):
            chosen.update(map(id, _spread(of, each + (place < more))))
    return [problem for problem in problems if id(problem) in chosen]


def _rank(of: Sequence[Problem]) -> tuple[int, int]:
    return len(of[0].special), -max(len(problem.candidates) for problem in of)


def _kind(problem: Problem) -> Hashable:
    case, shape = problem.case, problem.case.shape
    told = case.dtype, case_names.headdim(case), case_names.mask(case), *case_names.extras(case)
    return (problem.step, *told, shape.nheads, shape.nheads_k, case.is_decode, case_names.pattern(case))


def _spread(of: Sequence[Problem], number: int) -> list[Problem]:
    """Return `number` problems from the first to the last, at about equal distances; for one, the middle problem."""
    if number >= len(of):
        return [*of]
    if number == 1:
        return [of[len(of) // 2]]
    return [of[round(i * (len(of) - 1) / (number - 1))] for i in range(number)]
