"""What machines have in common, the fastest backend of each, and what each lacks and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DTYPES, Case
from attnbench.core.errors import UserError
from attnbench.core.sizes import short
from attnbench.results import case_names, decode
from attnbench.results.cells import Cell, Key

NOT_PLANNED = "not planned"
NOT_RUN = "not run yet"
NO_TIME = "no figure"
Best = Mapping[Case, str]  # case -> the fastest backend


@dataclass(frozen=True)
class Lack:
    """Cells that another machine has a figure of and this one has not, for one reason."""

    machine: str
    why: str  # of words.ENDINGS, or NOT_PLANNED, NOT_RUN
    backend: str
    cells: tuple[Cell, ...]  # as another machine has them
    where: str  # "64k; d128"; "" for all of the backend's
    reason: str  # "" where `why` says all


def common(found: Sequence[Machine]) -> list[Key]:
    """The cells with a figure on all machines, in the order of a report."""
    first, *rest = found
    return [key for key in first.logs if all(key in m.logs for m in rest)]


def best(machine: Machine, keys: Iterable[Key] | None = None) -> dict[Case, str]:
    """The fastest backend of every case that has a figure; of these cells only, if given."""
    found: dict[Case, Key] = {}
    for key in machine.logs if keys is None else keys:
        rival = found.get(key[0])
        if rival is None or machine.means[key] < machine.means[rival]:
            found[key[0]] = key
    return {case: backend for case, (_, backend) in found.items()}


def common_cases(bests: Iterable[Best]) -> list[Case]:
    """The cases with a figure of some backend on all machines."""
    first, *rest = bests
    return [case for case in first if all(case in b for b in rest)]


def group(case: Case, dtypes: bool) -> str:
    """What a case is a part of: d128 causal fwd, with the dtype in front where there are several."""
    name = f"d{case_names.headdim(case)} {case_names.mask(case)} {case.direction}"
    return f"{case.dtype} {name}" if dtypes else name


def groups(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """By dtype, head dimension, mask and pass, in the order given."""
    cases = list(cases)
    several = len({case.dtype for case in cases}) > 1
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(group(case, several), []).append(case)
    return found


def lacks(found: Sequence[Machine]) -> list[Lack]:
    """Of each machine the cells that another has a figure of, brought together by backend and reason."""
    universe: dict[Key, Cell] = {}
    for machine in found:
        universe |= {key: machine.cells[key] for key in machine.logs if key not in universe}
    if all(len(machine.logs) == len(universe) for machine in found):
        return []
    by_backend: dict[str, list[Cell]] = {}
    for (_, backend), cell in universe.items():
        by_backend.setdefault(backend, []).append(cell)
    lines = []
    for machine in found:
        cases, backends, _ = decode.keys(machine.run.plan)
        planned = {*zip(cases, backends, strict=True)}
        gathered: dict[tuple[str, str, str], list[tuple[Cell, str]]] = {}
        for key, cell in universe.items():
            if key not in machine.logs:
                why, reason = _why(machine.cells.get(key), key in planned)
                gathered.setdefault((key[1], why, case_names.template(reason)), []).append((cell, reason))
        for (backend, why, _), members in gathered.items():
            cells = tuple(cell for cell, _ in members)
            reason = case_names.merged([reason for _, reason in members]) if members[0][1] else ""
            where = case_names.where(cells, by_backend[backend])
            lines.append(Lack(machine.label, why, backend, cells, where, reason))
    return lines


def _why(cell: Cell | None, planned: bool) -> tuple[str, str]:
    if cell is None:
        return (NOT_RUN if planned else NOT_PLANNED), ""
    if cell.status == "ok":
        return NO_TIME, "no sample of its time"
    return case_names.ENDINGS[cell.status], case_names.one_line(cell.reason or "no reason given")


def check(found: Sequence[Machine], bests: Sequence[Best]) -> None:
    """Raises UserError, which says where they part and what to measure, if not a single case is common to all."""
    if common_cases(bests):
        return
    for machine, own in zip(found, bests, strict=True):
        if not own:
            raise UserError(f"{machine.label} ({machine.files[0].path}) has no figure at all: nothing to compare")
    first = found[0]
    for machine, own in zip(found[1:], bests[1:], strict=True):
        if not own.keys() & bests[0].keys():
            raise UserError(
                f"{first.label} and {machine.label} have no case in common: {_apart(bests[0], own, first, machine)}; "
                f"measure the same on both, as in {_command(own if len(own) < len(bests[0]) else bests[0])}"
            )
    raise UserError(
        "no case is common to all machines, though each has some in common with another: "
        + ", ".join(f"{m.label} has {case_names.count(len(own), 'case')}" for m, own in zip(found, bests, strict=True))
        + "; measure the same suite on all, or compare fewer"
    )


def _apart(ours: Best, theirs: Best, first: Machine, other: Machine) -> str:
    """The axes on which no value is common: "dtype bf16 on H200 and fp32 on EPYC CPU"."""
    parts = []
    for name, values in _axes(ours).items():
        others = _axes(theirs)[name]
        if not values & others:
            parts.append(f"{name} {_few(values)} on {first.label}, {_few(others)} on {other.label}")
    return "; ".join(parts) or "no combination of their axes meets"


def _axes(cases: Iterable[Case]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        s = case.shape
        for name, value in (
            ("dtype", case.dtype),
            ("seqlen", case_names.lengths(case)),
            ("tokens", short(s.batch * s.seqlen_k)),
            ("heads", case_names.heads(case)),
            ("headdim", case_names.headdim(case)),
            ("mask", case_names.mask(case)),
            ("pass", case.direction),
            ("softcap", f"{case.softcap:g}"),
            ("dropout", f"{case.dropout_p:g}"),
        ):
            found.setdefault(name, set()).add(value)
    return found


def _few(values: Iterable[str]) -> str:
    return case_names.some(sorted(values, key=lambda v: (len(v), v)), 4)


def _command(cases: Iterable[Case]) -> str:
    """What would measure such cases on any device."""
    cases = list(cases)
    shapes = [case.shape for case in cases]
    dtypes = sorted({case.dtype for case in cases}, key=DTYPES.index)
    tokens = {s.batch * s.seqlen_k for s in shapes}
    batches = sorted({s.batch for s in shapes})
    lengths = sorted({s.seqlen_k for s in shapes})
    headdims = sorted({(s.headdim, s.headdim_v) for s in shapes})
    dims = [f"{d}" if d == dv else f"{d}-{dv}" for d, dv in headdims]
    size = f"--tokens {short(tokens.pop())}" if len(tokens) == 1 else f"--batch {','.join(map(str, batches))}"
    heads = ",".join(str(n) for n in sorted({s.nheads for s in shapes}))
    options = [
        f"attnbench run --dtype {','.join(dtypes)} --seqlen {','.join(map(short, lengths))} {size} "
        f"--nheads {heads} --headdim {','.join(dims)}"
    ]
    for name, values, usual in (
        ("window", {_window(case) for case in cases}, "none"),
        ("softcap", {f"{case.softcap:g}" for case in cases}, "0"),
        ("dropout", {f"{case.dropout_p:g}" for case in cases}, "0"),
    ):
        if values != {usual}:
            options.append(f"--{name} {','.join(sorted(values))}")
    return " ".join(options)


def _window(case: Case) -> str:
    """As --window reads it, whatever the mask."""
    if case.window_size == (None, None):
        return "none"
    return "/".join("open" if side is None else str(side) for side in case.window_size)
