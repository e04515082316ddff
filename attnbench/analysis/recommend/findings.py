"""The backends of a problem in the order of their latency, those that tie with the fastest, and PyTorch's default.

A problem is a case on a device, or a training step: the forward and the backward of a case, which one implementation
computes both, so that their latencies count together; or all layers of a model in one step. Only backends whose results
were right are ranked, and none that computes an approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnbench.analysis.models.findings import BOTH, step_times
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.groups import grouped
from attnbench.core.models import Model
from attnbench.core.record import WRONG, Run, Status
from attnbench.results import case_names, metrics
from attnbench.results.case_names import case_rank
from attnbench.results.cells import Cell, Machine, heaviest, machine_of
from attnbench.results.run_setup import unique_labels
from attnbench.results.uncertainty import Contest, apart, contest, hardly_known, of_sum
from attnbench.run.shipped_backends import chosen, code

DEFAULTS = ("sdpa", "hf-sdpa")  # PyTorch's default: the first of these that was measured
TRAINING = BOTH
WAYS_APART = 1.05  # one kernel's latencies by two methods, timers or states of L2 differ by less


Parts = tuple[tuple[int, Cell], ...]  # the cells of a problem on one backend, each with how often it counts
Key = tuple[Machine, str, Case, str]  # machine, model, case, step: each key has one answer
Way = tuple[str, str]  # how it was measured: timer, L2; figures of unlike ways are not comparable


@dataclass(frozen=True)
class Candidate:
    """A backend that computes a problem, from its cells."""

    parts: Parts

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for _, cell in self.parts)

    @property
    def backend(self) -> str:
        return self.cells[0].backend

    @property
    def name(self) -> str:
        """The backend as tables name it, with a version where that tells it from other candidates."""
        return self.cells[0].backend_name + (" (deterministic)" if self.is_variant else "")

    @property
    def is_variant(self) -> bool:
        """Whether it is the deterministic variant of a library."""
        return any(cell.case.deterministic for cell in self.cells)

    def has(self, bits: Collection[str]) -> bool:
        """Return whether its bits are known to have these properties, by the names in results/bits.py."""
        return all(cell.value(name) == 1 for cell in self.cells for name in bits)

    @property
    def run(self) -> Run:
        return self.cells[0].run

    @property
    def started(self) -> tuple[str, ...]:
        """When its run was started; for passes from two runs, both times."""
        return tuple(dict.fromkeys(cell.run.started for cell in self.cells))

    @property
    def version(self) -> str:
        """The version of its library, as the backend names it; "" where the run does not have it."""
        return self.cells[0].rows[0].record.version or self.run.versions.get(self.backend, "")

    @cached_property
    def latency(self) -> float:
        """Seconds, of all parts together."""
        return sum(count * (cell.value("latency") or 0.0) for count, cell in self.parts)

    @cached_property
    def half(self) -> float | None:
        """The uncertainty of the latency: half a 95 % interval, relative; None where it is not known."""
        halves = [(count * (cell.value("latency") or 0.0), cell.half_interval("latency")) for count, cell in self.parts]
        return of_sum(halves)

    def differs(self, name: str) -> bool:
        """Return whether its bits are known to lack a property."""
        return any(cell.value(name) == 0 for cell in self.cells)

    def between_runs(self, other: Candidate) -> float:
        """Return the uncertainty, relative, that unlike cards and measuring methods add to a comparison; 0 without."""
        cards = max(ours.between_cards(theirs) for ours in self.cells for theirs in other.cells)
        methods = {cell.run.method for cell in (*self.cells, *other.cells)}
        return math.hypot(cards, math.log(WAYS_APART) if len(methods) > 1 else 0.0)

    @property
    def memory(self) -> float | None:
        """The most memory in use beyond the inputs, in bytes; None where it was not measured."""
        return max((peak for cell in self.cells if (peak := cell.value("memory_peak")) is not None), default=None)

    @property
    def error(self) -> float | None:
        """The largest error of its results against the reference, as a share of the tolerance; None where unknown."""
        checks = [row.record.accuracy for cell in self.cells for row in cell.ok]
        errors = [error for check in checks if check for error in check.errors.values()]
        return max((error.max_error / error.tolerance for error in errors if error.tolerance), default=None)

    @property
    def rate(self) -> tuple[str, float | None]:
        """The most telling metric of the speed, and its value over all of the cells."""
        metric = "gbps" if metrics.limit(self.cells[0].case, self.cells[0].rates) == "memory" else "tflops"
        parts = [(cell.value(metric), count * (cell.value("latency") or 0.0)) for count, cell in self.parts]
        if any(rate is None for rate, _ in parts) or not self.latency:
            return metric, None
        return metric, sum((rate or 0.0) * latency for rate, latency in parts) / self.latency

    @property
    def ran(self) -> str:
        """The backend that the candidate chose, by the kernels that ran: "cudnn"; "" for one that does not choose."""
        records = [row.record for cell in self.cells for row in cell.ok]
        return " and ".join(filter(None, dict.fromkeys(chosen(self.run, r.backend, r.kernels) for r in records)))

    @property
    def kernels(self) -> frozenset[str]:
        """The names of the kernels that ran; empty where that is not known."""
        return frozenset[str]().union(*(cell.kernels for cell in self.cells))

    @property
    def codes(self) -> dict[Case, str]:
        """The code that calls it for each of its cases; for both passes the code of the forward; "" where unknown."""
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
    """A case on a device, the training step of a case, or the step of a model, with the backends that were tried."""

    device: str
    case: Case  # for a training step, the case of the forward; for a model, of a layer, without its window
    step: str  # a direction, or TRAINING
    tried: tuple[Parts, ...]  # the cells of each backend
    wanted: Callable[[str], bool]  # whether a backend may be used
    machine: Machine
    way: Way  # how all its cells were measured
    model: str = ""  # the model whose layers these are; "" for a case
    elsewhere: tuple[str, ...] = ()  # backends that were right only as measured in another way
    wrong_elsewhere: tuple[str, ...] = ()  # backends that were right in one run and wrong in another
    bits: tuple[str, ...] = ()  # properties that the bits of a candidate must be known to have: results/bits.py
    apart: tuple[str, ...] = ()  # words that its name needs beside the name of its case (problem_names.py)

    @property
    def key(self) -> Key:
        return self.machine, self.model, self.case, self.step

    @cached_property
    def right(self) -> tuple[Candidate, ...]:
        """The backends that were right, the fastest first, also those that were not asked for."""
        return tuple(sorted((Candidate(of) for of in self.tried if _is_right(of)), key=lambda one: one.latency))

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The backends that may be used, the fastest first; empty where no backend was right."""
        return tuple(one for one in self.right if self.wanted(one.backend) and one.has(self.bits))

    @property
    def unproven(self) -> tuple[Candidate, ...]:
        """The backends that may not be used for their bits alone, which differ or were not compared."""
        return tuple(one for one in self.right if self.wanted(one.backend) and not one.has(self.bits))

    @cached_property
    def default(self) -> Candidate | None:
        """PyTorch's default, also where it was not asked for."""
        by_backend = {one.backend: one for one in self.right}
        return next((by_backend[name] for name in DEFAULTS if name in by_backend), None)

    @cached_property
    def tried_backends(self) -> frozenset[str]:
        """The backends that were tried, whatever their end."""
        return frozenset(map(_backend, self.tried))

    @property
    def others_right(self) -> bool:
        """Whether backends were right that were not asked for."""
        return len(self.right) > len(self.candidates)

    @property
    def missing(self) -> list[Cell]:
        """For each backend that was asked for and has no figure, the cell that best shows why."""
        wanted = [[cell for _, cell in of] for of in self.tried if self.wanted(_backend(of)) and not _is_right(of)]
        found = []
        for cells in wanted:
            status = heaviest([cell.status for cell in cells if cell.status != "ok"] or ["ok"])
            found.append(next(cell for cell in cells if cell.status == status))
        return found

    @property
    def ending(self) -> Status | None:
        """How its cells ended, where there is no candidate; "ok" where none of them is ranked."""
        return None if self.candidates else heaviest([cell.status for cell in self.missing] or ["skipped"])

    @property
    def runs(self) -> list[Run]:
        """The runs whose figures it compares."""
        return [*{id(one.run): one.run for one in (*self.candidates, self.default) if one}.values()]

    @property
    def special(self) -> tuple[str, ...]:
        """The properties that a plain case, dense and on one device, lacks: ragged lengths, a mask by name, options."""
        case = self.case
        options = (option for option in case_names.EXTRAS if case_names.AXES[option].label(case))
        return (*(["ragged lengths"] if case.is_ragged else []), *(["masks by name"] if case.mask else []), *options)

    @property
    def has_choice(self) -> bool:
        """Whether several backends were right, PyTorch's default counted also where it was not asked for."""
        return len({one.backend for one in (*self.candidates, self.default) if one}) > 1

    @property
    def is_incomparable(self) -> bool:
        """Whether its only figure can be compared with no other, though other backends were right."""
        alone = bool(self.candidates) and not self.has_choice
        return alone and (any(map(self.wanted, self.elsewhere)) or (bool(self.elsewhere) and not self.others_right))

    @cached_property
    def contest(self) -> Contest[Candidate]:
        """The contest of the candidates for the fastest, as far as their latencies are known."""
        return contest(self.candidates, lambda one: one.latency, lambda one: one.half, Candidate.between_runs)

    @property
    def fastest(self) -> tuple[Candidate, ...]:
        """The fastest, then those that tie with it; empty where the order is not known well enough."""
        return self.contest.winners

    @property
    def use(self) -> Candidate | None:
        """The candidate to use: the fastest, or PyTorch's default, which needs no change, if it ties with the fastest.

        None where only one has a figure, and the others, measured in another way, cannot be compared with it.
        """
        if not self.fastest or self.is_incomparable:
            return None
        return self.default if self.default in self.fastest else self.fastest[0]

    @property
    def gain(self) -> Gain | None:
        """The gain of `use` over the default; None where it is not known, or `use` is the default."""
        return self.gain_of(self.use) if self.use else None

    def gain_of(self, use: Candidate) -> Gain | None:
        """Return the gain of a candidate over the default; None for the default, and where it has no figure."""
        if not self.default or use is self.default:
            return None
        ratio = self.default.latency / use.latency
        halves = (math.inf if one.half is None else one.half for one in (use, self.default))
        half = math.hypot(*halves, use.between_runs(self.default))
        if half > 700:  # its exponential would overflow
            return Gain(ratio, None, None)
        return Gain(ratio, ratio * stats.exp(-half), ratio * stats.exp(half))


def model_problems(
    cells: Sequence[Cell],
    model: Model,
    tp: int,
    wanted: Callable[[str], bool] = lambda _: True,
    bits: tuple[str, ...] = (),
) -> list[Problem]:
    """Return the steps of a model, with one backend for all its layers, on one of `tp` devices."""
    steps = grouped(step_times(cells, model, tp), lambda time: (time.device, time.case, time.direction))
    found = []
    for (device, case, step), times in steps.items():
        whole = step == "bwd" and (device, replace(case, direction="fwd"), TRAINING) in steps
        if not whole:
            tried, of = tuple(time.parts for time in times), (machine_of(times[0].cell.run), _way(times[0].cell))
            found.append(Problem(device, case, step, tried, wanted, *of, model=model.name, bits=bits))
    return found


def problems(
    cells: Sequence[Cell], wanted: Callable[[str], bool] = lambda _: True, bits: tuple[str, ...] = ()
) -> list[Problem]:
    """Return the problems of cells, of each label of a device by itself.

    `wanted` says which backends compete; their `bits` must be known to have these properties. Where these include
    "deterministic", the deterministic variants of libraries compete in the plain case. A backward whose forward was
    measured too counts in a training step only; its forward may be of another run of the machine, where no run has
    both. Steps of whole models are left out: `attnbench step` ranks them.
    """
    at: dict[tuple[str, Case], dict[str, Cell]] = {}
    forwards: dict[tuple[Machine, Way, Case, str], Cell] = {}  # on a machine, the newest right one
    for cell in sorted((cell for cell in cells if not cell.case.step), key=lambda cell: _suits(cell, bits)):
        case = replace(cell.case, deterministic=False) if "deterministic" in bits else cell.case
        of_case = at.setdefault((cell.device, case), {})
        usual = of_case.get(cell.backend)
        if not usual or not _is_needless(((1, cell),), ((1, usual),), bits):
            of_case[cell.backend] = cell  # the one that suits best comes last
        if case.direction == "fwd":
            key = machine_of(cell.run), _way(cell), case, cell.backend
            known = forwards.setdefault(key, cell)
            if (cell.status == "ok", cell.run.started) > (known.status == "ok", known.run.started):
                forwards[key] = cell
    in_one_run = {
        (machine_of(cell.run), _way(cell), plain, backend)
        for (device, case), of_case in at.items()
        if case.direction == "bwd" and (own := at.get((device, plain := replace(case, direction="fwd"))))
        for backend, cell in of_case.items()
        if cell.status == "ok" and backend in own and own[backend].status == "ok"
    }
    apart = {key: cell for key, cell in forwards.items() if key not in in_one_run}
    found = []
    for (device, case), of_case in at.items():
        first = next(iter(of_case.values()))
        of = machine_of(first.run), _way(first)
        plain = replace(case, direction="fwd")
        own = at.get((device, plain), {})
        step: str = case.direction
        tried: list[Parts] = [((1, cell),) for cell in of_case.values()]
        if case.direction == "bwd":
            both = {backend: own.get(backend) or apart.get((*of, plain, backend)) for backend in of_case}
            pairs: list[Parts] = [((1, forward), (1, of_case[backend])) for backend, forward in both.items() if forward]
            if pairs or own:
                case, step, tried = plain, TRAINING, pairs
        found.append(Problem(device, case, step, tuple(tried), wanted, *of, bits=bits))
    return found


def _suits(cell: Cell, bits: tuple[str, ...]) -> tuple[bool, bool, float]:
    """Return the sort key by which a library's deterministic variant replaces its usual call, or the reverse."""
    if not bits:
        return False, False, 0.0
    is_right = cell.status == "ok"
    return is_right, Candidate(((1, cell),)).has(bits), -(cell.value("latency") or 0.0)


def _is_needless(of: Parts, usual: Parts, bits: tuple[str, ...]) -> bool:
    """Return whether a deterministic variant is no faster than the usual call, whose bits are known to be right too."""
    one, plain = Candidate(of), Candidate(usual)
    if not one.is_variant or plain.is_variant or not _is_right(usual) or not plain.has(bits):
        return False
    return not hardly_known(plain.half) and (plain.latency <= one.latency or _alike(plain, one))


def _way(cell: Cell) -> Way:
    return cell.run.policy.timer, cell.run.policy.l2


def _backend(of: Parts) -> str:
    return of[0][1].backend


def _is_right(of: Parts) -> bool:
    return all(cell.is_ranked and bool(cell.value("latency")) for _, cell in of)


def answered_once(found: Sequence[Problem]) -> list[Problem]:
    """Return problems in the order of reports: one for a case on a machine, from all its runs, named by the machine.

    Figures that were measured in one way are compared, whatever their cards, methods (`Candidate.between_runs`), dates
    and software: `_joined`. Of several ways, the way with the lowest latency gives the answer; among ways close to it,
    one in which several backends were right. A backward counts only in the training step of its case, where the machine
    has one, unless it is faster than each backward of that step. Both passes timed as one, as training runs them, give
    the answer in place of that step where they have all its fastest backends, or are faster.
    """
    answers = {key: _answer(grouped(own, lambda p: p.way)) for key, own in grouped(found, lambda p: p.key).items()}
    kept = dict(answers)
    for key, problem in answers.items():
        training = answers.get((problem.machine, problem.model, replace(problem.case, direction="fwd"), TRAINING))
        if not training:
            continue
        if problem.step == "bwd" and training.fastest and not _has_faster_backward(problem, training):
            del kept[key]
        elif problem.step == "fwd_bwd":
            training = kept[training.key] = _not_understated(training, problem)
            if _answers_for(problem, training):
                kept[key] = _beside(problem, kept.pop(training.key))
            elif training.fastest:
                kept[training.key] = _beside(training, kept.pop(key))
    machines = [*dict.fromkeys(problem.machine for problem in kept.values())]
    powers = [[f"{power:g} W" if power else ""] for _, power in machines]
    labels = dict(zip(machines, unique_labels([name for name, _ in machines], powers, "{} ({})"), strict=True))
    return _in_order([replace(problem, device=labels[problem.machine]) for problem in kept.values()])


def least_special(found: Sequence[Problem]) -> dict[str, int]:
    """Return device -> the number of special properties of its plainest case: 0 where it has a plain case."""
    least: dict[str, int] = {}
    for problem in found:
        least[problem.device] = min(len(problem.special), least.get(problem.device, len(problem.special)))
    return least


def _answer(groups: Mapping[Way, Sequence[Problem]]) -> Problem:
    """Return the answer of one case, from its problems in several runs by the way of measuring.

    A backend that was wrong in one run counts as right in no run with the same version.
    """
    every = [of for group in groups.values() for problem in group for of in problem.tried]
    wrong = {_versioned(of) for of in every if _is_wrong(of)}
    ways = []
    for group in groups.values():
        sound = [[of for of in p.tried if _is_wrong(of) or _versioned(of) not in wrong] for p in group]
        ways.append(_joined([replace(p, tried=tuple(of)) for p, of in zip(group, sound, strict=True)]))

    def rank(problem: Problem) -> tuple[bool, int, str]:
        latest = max((one.run.started for one in problem.candidates), default="")
        return problem.has_choice, len(problem.candidates), latest

    known = [problem for problem in ways if problem.fastest] or ways
    least = min((problem.fastest[0].latency for problem in known if problem.fastest), default=math.inf)
    best = max((p for p in known if not p.fastest or p.fastest[0].latency <= WAYS_APART * least), key=rank)
    return replace(
        _beside(best, *ways),
        wrong_elsewhere=tuple(dict.fromkeys(_backend(of) for of in every if _is_right(of) and _versioned(of) in wrong)),
    )


def _beside(answer: Problem, *others: Problem) -> Problem:
    """Return an answer that names the backends which were right in `others` alone, measured in another way."""
    here = {one.backend for one in answer.right}
    right = (one.backend for problem in others for one in (*problem.candidates, problem.default) if one)
    every = (*answer.elsewhere, *right)
    return replace(answer, elsewhere=tuple(dict.fromkeys(name for name in every if name not in here)))


def _joined(group: Sequence[Problem]) -> Problem:
    """Return one problem from the problems of one case that several runs measured in one way.

    It has the figures of the run with the lowest latency. For backends whose figure there is missing or hardly known,
    it has their lowest figure of another run. So slower figures of further runs change no order of backends.
    """

    def least(problem: Problem) -> float:
        return min((one.latency for one in problem.contest.known), default=math.inf)

    def rank(of: Parts) -> tuple[bool, bool, bool, bool, float, str]:
        right, one = _is_right(of), Candidate(of)
        known = right and not hardly_known(one.half)
        return right, _is_wrong(of), right and one.has(best.bits), known, -one.latency * right, one.run.started

    best = min(group, key=least)
    every = [of for problem in group for of in problem.tried]
    every.sort(key=rank)
    chosen = {_backend(of): of for of in every}
    usual = {_backend(of): of for of in every if not Candidate(of).is_variant}
    proven = {name for name, of in chosen.items() if Candidate(of).has(best.bits)}
    right = [one for one in best.right if one.backend not in proven or one.has(best.bits)]
    own = {one.backend: one.parts for one in right if not hardly_known(one.half)}
    found = chosen | own
    needless = {name for name, of in found.items() if name in usual and _is_needless(of, usual[name], best.bits)}
    return replace(best, tried=tuple(usual[name] if name in needless else of for name, of in found.items()))


def _is_wrong(of: Parts) -> bool:
    return any(cell.status in WRONG and not cell.of_earlier_check for _, cell in of)


def _versioned(of: Parts) -> tuple[str, str]:
    return _backend(of), Candidate(of).version


def _alike(one: Candidate, other: Candidate) -> bool:
    """Return whether latencies of two runs differ by no more than cards of a model and methods of measuring do."""
    return not apart(one.latency, other.latency, one.half, other.half, one.between_runs(other))


def _not_understated(training: Problem, as_one: Problem) -> Problem:
    """Return a training step with the time of both passes as one for backends where it is known to be above their sum.

    A forward that is timed alone needs no gradients, and may do less than the forward of a training step.
    """
    timed = {one.backend: one for one in as_one.right if one.half is not None}

    def longer(of: Parts) -> Parts:
        whole, parts = timed.get(_backend(of)), Candidate(of)
        return whole.parts if whole and whole.latency > parts.latency and not _alike(whole, parts) else of

    return replace(training, tried=tuple(longer(of) if _is_right(of) else of for of in training.tried))


def _answers_for(as_one: Problem, training: Problem) -> bool:
    """Return whether both passes timed as one give the answer for a training step, instead of the sum of both."""
    if not as_one.use or as_one.has_choice != training.has_choice:
        return as_one.has_choice
    has_all = {one.backend for one in training.fastest} <= {one.backend for one in as_one.right}
    return has_all or as_one.fastest[0].latency < training.fastest[0].latency


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
