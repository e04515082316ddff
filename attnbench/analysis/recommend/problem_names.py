"""The names of problems, by which the answers of one machine are told apart: "16k d128 causal fwd, 64 heads"."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from attnbench.analysis.recommend.findings import Problem
from attnbench.core.axes import Axis
from attnbench.core.groups import grouped
from attnbench.results import case_names
from attnbench.results.case_names import AXES

TOLD = ("headdim", "causal", *case_names.EXTRAS)  # axes in each name except a model's


def label(problem: Problem, with_step: bool = False) -> str:
    """Return a problem as a row of its machine's table: "16k d128 causal fwd, 64 heads", of a model "16k, batch 1"."""
    return ", ".join((_sizes(problem, problem.step if with_step else ""), *problem.apart))


def name(problem: Problem) -> str:
    """Return a problem in a few words: "16k d128 causal fwd + bwd", "all layers of gemma-3-27b, 16k, batch 1, fwd"."""
    model = f"all layers of {problem.model}, " if problem.model else ""
    dtype = f" {problem.case.dtype}" if problem.case.dtype != "bf16" else ""
    return ", ".join((model + _sizes(problem, problem.step) + dtype, *problem.apart))


def told_apart(found: Sequence[Problem]) -> list[Problem]:
    """Return problems with the words that keep their names apart within a machine: heads, batch, ..."""
    differing = {shared: _differing(namesakes) for shared, namesakes in grouped(found, _shared).items()}
    labels = ([axis.label(problem.case) for axis in differing[_shared(problem)]] for problem in found)
    return [replace(problem, apart=tuple(filter(None, own))) for problem, own in zip(found, labels, strict=True)]


def _shared(problem: Problem) -> Hashable:
    return problem.machine, problem.model, problem.step, problem.case.dtype, _sizes(problem)


def _differing(namesakes: Sequence[Problem]) -> list[Axis]:
    """Return the axes that tell problems of one name from each other."""
    axes = [axis for told, axis in AXES.items() if namesakes[0].model or told not in TOLD]
    return [axis for axis in axes if len({axis.value(problem.case) for problem in namesakes}) > 1]


def _sizes(problem: Problem, step: str = "") -> str:
    case, lengths = problem.case, case_names.lengths(problem.case)
    if problem.model:
        batch = "" if case.is_ragged else f"batch {case.shape.batch}"
        return ", ".join(filter(None, (lengths, batch, step)))
    told = (lengths, f"d{case_names.headdim(case)}", case_names.mask(case), step, *case_names.extras(case))
    return " ".join(filter(None, told))
