"""Baselines in words and tables: what was saved and what to doubt of it, the list, and one in full."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from attnbench.analysis.gate.endings import state
from attnbench.analysis.gate.findings import name
from attnbench.analysis.gate.notes import ROUNDS
from attnbench.core import stats
from attnbench.core.record import Run
from attnbench.results import case_names, metrics, run_file
from attnbench.results.cells import Cell, cells

if TYPE_CHECKING:
    from rich.console import Console

    from attnbench.analysis.baseline.files import Baseline

HEADINGS = {"memory_peak": "memory", "error": "error", "first_call": "first call"}  # beside the latency, all gated


def doubts(run: Run, path: Path) -> list[str]:
    """Why a run makes a poor baseline, one line each."""
    found = []
    if left := run_file.missing(run):
        found.append(
            f"{path}: {case_names.count(len(left), 'job')} of {len(run.plan)} not measured, and so not gated; "
            f"finish it first with attnbench run --resume {path}"
        )
    if (rounds := _rounds(run)) < ROUNDS:
        found.append(f"{path} has {case_names.count(rounds, 'round')}: a weak baseline; measure with --rounds {ROUNDS}")
    if shared := {other for r in run.records for other in r.others}:
        found.append(
            f"{path}: others computed on the GPU meanwhile ({case_names.some(sorted(shared))}); measure it again"
        )
    return found


def saved(path: Path, run: Run, before: Run | None) -> str:
    """What is there now, and what to do with it."""
    some = cells([run])
    working = sum(c.status == "ok" for c in some)
    lines = [
        f"Saved: {path} ({case_names.count(working, 'cell')}, {case_names.count(_rounds(run), 'round')}, "
        f"{metrics.size(path.stat().st_size)})"
    ]
    if before:
        lines[0] += f", in place of the one of {before.started}"
    if broken := [c for c in some if c.status not in ("ok", "skipped")]:
        names = case_names.some(f"{name(c.backend, c.case)}: {case_names.ENDINGS[c.status]}" for c in broken)
        lines.append(f"{case_names.count(len(broken), 'cell')} did not work and so cannot regress: {names}")
    if flaky := [c for c in some if state(c) == "flaky"]:
        names = case_names.some(name(c.backend, c.case) for c in flaky)
        number = case_names.count(len(flaky), "cell")
        lines.append(f"{number} failed in some rounds, so to fail in some again is no regression: {names}")
    return "\n".join([*lines, f"Commit it, then: attnbench gate {path.parent} RUN"])


def render_list(console: Console, found: Sequence[Baseline], folder: Path) -> None:
    if not found:
        console.print(f"No baselines in {folder}; make one with attnbench baseline save RUN.", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "GPU", "suite", "measured", "torch", "driver", "size"):
        table.add_column(heading, overflow="fold")
    for b in found:
        here = b.head.environment
        size = metrics.size(b.path.stat().st_size)
        row = (b.name, b.gpu, b.head.suite, b.head.started, here.torch or "-", here.driver or "-", size)
        table.add_row(*map(Text, row))
    console.print(table)


def render(console: Console, run: Run, path: Path) -> None:
    here = run.environment
    console.print(Text(f"{path}: {here.device.name}, suite {run.suite}, {run.started}", "bold"), soft_wrap=True)
    software = {"attnbench": here.attnbench, "torch": here.torch, "driver": here.driver, "git": here.git}
    console.print(Text(", ".join(f"{name} {version}" for name, version in software.items() if version)))
    if run.argv:
        console.print(Text(f"attnbench {shlex.join(run.argv)}", "dim"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cell", overflow="fold")
    for heading in ("rounds", "latency", "apart", *HEADINGS.values()):
        table.add_column(heading, justify="right", overflow="fold")
    for cell in cells([run]):
        table.add_row(*map(Text, _row(cell)))
    console.print(table)
    console.print(Text("apart: the slowest round over the fastest, less 1", "dim"))


def _row(cell: Cell) -> tuple[str, ...]:
    rounds = [v for r in cell.records if (v := metrics.value("latency", r)) is not None]
    if cell.status != "ok" or not rounds:
        return (
            name(cell.backend, cell.case),
            str(len(cell.records)),
            case_names.ENDINGS.get(cell.status, case_names.NOTHING),
        )
    figures = [(metrics.METRICS[m], cell.value(m)) for m in HEADINGS]
    return (
        name(cell.backend, cell.case),
        str(len(rounds)),
        metrics.duration(stats.median(rounds)),
        metrics.percent(max(rounds) / min(rounds) - 1),
        *(case_names.NOTHING if value is None else metric.format(value) for metric, value in figures),
    )


def _rounds(run: Run) -> int:
    return len({r.round for r in run.records if r.status == "ok"})
