"""The cells and cases that all machines measured, and the cells that each machine lacks, with the reason."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from attnbench.analysis.compare.machines import Machine
from attnbench.core.axes import AXES, Axis
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.sizes import format_size
from attnbench.core.text import listed, merged, one_line, some, template
from attnbench.results import case_names
from attnbench.results.cells import Key
from attnbench.run.run_command import run_command

T = TypeVar("T")

NOT_PLANNED = "not planned"
NOT_RUN = "not run yet"
NO_TIME = "no figure"
FASTEST_ON_ANOTHER = (
    "the backend that is fastest on another; measure the same backends on all, attnbench run --backend A,B"
)


def common(mappings: Iterable[Mapping[T, object]]) -> list[T]:
    """Return the keys that all mappings have, such as cells or cases of machines, in the order of the first."""
    first, *rest = mappings
    return [key for key in first if all(key in other for other in rest)]


def kinds(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the cases by head dimension, mask and pass ("d128 causal fwd"), with the dtype if there are several.

    Decode, which is bound by memory, is a pass of its own ("d128 causal decode"). Cases on several devices have their
    own kinds, as have the steps of each model: "prefill step of llama-3.1-8b (4 of 32 layers)".
    """
    cases = list(cases)
    several = len({case.dtype for case in cases}) > 1
    found: dict[str, list[Case]] = {}
    for case in cases:
        name = f"d{case_names.headdim(case)} {case_names.mask(case)} {'decode' if case.is_decode else case.direction}"
        if step := case.model_step:
            name = f"{'training' if step.phase == 'train' else step.phase} step of {step.model} ({step.cut})"
        name += f" {case.ranks} devices" if case.ranks > 1 else ""
        found.setdefault(f"{case.dtype} {name}" if several else name, []).append(case)
    return found


def kinds_of_work(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the cases by kind of work: "prefill" (forward), "training" (backward), "decode".

    Cases on several devices have their own kinds, as have the steps of each model.
    """
    order = {"prefill": 0, "training": 1, "decode": 2}
    found: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: (bool(case.model_step), case.ranks, order[work(case)])):
        step = f" step of {case.model_step.model} ({case.model_step.cut})" if case.model_step else ""
        devices = f", {case.ranks} devices" if case.ranks > 1 else ""
        found.setdefault(f"{work(case)}{step}{devices}", []).append(case)
    return found


def work(case: Case) -> str:
    """Return the kind of work of a case: "prefill", "training" or "decode"."""
    if case.model_step:
        return {"train": "training"}.get(case.model_step.phase, case.model_step.phase)
    return "decode" if case.is_decode else "prefill" if case.direction == "fwd" else "training"


def comparable(machines: Sequence[Machine], reference: Machine | None) -> list[Machine]:
    """Return the largest group of machines that share a case.

    `reference` is in it if given, else the first machine where there is a choice of groups. Raises UserError if no two
    machines share a case; its message says how they differ and what to measure.
    """
    owners = [
        tuple(m for m in machines if case in m.fastest) for case in {c: None for m in machines for c in m.fastest}
    ]
    groups = Counter(of for of in owners if len(of) > 1 and (reference is None or reference in of))
    if groups:
        return [*max(groups, key=lambda of: (len(of), machines[0] in of, groups[of]))]
    for machine in machines:
        if not machine.fastest:
            raise UserError(f"{machine.label} ({machine.files[0].path}) has {_no_figure(machine)}")
    first = reference or machines[0]
    other = next(machine for machine in machines if machine is not first)
    fewer = min(first, other, key=lambda m: len(m.fastest))
    raise UserError(
        f"{first.label} and {other.label} have no case in common: {_differing_axes(first, other)}; "
        "give files of one machine one name (--name FILE=LABEL), or measure the same on both, as in "
        f"{run_command(fewer.fastest)}"
    )


def why_left_out(machine: Machine, compared: Sequence[Machine]) -> str:
    """Return why a machine is not compared with others."""
    if not machine.fastest:
        return f"{machine.label} has {_no_figure(machine)}"
    labels = listed(other.label for other in compared)
    apart = _differing_axes(compared[0], machine)
    return f"{machine.label} has no case in common with {labels}: {apart}"


def _no_figure(machine: Machine) -> str:
    """Return a message that a machine has no usable figure, with the command that shows its files."""
    if machine.log_rounds and not any(map(machine.is_ranked, machine.log_rounds)):
        return "figures only of own code or of approximations, which are in no ranking: nothing to compare"
    if machine.log_rounds:
        known = "is known to better than a factor of 1.5 and is the device's"
        return f"no case whose fastest figure {known}: nothing to compare"
    if all(file.run.search for file in machine.files):
        shown = f"attnbench capacity {shlex.quote(str(machine.files[0].path))}"
        return f"no time of a call: its files are searches for what fits, which {shown} shows"
    return "no figure at all: nothing to compare"


@dataclass(frozen=True)
class MissingCells:
    """Cells of one backend that a machine lacks for one reason, while another machine has a figure for them."""

    machine: str
    cells: int
    why: str  # of case_names.ENDINGS, or NOT_PLANNED, NOT_RUN, NO_TIME
    backend: str
    where: str  # "64k; d128"; "" where all cells of the backend are missing
    reason: str  # "" if `why` needs none


def missing_cells(machines: Sequence[Machine]) -> list[MissingCells]:
    """Return the cells that each machine lacks, grouped by backend and reason, without own code."""
    every = (key for machine in machines for key in machine.log_rounds if key[1] not in machine.own_code)
    measured = list(dict.fromkeys(every))
    found = []
    for machine in machines:
        alike: dict[tuple[str, str, str], list[tuple[Case, str]]] = {}
        for case, backend in measured:
            if (case, backend) not in machine.log_rounds:
                why, reason = why_missing(machine, (case, backend))
                alike.setdefault((backend, why, template(reason)), []).append((case, reason))
        for (backend, why, _), members in alike.items():
            cases = [case for case, _ in members]
            where = case_names.where(cases, [case for case, other in measured if other == backend])
            reason = merged([reason for _, reason in members])
            found.append(MissingCells(machine.label, len(cases), why, backend, where, reason))
    return found


def why_missing(machine: Machine, key: Key) -> tuple[str, str]:
    """Return (`why`, `reason`) of MissingCells for a cell without a figure on a machine."""
    cell = machine.cells.get(key)
    if cell is None:
        return (NOT_RUN if key in machine.planned else NOT_PLANNED), ""
    if cell.status == "ok":
        return NO_TIME, cell.not_computed or "no sample of its time"
    return case_names.ENDINGS[cell.status], one_line(cell.reason or "no reason given")


def _differing_axes(first: Machine, other: Machine) -> str:
    """Return the axes on which two machines have no common value: "dtype bf16 on H200, fp32 on EPYC CPU"."""
    parts = []
    for name, read in _AXES.items():
        ours, theirs = ({read(case) for case in machine.fastest} for machine in (first, other))
        if not ours & theirs:
            parts.append(f"{name} {_few(ours)} on {first.label}, {_few(theirs)} on {other.label}")
    return "; ".join(parts) or "they share values of every axis, but no combination of these"


def _written(axis: Axis, case: Case) -> str:
    return axis.text(axis.of(case))


_AXES: Mapping[str, Callable[[Case], str]] = {
    "dtype": lambda case: case.dtype,
    "seqlen": case_names.lengths,
    "tokens": lambda case: format_size(case.extent.batch * case.extent.seqlen_k),
    "heads": case_names.heads,
    "headdim": case_names.headdim,
    "mask": case_names.mask,
    "pass": lambda case: case.direction,
    **{name: partial(_written, AXES[name]) for name in case_names.EXTRAS},
}


def _few(values: Iterable[str]) -> str:
    return some(sorted(values, key=lambda value: (len(value), value)), 4)
