"""The documents of `attnbench baseline`: the saved run with its doubts, the list, and baselines in full."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.analysis.baseline.baseline_files import Baseline
from attnbench.analysis.gate.cell_states import state
from attnbench.analysis.gate.margins import ROUNDS
from attnbench.core import formats, stats
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.render.document import Block, Column, Document, Line, Paragraphs, Span, Table
from attnbench.results import case_names, metrics, run_file
from attnbench.results.case_names import full_name
from attnbench.results.cells import Cell, cells

# The columns of metrics that `show` has beside the latency, and their headings.
SHOWN = {"memory_peak": "memory", "error": "error", "first_call": "first call"}


def doubts(run: Run, path: Path) -> list[str]:
    """Return why a run makes a poor baseline, one line each."""
    found = []
    if left := run_file.missing(run):
        found.append(
            f"{path}: {count(len(left), 'job')} of {len(run.plan)} not measured, and so not gated; "
            f"finish it first with attnbench run --resume {shlex.quote(str(path))}"
        )
    if (rounds := _rounds(run)) < ROUNDS:
        found.append(f"{path} has {count(rounds, 'round')}: a weak baseline; measure with --rounds {ROUNDS}")
    if shared := {other for r in run.records for other in r.others}:
        found.append(f"{path}: other processes used the GPU meanwhile ({some(sorted(shared))}); measure it again")
    return found


def saved(path: Path, run: Run, before: Sequence[Run]) -> Document:
    """Return the document of `save`: the file, the cells that cannot regress, and what to do next.

    `before`: the heads of the runs that it replaced.
    """
    measured = cells([run])
    working = sum(c.status == "ok" for c in measured)
    nbytes = path.stat().st_size
    numbers = f"{count(working, 'cell')}, {count(_rounds(run), 'round')}, {formats.size(nbytes)}"
    lines = [f"Saved: {path} ({numbers})" + _in_place_of(before)]
    if broken := [c for c in measured if c.status not in ("ok", "skipped")]:
        names = some(f"{_name(c)}: {case_names.ENDINGS[c.status]}" for c in broken)
        lines.append(f"{count(len(broken), 'cell')} did not work and so cannot regress: {names}")
    if flaky := [c for c in measured if state(c) == "flaky"]:
        number = count(len(flaky), "cell")
        lines.append(
            f"{number} failed in some rounds, so failures in some rounds of a later run are no regression: "
            f"{some(map(_name, flaky))}"
        )
    lines.append(f"Commit it, then: attnbench gate {shlex.quote(str(path.parent))} RUN")
    return Document(
        command="baseline save",
        title=f"Saved: {path}",
        blocks=(_paragraphs(*lines),),
        data={"path": str(path), "cells": working, "rounds": _rounds(run), "bytes": nbytes},
    )


def _in_place_of(before: Sequence[Run]) -> str:
    if not before:
        return ""
    return f", in place of {f'{len(before)} runs' if len(before) > 1 else f'the run of {before[0].started}'}"


def listed(found: Sequence[Baseline], folder: Path) -> Document:
    """Return the document of `list`: one row for each baseline."""
    rows: list[dict[str, Any]] = [
        {
            "name": b.name,
            "gpu": b.gpu,
            "suite": b.head.suite,
            "started": b.head.started,
            "torch": b.head.environment.torch,
            "driver": b.head.environment.driver,
            "git": b.head.environment.git,
            "bytes": b.path.stat().st_size,
            "path": str(b.path),
        }
        for b in found
    ]
    block: Block = _paragraphs(f"No baselines in {folder}; make one with attnbench baseline save RUN.")
    if rows:
        keys = ("name", "gpu", "suite", "started", "torch", "driver")
        block = Table(
            name="baselines",
            columns=tuple(map(Column, ("name", "GPU", "suite", "measured", "torch", "driver", "size"))),
            rows=tuple((*(str(row[key] or "-") for key in keys), formats.size(row["bytes"])) for row in rows),
        )
    return Document("baseline list", f"Baselines in {folder}", blocks=(block,), data=rows, rows=rows)


def shown(baselines: Mapping[Path, Run]) -> Document:
    """Return the document of `show`: for each baseline how it was measured, and the figures of its cells."""
    headings = ("rounds", "latency", "spread", *SHOWN.values())
    columns = (Column("cell"), *(Column(heading, "right") for heading in headings))
    blocks: list[Block] = []
    rows: list[dict[str, Any]] = []
    for path, run in baselines.items():
        here = run.environment
        software = {"attnbench": here.attnbench, "torch": here.torch, "driver": here.driver, "git": here.git}
        lines: list[Line] = [(Span(", ".join(f"{name} {version}" for name, version in software.items() if version)),)]
        if run.argv:
            lines.append((Span(f"attnbench {shlex.join(run.argv)}", "quiet"),))
        blocks.append(Paragraphs(tuple(lines), f"{path}: {here.device.name}, suite {run.suite}, {run.started}"))
        own = [_cell_data(cell, path) for cell in cells([run])]
        blocks.append(Table(str(path), columns, tuple(map(_entries, own))))
        rows += own
    notes = ((Span("spread: the slowest round over the fastest, less 1", "quiet"),),)
    title = f"Baseline {some(dict.fromkeys(path.parent.name for path in baselines))}"
    return Document("baseline show", title, blocks=tuple(blocks), notes=notes, data=rows, rows=rows)


def _cell_data(cell: Cell, path: Path) -> dict[str, Any]:
    """Return the figures of a cell for programs, in the units of their metrics; None for a figure that it lacks."""
    rounds = [*cell.rounds("latency").values()] if cell.status == "ok" else []
    return {
        "baseline": str(path),
        "case": cell.case.key,
        "backend": cell.backend,
        "cell": _name(cell),
        "status": cell.status,
        "rounds": len(rounds) or len(cell.rows),
        "latency": stats.median(rounds) if rounds else None,
        "spread": max(rounds) / min(rounds) - 1 if rounds and min(rounds) > 0 else None,
        **{name: cell.value(name) if rounds else None for name in (*SHOWN, "approximation_error")},
    }


def _entries(row: Mapping[str, Any]) -> tuple[str, ...]:
    error = row["approximation_error"]
    name = row["cell"] if error is None else f"{row['cell']} (approx., err {formats.percent(error)})"
    start = (name, str(row["rounds"]))
    if row["latency"] is None:
        return (*start, case_names.ENDINGS.get(row["status"], case_names.NOTHING), *[""] * (1 + len(SHOWN)))
    writers = {"latency": formats.duration, "spread": formats.percent}
    writers |= {name: metrics.METRICS[name].format for name in SHOWN}
    figures = ((write, row[name]) for name, write in writers.items())
    return (*start, *(case_names.NOTHING if value is None else write(value) for write, value in figures))


def _paragraphs(*lines: str) -> Paragraphs:
    return Paragraphs(tuple((Span(line),) for line in lines))


def _name(cell: Cell) -> str:
    return full_name(cell.backend, cell.case)


def _rounds(run: Run) -> int:
    """Return the number of rounds in which something was measured."""
    return len({r.round for r in run.records if r.status == "ok"})
