"""The backends of a problem in the order of their latency, those that tie with the fastest, and PyTorch's default.

A problem is a case on a device, or a training step: the forward and the backward of a case, which one implementation
computes both, so that their latencies count together; or all layers of a model in one step. Only backends whose results
were right are ranked, and none that computes an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.models.step_time import BOTH, step_times
from attnbench.core.case import Case
from attnbench.core.models import Model
from attnbench.core.record import Run, Status
from attnbench.results import case_names
from attnbench.results.case_names import case_rank
from attnbench.results.cells import Cell, heaviest
from attnbench.results.uncertainty import Contest, apart, contest, of_sum
from attnbench.run.shipped_backends import chosen, code

DEFAULTS = ("sdpa", "hf-sdpa")  # PyTorch's default; where the first was not measured, the next that was
TRAINING = BOTH


@dataclass(frozen=True)
class Candidate:
    """A backend that computes a problem, from its cells: each with how often it counts."""

    parts: tuple[tuple[int, Cell], ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for _, cell in self.parts)

    @property
    def backend(self) -> str:
        return self.cells[0].backend

    @property
    def name(self) -> str:
        """The backend as tables name it, with a version where that tells it from others."""
        return self.cells[0].backend_name

    @property
    def run(self) -> Run:
        return self.cells[0].run

    @property
    def version(self) -> str:
        """What the backend says of its library; "" where the run does not have it."""
        return self.cells[0].rows[0].record.version or self.run.versions.get(self.backend, "")

    @cached_property
    def latency(self) -> float:
        """Seconds, of all parts together."""
        return sum(count * (cell.value("latency") or 0.0) for count, cell in self.parts)

    @cached_property
    def half(self) -> float | None:
        """The uncertainty of the latency: half a 95 % interval, relative; None where nothing can be said of it."""
        halves = [(count * (cell.value("latency") or 0.0), cell.half_interval("latency")) for count, cell in self.parts]
        return of_sum(halves)

    def between_cards(self, other: Candidate) -> float:
        """Return what sets the cards of two candidates apart; 0 where they were measured on one."""
        return self.cells[0].between_cards(other.cells[0])

    @property
    def memory(self) -> float | None:
        """The most memory in use beyond the inputs, in bytes; None where it was not measured."""
        return max((peak for cell in self.cells if (peak := cell.value("memory_peak")) is not None), default=None)

    @property
    def rate(self) -> tuple[str, float | None]:
        """What tells most of the speed: the metric, and its value over all of the cells."""
        metric = "gbps" if self.cells[0].case.is_decode else "tflops"
        parts = [(cell.value(metric), count * (cell.value("latency") or 0.0)) for count, cell in self.parts]
        if any(rate is None for rate, _ in parts) or not self.latency:
            return metric, None
        return metric, sum((rate or 0.0) * latency for rate, latency in parts) / self.latency

    @property
    def ran(self) -> str:
        """What the backend chose among others by the kernels that ran, "cudnn"; "" where it does not choose."""
        records = [row.record for cell in self.cells for row in cell.ok]
        return " and ".join(filter(None, dict.fromkeys(chosen(self.run, r.backend, r.kernels) for r in records)))

    @property
    def kernels(self) -> set[str]:
        """The names of the kernels that ran; empty where that is not known."""
        return {kernel for cell in self.cells for row in cell.ok for kernel in row.record.kernels}

    @property
    def codes(self) -> dict[Case, str]:
        """The code that calls it for each of its cases, of both passes the forward; "" where none is known."""
        cases = dict.fromkeys(replace(cell.case, direction="fwd") for cell in self.cells)
        return {case: code(self.run, self.backend, case) for case in cases}


@dataclass(frozen=True)
class Gain:
    """How many times as fast a candidate is as the default, with the ends of its 95 % interval where it is known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Problem:
    """A case on a device, the training step of a case, or the step of a model; its candidates, the fastest first."""

    device: str
    case: Case  # of a training step that of the forward; of a model that of a layer, without its window
    step: str  # a direction, or TRAINING
    candidates: tuple[Candidate, ...]  # the fastest first; empty where no backend was right
    default: Candidate | None  # PyTorch's default, also where it was not asked for
    model: str = ""  # of which these are all layers
    machine: tuple[str, float | None] = ("", None)  # the device's name and power limit, which several labels share
    ending: Status | None = None  # how its cells ended, where there is no candidate; "ok" where none of them is ranked
    others_right: bool = False  # whether backends were right that were not asked for
    apart: tuple[str, ...] = ()  # what its name needs beside that of its case (problem_names.py)

    @property
    def special(self) -> tuple[str, ...]:
        """What makes its case another than a plain one, dense and on one device: packed, a mask by name, options."""
        case = self.case
        options = (option for option in case_names.EXTRAS if case_names.extra(case, option))
        return (*(["packed"] if case.is_ragged else []), *(["masks by name"] if case.mask else []), *options)

    @property
    def has_choice(self) -> bool:
        """Whether several backends were right, PyTorch's default counted also where it was not asked for."""
        return len({one.backend for one in (*self.candidates, self.default) if one}) > 1

    @cached_property
    def contest(self) -> Contest[Candidate]:
        """Who of the candidates is the fastest, as far as their latencies are known."""
        return contest(self.candidates, lambda one: one.latency, lambda one: one.half, Candidate.between_cards)

    @property
    def fastest(self) -> tuple[Candidate, ...]:
        """The fastest, then those that tie with it; empty where that is not known well enough."""
        return self.contest.winners

    @property
    def use(self) -> Candidate | None:
        """The candidate to use: of those that tie, PyTorch's default, which needs no change; else the fastest."""
        if not self.fastest:
            return None
        return self.default if self.default in self.fastest else self.fastest[0]

    @property
    def gain(self) -> Gain | None:
        """What `use` gains over the default; None where that is not known, or it is the default."""
        if not self.use or not self.default or self.use is self.default:
            return None
        ratio = self.default.latency / self.use.latency
        if self.use.half is None or self.default.half is None:
            return Gain(ratio, None, None)
        half = math.hypot(self.use.half, self.default.half, self.use.between_cards(self.default))
        if half > 700:  # its exponential would be no number
            return Gain(ratio, None, None)
        return Gain(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def model_problems(
    cells: Sequence[Cell], model: Model, tp: int, wanted: Callable[[str], bool] = lambda _: True
) -> list[Problem]:
    """Return the steps of a model, with one backend for all its layers, on one of `tp` devices."""
    steps: dict[tuple[str, Case, str], list[tuple[tuple[int, Cell], ...]]] = {}
    for time in step_times(cells, model, tp):
        steps.setdefault((time.device, time.case, time.direction), []).append(time.parts)
    found = []
    for (device, case, step), groups in steps.items():
        whole = step == "bwd" and (device, replace(case, direction="fwd"), TRAINING) in steps
        if not whole:
            found.append(_problem(device, case, step, groups, wanted, model.name))
    return found


def problems(cells: Sequence[Cell], wanted: Callable[[str], bool] = lambda _: True) -> list[Problem]:
    """Return the problems of cells.

    `wanted` says which backends compete. A backward whose forward was measured too counts in a training step only.
    Steps of whole models are left out: `attnbench step` ranks them.
    """
    at: dict[tuple[str, Case], dict[str, Cell]] = {}
    for cell in (cell for cell in cells if not cell.case.step):
        at.setdefault((cell.device, cell.case), {})[cell.backend] = cell
    found = []
    for (device, case), of_case in at.items():
        forward = at.get((device, replace(case, direction="fwd")))
        if case.direction != "bwd" or not forward:
            alone = [((1, cell),) for cell in of_case.values()]
            found.append(_problem(device, case, case.direction, alone, wanted))
            continue
        pairs = [((1, forward[backend]), (1, cell)) for backend, cell in of_case.items() if backend in forward]
        found.append(_problem(device, replace(case, direction="fwd"), TRAINING, pairs, wanted))
    return found


def answered_once(found: Sequence[Problem]) -> list[Problem]:
    """Return problems in the order of reports, without those that another run of the same machine answers better.

    Figures of unlike runs are in no table together, so an answer is that of one run: of the fastest backend. Another
    run stands in for it whose fastest differs from that by no more than cards of a model do, and which measured the
    backends that the answer names: of these the run with the most backends, then the newest. A backward counts in a
    training step alone where the machine has one of its case, unless it is faster than each backward of that step.
    """
    groups: dict[tuple[tuple[str, float | None], str, Case, str], list[Problem]] = {}
    for problem in found:
        groups.setdefault((problem.machine, problem.model, problem.case, problem.step), []).append(problem)
    kept = {key: _best_answer(group) for key, group in groups.items()}
    for (machine, model, case, step), problem in [*kept.items()]:
        training = kept.get((machine, model, replace(case, direction="fwd"), TRAINING))
        if step == "bwd" and training and training.fastest and not _has_faster_backward(problem, training):
            del kept[machine, model, case, step]
    return _in_order([*kept.values()])


def least_special(found: Sequence[Problem]) -> dict[str, int]:
    """Return device -> in how much the plainest of its cases is special: 0 where it has a plain one."""
    least: dict[str, int] = {}
    for problem in found:
        least[problem.device] = min(len(problem.special), least.get(problem.device, len(problem.special)))
    return least


def _best_answer(group: Sequence[Problem]) -> Problem:
    """Return the problem, of the same case in several runs, that answers for all."""
    started = {id(p): max((one.run.started for one in p.candidates), default="") for p in group}

    def most(chosen: Sequence[Problem]) -> Problem:
        return max(chosen, key=lambda problem: (len(problem.candidates), started[id(problem)]))

    known = [problem for problem in group if problem.fastest]
    if not known:
        return most(group)
    best = min(known, key=lambda problem: problem.fastest[0].latency)
    named = {one.backend for one in best.fastest}
    return most(
        [p for p in known if _alike(p.fastest[0], best.fastest[0]) and named <= {c.backend for c in p.candidates}]
    )


def _alike(one: Candidate, other: Candidate) -> bool:
    """Return whether latencies of two runs differ by no more than cards of a model do."""
    return not apart(one.latency, other.latency, one.half, other.half, one.between_cards(other))


def _has_faster_backward(alone: Problem, training: Problem) -> bool:
    """Return whether the fastest of a backward alone is faster than each backward of a training step of another run."""
    if not alone.fastest:
        return False
    rivals = [
        Candidate(tuple(part for part in one.parts if part[1].case.direction == "bwd")) for one in training.candidates
    ]
    first = alone.fastest[0]
    return all(first.latency < rival.latency and not _alike(first, rival) for rival in rivals)


def _in_order(found: Sequence[Problem]) -> list[Problem]:
    """Return problems by model and device, plain cases first; devices that have plain cases come first too."""
    models = list(dict.fromkeys(problem.model for problem in found))
    special = least_special(found)
    devices = sorted(special, key=lambda device: special[device])
    steps = ("fwd", TRAINING, "bwd", "fwd_bwd")

    def rank(p: Problem) -> tuple[int, int, int, int, tuple[object, ...]]:
        place = models.index(p.model), devices.index(p.device)
        return (*place, len(p.special), steps.index(p.step), case_rank(p.case))

    return sorted(found, key=rank)


def _problem(
    device: str,
    case: Case,
    step: str,
    groups: Sequence[tuple[tuple[int, Cell], ...]],
    wanted: Callable[[str], bool],
    model: str = "",
) -> Problem:
    right = [Candidate(of) for of in groups if all(cell.is_ranked and cell.value("latency") for _, cell in of)]
    right.sort(key=lambda one: one.latency)
    by_backend = {one.backend: one for one in right}
    default = next((by_backend[name] for name in DEFAULTS if name in by_backend), None)
    candidates = tuple(one for one in right if wanted(one.backend))
    ending = None if candidates else _ending([of for of in groups if wanted(of[0][1].backend)])
    where = next((cell.run.environment for of in groups for _, cell in of), None)
    machine = (where.device.name, where.power_limit_w) if where else (device, None)
    others_right = len(right) > len(candidates)
    return Problem(device, case, step, candidates, default, model, machine, ending, others_right)


def _ending(groups: Sequence[Sequence[tuple[int, Cell]]]) -> Status:
    """Return how the cells of implementations ended that have no figure: of each by the parts that are not ok."""
    parts = [[cell.status for _, cell in of] for of in groups]
    ended = [heaviest([status for status in of if status != "ok"] or ["ok"]) for of in parts]
    return heaviest(ended or ["skipped"])
