"""The cells and cases that all machines measured, and a helpful error where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnbench.analysis.compare.machines import Machine
from attnbench.core.case import DTYPES, Case
from attnbench.core.errors import UserError
from attnbench.core.sizes import format_size
from attnbench.core.text import count, some
from attnbench.results import case_names
from attnbench.results.cells import Key


def common_keys(machines: Sequence[Machine]) -> list[Key]:
    """Return the cells with a figure on all machines, in the order of a report."""
    first, *rest = machines
    return [key for key in first.log_latencies if all(key in machine.log_latencies for machine in rest)]


def common_cases(fastest: Iterable[Mapping[Case, str]]) -> list[Case]:
    """Return the cases that have a fastest backend on every machine; one mapping a machine."""
    first, *rest = fastest
    return [case for case in first if all(case in backends for backends in rest)]


def kinds(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """Return the cases by head dimension, mask and pass ("d128 causal fwd"), with the dtype where there are several."""
    cases = list(cases)
    several = len({case.dtype for case in cases}) > 1
    found: dict[str, list[Case]] = {}
    for case in cases:
        name = f"d{case_names.headdim(case)} {case_names.mask(case)} {case.direction}"
        found.setdefault(f"{case.dtype} {name}" if several else name, []).append(case)
    return found


def check_common_cases(machines: Sequence[Machine]) -> None:
    """Raise UserError where no case is common to all machines; it says where they differ and what to measure."""
    if common_cases(machine.fastest for machine in machines):
        return
    for machine in machines:
        if not machine.fastest:
            raise UserError(f"{machine.label} ({machine.files[0].path}) has no figure at all: nothing to compare")
    first = machines[0]
    for machine in machines[1:]:
        if not machine.fastest.keys() & first.fastest.keys():
            fewer = min(first, machine, key=lambda m: len(m.fastest))
            raise UserError(
                f"{first.label} and {machine.label} have no case in common: {_differing_axes(first, machine)}; "
                f"measure the same on both, as in {_run_command(fewer.fastest)}"
            )
    raise UserError(
        "no case is common to all machines, though each has some in common with another: "
        + ", ".join(f"{m.label} has {count(len(m.fastest), 'case')}" for m in machines)
        + "; measure the same suite on all, or compare fewer"
    )


def _differing_axes(first: Machine, other: Machine) -> str:
    """Return the axes on which no value is common: "dtype bf16 on H200, fp32 on EPYC CPU"."""
    parts = []
    theirs = _axis_values(other.fastest)
    for name, values in _axis_values(first.fastest).items():
        if not values & theirs[name]:
            parts.append(f"{name} {_few(values)} on {first.label}, {_few(theirs[name])} on {other.label}")
    return "; ".join(parts) or "no combination of their axes meets"


def _axis_values(cases: Iterable[Case]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        s = case.shape
        for name, value in (
            ("dtype", case.dtype),
            ("seqlen", case_names.lengths(case)),
            ("tokens", format_size(s.batch * s.seqlen_k)),
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
    return some(sorted(values, key=lambda v: (len(v), v)), 4)


def _run_command(cases: Iterable[Case]) -> str:
    """Return the `attnbench run` that measures such cases on any device."""
    cases = list(cases)
    shapes = [case.shape for case in cases]
    dtypes = sorted({case.dtype for case in cases}, key=DTYPES.index)
    tokens = {s.batch * s.seqlen_k for s in shapes}
    batches = sorted({s.batch for s in shapes})
    lengths = sorted({s.seqlen_k for s in shapes})
    headdims = sorted({(s.headdim, s.headdim_v) for s in shapes})
    dims = [f"{d}" if d == dv else f"{d}-{dv}" for d, dv in headdims]
    size = f"--tokens {format_size(tokens.pop())}" if len(tokens) == 1 else f"--batch {','.join(map(str, batches))}"
    heads = ",".join(str(n) for n in sorted({s.nheads for s in shapes}))
    options = [
        f"attnbench run --dtype {','.join(dtypes)} --seqlen {','.join(map(format_size, lengths))} {size} "
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
    """Return the window as --window reads it, whatever the mask."""
    if case.window_size == (None, None):
        return "none"
    return "/".join("open" if side is None else str(side) for side in case.window_size)
