"""The cautions of a recommendation: what is doubtful in it, and what it leaves out."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attnbench.analysis.cautions import Places, Rule, when
from attnbench.analysis.models.findings import unmeasured
from attnbench.analysis.recommend import problem_names
from attnbench.analysis.recommend.findings import DEFAULTS, TRAINING, Candidate, Problem
from attnbench.analysis.report.cautions import INCOMPLETE
from attnbench.core.formats import duration, percent
from attnbench.core.groups import grouped
from attnbench.core.models import Model
from attnbench.core.own_code import as_written
from attnbench.core.record import Run
from attnbench.core.text import capitalized, count, listed, some
from attnbench.results.cells import Cell
from attnbench.results.run_setup import differing, setup
from attnbench.results.uncertainty import doubt
from attnbench.run.select import is_user_code

DEFAULT = "PyTorch's default"


@dataclass(frozen=True)
class Recommended:
    """The answers to some problems, with their runs and with what a person asked for."""

    problems: Sequence[Problem]
    cells: Sequence[Cell]
    models: Sequence[Model]
    tp: int
    every: Sequence[Problem]  # also the problems that are not shown
    every_run: Sequence[Problem]  # the problems of each run, before answers to one problem are joined
    files: Sequence[Path]
    runs: Sequence[Run] = ()

    @cached_property
    def answered(self) -> list[Problem]:
        """The problems that have an answer."""
        return [problem for problem in self.problems if problem.use]


def why_unknown(found: Sequence[Problem]) -> str:
    """Return why no backend is known to be the fastest of problems that have candidates; "" where all have one."""
    contests = [problem.contest for problem in found if problem.candidates]
    lone = [problem for problem in found if problem.is_incomparable]
    said = [doubt(contests, lambda one: one.name, lambda one: one.half)]
    if lone:
        only = some(dict.fromkeys(one.name for problem in lone for one in problem.candidates))
        others = some(dict.fromkeys(name for problem in lone for name in problem.elsewhere))
        said.append(f"{only} and {others} were right, but not measured in one way (timer, L2, passes apart or as one)")
    return ", or ".join(filter(None, said))


def asked_of(found: Sequence[Problem]) -> str:
    """Return the words for a backend that was asked for, where others were right; "" where none was."""
    if any(problem.unproven for problem in found):
        return f"backend that is known to be {listed(name.replace('_', '-') for name in found[0].bits)}"
    return "backend that was asked for" if any(problem.others_right for problem in found) else ""


def _in(found: Sequence[Problem], **values: Any) -> Places:
    """Return the values of a caution about some problems, [] without problems.

    {cases} is their number with a noun, {names} their names, {used} the backends to use.
    """
    names = some(map(problem_names.name, found))
    used = dict.fromkeys(problem.use.backend for problem in found if problem.use)
    return when(found, cases=count(len(found), "case"), names=names, used=", ".join(used), **values)


def answered(test: Callable[[Problem], object]) -> Callable[[Recommended], Places]:
    """Return a function that finds the problems with an answer that pass a test, as places of a caution."""
    return lambda of: _in([*filter(test, of.answered)])


def _lost(of: Recommended) -> Places:
    lost = [problem for problem in of.problems if not problem.candidates]
    told = any(cell.status != "ok" for p in lost for cell in p.missing)
    return _in(lost, who=asked_of(lost) or "backend", todo="Each has its reason in this report." if told else "")


def _noisy(of: Recommended) -> Places:
    noisy = [problem for problem in of.problems if problem.candidates and not problem.use]
    again = "Measure with more samples, or with --rounds 5, and nothing else running."
    apart = all(problem.is_incomparable for problem in noisy)
    return _in(noisy, why=why_unknown(noisy), todo="Measure them in one run." if apart else again)


def _without_default(of: Recommended) -> Places:
    could = [problem for problem in of.answered if problem.case.is_softmax and not problem.case.is_paged]
    unknown = [problem for problem in could if not problem.default and not _tried_default(problem)]
    return _in(unknown, options=_asked_as(unknown))


def _tried_default(problem: Problem) -> bool:
    return any(cell.backend in DEFAULTS for of in problem.tried for _, cell in of)


def _asked_as(found: Sequence[Problem]) -> str:
    """Return PyTorch's default and the backends to use as the option -b takes them, own code by its file."""
    specs = {use.backend: use.run.specs.get(use.backend, "") for use in (one.use for one in found) if use}
    names = [as_written(spec) if ".py:" in spec else backend for backend, spec in specs.items()]
    return shlex.quote(",".join((DEFAULTS[0], *names)))


def _other_default(of: Recommended) -> Places:
    other = {problem.default.backend for problem in of.answered if problem.default} - {DEFAULTS[0]}
    return when(other, other=", ".join(sorted(other)))


def _alike_kernels(of: Recommended) -> Places:
    def is_alike(problem: Problem) -> bool:
        return bool(problem.use and problem.default and problem.use.kernels == problem.default.kernels != frozenset())

    same = [problem for problem in of.answered if problem.gain and is_alike(problem)]
    return _in(same, some_used=some(dict.fromkeys(problem.use.backend for problem in same if problem.use)))


def _without_gradients(of: Recommended) -> Places:
    fastest = [one for problem in of.answered if problem.step == TRAINING for one in problem.fastest]
    sums = [one for one in fastest if one.cells[0].case.direction == "fwd"]
    own = dict.fromkeys(one.name for one in sums if is_user_code(one.run.specs.get(one.backend, "")))
    return when(own, own=some(own))


def _not_whole(of: Recommended) -> Iterator[dict[str, Any]]:
    """Yield the models that have no whole step, and why."""
    for model in of.models:
        if not any(problem.model == model.name for problem in of.every):
            none = unmeasured(of.cells, model, of.tp)
            windows = [layers.sees.strip() or "without a window" for layers in none]
            lacks = f"Layers {' and '.join(windows)} have no right figure." if windows else ""
            yield {"model": model.name, "lacks": lacks, "tp": f" --tp {of.tp}" if of.tp > 1 else ""}


def _timed_twice(of: Recommended) -> int:
    """Return the number of training steps timed both as one pass and as two; one of the two timings counts."""
    both = {key for problem in of.every_run if (key := problem.key)[-1] in (TRAINING, "fwd_bwd")}
    return len(both - {problem.key for problem in of.every})


def _measured_again(of: Recommended) -> Places:
    """Return one place for answers of single runs that were joined, or none: their number, and what is unlike."""
    number = len(of.every_run) - len(of.every) - _timed_twice(of)
    joined = [problem for problem in of.every if len(problem.runs) > 1]
    apart = max((a.between_runs(b) for p in joined for a in p.right for b in p.right), default=0.0)
    setups = [[*map(setup, problem.runs)] for problem in joined]
    pairs = [(first, other) for first, *others in setups for other in others]
    unlike = dict.fromkeys(name for first, other in pairs for name in differing(first, other))
    cards = f" Between unlike cards or methods, {percent(apart)} is added to the uncertainty, in quadrature."
    told = {"cards": cards if apart else "", "unlike": f" Their {listed(unlike)} differ too." if unlike else ""}
    return when(number, answers=count(number, "answer"), cases=count(len(joined), "case"), **told)


def _in_two_ways(of: Recommended) -> Places:
    number = _timed_twice(of)
    return when(number, answers=count(number, "answer"))


def _left_out(by_case: Sequence[Sequence[str]]) -> Places:
    """Return one place for backends that are left out of some cases though they were right elsewhere, or none."""
    cases = [backends for backends in by_case if backends]
    names = some(dict.fromkeys(name for backends in cases for name in backends), 6)
    return when(cases, cases=count(len(cases), "case"), names=names)


def _unproven(of: Recommended) -> Iterator[dict[str, Any]]:
    """Yield the backends that are left out for their bits: those whose bits differ, then those not compared."""
    what = listed(name.replace("_", "-") for problem in of.problems[:1] for name in problem.bits)
    for todo in sorted({how_to_prove(problem, one) for problem in of.problems for one in problem.unproven}):
        by_case = [
            [one.name for one in problem.unproven if how_to_prove(problem, one) == todo] for problem in of.problems
        ]
        for values in _left_out(by_case):
            yield {**values, "told": f"are not known to be {what}" if todo else f"are not {what}", "todo": todo}


def how_to_prove(problem: Problem, one: Candidate) -> str:
    """Return what makes the bits of an unproven candidate known, or why nothing can; "" where its bits differ."""
    if any(one.differs(name) for name in problem.bits):
        return ""
    if "batch_invariant" in problem.bits:
        if problem.case.shape.batch == 1:
            return "In a batch of 1 there are no other sequences, so only larger ones can be proven: --batch 2,8."
        if why := next((of.not_alone for cell in one.cells for of in cell.bits if of.not_alone), ""):
            return f"No sequence was computed alone: {why}."
    return "attnbench run --bitwise compares their bits."


CAUTIONS: Sequence[Rule[Recommended]] = (
    INCOMPLETE,
    Rule(_lost, "Nothing is recommended in {cases} ({names}).", "No {who} has a right figure there.", "{todo}"),
    Rule(_noisy, "Nothing is recommended in {cases} ({names}): {why}.", todo="{todo}"),
    Rule(
        _without_default,
        f"The gain over {DEFAULT} is not known in {{cases}}.",
        f"{DEFAULTS[0]} was not measured.",
        "Measure both with the same shapes: attnbench recommend -b {options}",
    ),
    Rule(
        answered(lambda problem: not problem.default and _tried_default(problem)),
        f"{DEFAULT} has no right figure in {{cases}}, so there is nothing to compare with.",
        todo="Each has its reason in this report.",
    ),
    Rule(
        _other_default,
        f"{DEFAULT} is represented by {{other}}, the call that transformers makes.",
        f"{DEFAULTS[0]} was not measured beside it.",
    ),
    Rule(
        answered(lambda problem: not problem.has_choice),
        "In {cases} one backend alone has a right figure, so there is no choice.",
        todo="Measure more: attnbench backends says what can be installed here.",
    ),
    Rule(
        _alike_kernels,
        f"In {{cases}} {DEFAULT} ran the same kernels as the backend to use ({{some_used}}).",
        "Their difference is the time to choose, or noise beyond the uncertainty.",
        "Measure again with --rounds 5.",
    ),
    Rule(
        answered(lambda problem: problem.use and not all(problem.use.codes.values())),
        "No code to paste is known for {used} in {cases}.",
        todo="The file of the backend, in attnbench/backends or your own, shows how attnbench calls it.",
    ),
    Rule(
        _without_gradients,
        "In fwd + bwd the forward of {own} was timed without gradients, and may do more with gradients.",
        todo="--pass fwd_bwd times the step as one.",
    ),
    Rule(
        answered(lambda problem: any(cell.held_down for one in problem.fastest for cell in one.cells)),
        "Power or heat held the clock of the fastest down in {cases}.",
        "In bursts it is faster than in long runs.",
        "attnbench report marks them.",
    ),
    Rule(
        _not_whole,
        "No backend has a right figure of all layers of {model}.",
        "{lacks}",
        "attnbench run --model {model}{tp} measures them.",
    ),
    Rule(
        _measured_again,
        "{answers} left out: the same case was measured in several runs on one model of device.",
        "An answer has the figures of the run of the fastest backend; in {cases}, backends that this run lacks have "
        "the figures of other runs.{cards}{unlike}",
        "Give fewer files for the answer of another run.",
    ),
    Rule(
        _in_two_ways,
        "{answers} left out: both passes were timed as one (fwd_bwd) and separately (fwd + bwd).",
        "A training step runs them as one, so fwd_bwd counts where it has all backends of the sum, or is faster.",
        "--pass chooses.",
    ),
    Rule(_unproven, "In {cases} backends are left out that {told}: {names}.", todo="{todo}"),
    Rule(
        lambda of: _left_out([problem.wrong_elsewhere for problem in of.every]),
        "In {cases} backends are left out that were right in one run and wrong in another: {names}.",
        "A backend that was wrong once is not recommended.",
        "attnbench report shows both.",
    ),
    Rule(
        lambda of: _left_out([problem.elsewhere for problem in of.every]),
        "In {cases} backends are left out that were right as measured in another way (timer, L2, passes apart or as "
        "one): {names}.",
        "Such figures are not comparable.",
        "Measure them again with the other backends; attnbench report shows their figures.",
    ),
)


def _ties(of: Recommended) -> Iterator[dict[str, Any]]:
    """Yield one place for each source of the uncertainty, with the range of uncertainties that decide ties."""
    candidates = [one for problem in of.problems for one in problem.candidates if one.cells[0].uncertainty]
    for how, group in grouped(candidates, lambda one: str(one.cells[0].uncertainty)).items():
        if not (halves := [one.half for one in group if one.half is not None]):
            continue
        ends = dict.fromkeys((percent(min(halves)), percent(max(halves))))
        yield {"ends": " to ".join(ends), "how": capitalized(how)}


def _plans(of: Recommended) -> Places:
    """Return one place for the plans that the backends to use build once a step, or none; latencies lack them."""
    plans: dict[str, list[float]] = {}
    for use in (problem.use for problem in of.answered if problem.use):
        plans.setdefault(use.name, []).extend(plan for cell in use.cells if (plan := cell.value("plan")) is not None)
    said = [f"{name} up to {duration(max(own))}" for name, own in plans.items() if own]
    return when(said, plans=", ".join(said))


PLANS: Rule[Recommended] = Rule(
    _plans,
    "Built once a step, for all layers, and not in the latency: {plans}.",
    todo="attnbench report -m plan has it by cell.",
)
FACTS: Sequence[Rule[Recommended]] = (
    Rule(
        _ties,
        "Latencies tie where they differ by less than both uncertainties ({ends}), in quadrature.",
        "{how}.",
    ),
    PLANS,
)
