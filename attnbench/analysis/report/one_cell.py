"""`report --cell`: single cells in full, with all that their records hold."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.report.machine_summary import machines
from attnbench.core import formats, stats
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.json import to_json
from attnbench.core.record import Accuracy, Record
from attnbench.core.text import count, some
from attnbench.render.document import (
    Bar,
    Block,
    Caution,
    Code,
    Column,
    Document,
    Ending,
    Line,
    Pairs,
    Paragraphs,
    Span,
    Table,
)
from attnbench.results import bits, case_names
from attnbench.results.cells import Cell, runs_of
from attnbench.results.disturbed import doubt
from attnbench.results.export_rows import COLUMNS, table_rows
from attnbench.results.metrics import METRICS
from attnbench.results.uncertainty import NORMAL

MOST = 8  # cells that are shown one after another
LISTED = 12  # cells that are named where there are too many
FEW = 10  # samples that are listed one by one; more are counted in bins
BINS = 12
_FORMATS: Mapping[str, Callable[[float], str]] = {  # by unit
    "s": formats.duration,
    "B": formats.size,
    "Hz": formats.megahertz,
    "J": formats.energy,
    "FLOP/s": lambda rate: f"{formats.digits(rate / 1e12)} TFLOP/s",
    "B/s": lambda rate: f"{formats.digits(rate / 1e9)} GB/s",
    "": formats.digits,
}


def select(cells: Sequence[Cell], pattern: str) -> list[Cell]:
    """Return the cells that a pattern names: a whole name, else some of its words, else any part of it, or a glob.

    Names are those of tables and lines, with or without the dtype. Raises UserError for no cell and for more than
    MOST.
    """
    named = [(cell, {cell.name, case_names.case_name(cell.backend, cell.case, dtype=True)}) for cell in cells]
    words = {*pattern.split()}
    tests: tuple[Callable[[str], bool], ...] = (
        lambda name: name == pattern,
        lambda name: words <= {*name.split()},
        lambda name: pattern in name or fnmatch.fnmatchcase(name, pattern),
    )
    for test in tests if words else ():
        if found := [cell for cell, names in named if any(map(test, names))]:
            if len(found) > MOST:
                several = some(dict.fromkeys(cell.name for cell in found), LISTED)
                raise UserError(f"--cell: {pattern!r} is in {len(found)} cells ({several}); give more of the name")
            return found
    nearest = difflib.get_close_matches(pattern, [cell.name for cell in cells], n=1, cutoff=0.0)
    raise UserError(f"--cell: no cell {pattern!r}" + (f'; the nearest is "{nearest[0]}"' if nearest else ""))


def document(cells: Sequence[Cell]) -> Document:
    """Return the document of some cells in full, one after another."""
    records = [(cell, row.record) for cell in cells for row in cell.rows]
    return Document(
        command="report",
        title=some(dict.fromkeys(cell.name for cell in cells)),
        answer=doubt(runs_of(cells)),
        machines=tuple(machines(cells)),
        blocks=tuple(block for number, cell in enumerate(cells) for block in _blocks(cell, number)),
        cautions=tuple(Caution(f"{_name(cell, r)}: {note}") for cell, r in records for note in r.notes),
        data=[_data(cell) for cell in cells],
        rows=list(table_rows(cells)),
        columns=COLUMNS,
    )


def _name(cell: Cell, record: Record) -> str:
    """Return the name of a cell, with the round where there are several."""
    return f"{cell.name}, round {record.round}" if len(cell.rows) > 1 else cell.name


def _blocks(cell: Cell, number: int) -> Iterator[Block]:
    """Yield the blocks of one cell; `number` tells its tables from the tables of other cells."""
    yield Pairs(tuple(_facts(cell)), cell.name)
    if why := tuple(_endings(cell)):
        yield Paragraphs(why)
    for row in cell.rows:
        record, of = row.record, f"{number}-{row.record.round}"
        after = f", round {record.round}" if len(cell.rows) > 1 else ""
        if record.measurements:
            yield _samples(record, f"samples-{of}", f"samples{after}")
        if row.samples:
            each = ", ".join(map(formats.duration, row.samples))
            yield (
                _histogram(sorted(row.samples), f"histogram-{of}")
                if len(row.samples) > FEW
                else Pairs((("latency of each", each, ""),))
            )
        if record.accuracy:
            yield _errors(record.accuracy, f"errors-{of}", f"error against the reference{after}")
        if record.kernels:
            entries = tuple((str(times), name) for name, times in record.kernels.items())
            what = "operators" if cell.run.environment.device.kind == "cpu" else "kernels"
            columns = (Column("times", "right", wrap=False), Column(f"{what} of one call{after}"))
            yield Table(f"kernels-{of}", columns, entries)
        if record.stderr:
            yield Code(record.stderr, f"the end of the worker's stderr{after}")
    if metrics := tuple(_metrics(cell)):
        yield Pairs(metrics, "metrics")


def _endings(cell: Cell) -> Iterator[Line]:
    """Yield why each round has no figure."""
    for record in (row.record for row in cell.rows if not row.ok):
        word = case_names.ENDINGS[record.status]
        of = f" in round {record.round}" if len(cell.rows) > 1 else ""
        yield Span(f"{word}{of}: ", Ending(word).style), Span(record.reason or "no reason given")


def _facts(cell: Cell) -> Iterator[tuple[str, str, str]]:
    s = cell.case.extent
    yield "status", case_names.ENDINGS.get(cell.status, "ok"), ""
    yield "case", _described(cell.case), ""
    keys = f"({s.batch}, {s.seqlen_k}, {s.nheads_k}"
    q, k, v = f"({s.batch}, {s.seqlen_q}, {s.nheads}, {s.headdim})", f"{keys}, {s.headdim})", f"{keys}, {s.headdim_v})"
    yield "tensors", f"q {q}, k {k}, v {v}", ""
    version = cell.run.versions.get(cell.backend, "").removeprefix(f"{cell.backend}, ")
    yield "backend", ", ".join(filter(None, (cell.backend, version, cell.run.specs.get(cell.backend)))), ""
    if python := cell.run.interpreters.get(cell.backend):
        yield "interpreter", python, ""
    if known := cell.uncertainty:
        within = f"within the process {formats.percent(known.within)}, " if known.within is not None else ""
        units = f"; between units of a model {formats.percent(NORMAL * cell.units)} more" if cell.units else ""
        what = "tracing" if cell.uses_span else "other work on the CPU"
        load = f"; {what} {formats.percent(known.added)}" if known.added else ""
        yield "uncertainty", f"{formats.percent(known.total)}, with 95 %: {within}{known}{load}{units}", ""
    if cell.bits:
        said = bits.differences(cell.bits) or f"the same in {cell.bits[0].launches} launches"
        yield "bits", "; ".join(filter(None, (said, bits.untried(cell.bits)))), ""
    for row in cell.rows:
        record = row.record
        of = f" {record.round}" if len(cell.rows) > 1 else ""
        if forecast := record.forecast:
            job = [formats.duration(forecast.seconds), f"one call {formats.duration(forecast.call)}"]
            yield f"forecast{of}", ", ".join((*job, formats.size(forecast.nbytes))), ""
        if record.seconds is not None:
            yield f"took{of}", formats.duration(record.seconds), ""
        if record.timer:
            timed = [record.timer, f"L2 {record.l2}" if record.l2 else "", "host-bound" if row.host_bound else ""]
            yield f"timer{of}", ", ".join(filter(None, timed)), ""
        if record.approximation:
            yield f"approximation{of}", record.approximation.what, "of attention; err is the error of out"
        for label, found in (("clock limited by", record.limits), ("others on the GPU", record.others)):
            if found:
                yield f"{label}{of}", ", ".join(found), ""
        if record.ecc_errors:
            yield f"memory errors{of}", str(record.ecc_errors), ""


def _described(case: Case) -> str:
    heads = f"batch {case.shape.batch}, {case_names.counted_heads(case)}"
    return f"{case_names.case_name('', case, dtype=True).strip()}, {heads} ({case.key})"


def _samples(record: Record, name: str, title: str) -> Table:
    """Return a row for each measurement: the number of samples, and their quartiles."""
    headings = ("count", "min", "25%", "median", "75%", "max")
    rows = []
    for measured, m in record.measurements.items():
        if not m.values:
            continue
        spread = (0, 25, 50, 75, 100) if len(m.values) > 1 else (50,)
        texts = {p: _text(stats.percentile(m.values, p), m.unit) for p in spread}
        rows.append((measured, str(len(m.values)), *(texts.get(p, "") for p in (0, 25, 50, 75, 100))))
    columns = (Column(title, wrap=False), *(Column(heading, "right", wrap=False) for heading in headings))
    return Table(name, columns, tuple(rows))


def _text(value: float, unit: str) -> str:
    return _FORMATS[unit](value) if unit in _FORMATS else f"{formats.digits(value)} {unit}"


def _histogram(ordered: Sequence[float], name: str) -> Table:
    """Return the number of samples in each of BINS equal parts of their range; the last part has all larger ones too.
    The range ends at the 99th percentile, as a single late sample would leave one bin for all others.
    """
    low, high = ordered[0], stats.percentile(ordered, 99)
    width = (high - low) / BINS or low or 1.0
    counts = [0] * BINS
    for value in ordered:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    while len(counts) > 1 and not counts[-1]:
        counts.pop()
    most, middle = max(counts), stats.median(ordered) or 1.0
    rows = tuple(
        (f"{(low + i * width) / middle:.2%}", str(n) if n else "", Bar(0.0, n / most) if n else "")
        for i, n in enumerate(counts)
    )
    columns = (
        Column("latency from, of the median", "right", wrap=False),
        Column("samples", "right", wrap=False),
        Column("", wrap=False),
    )
    return Table(name, columns, rows)


def _errors(accuracy: Accuracy, name: str, title: str) -> Table:
    headings = ("max error", "allowed", "of that", "eager's", "relative")
    rows = tuple(
        (
            result,
            *map(formats.digits, (e.max_error, e.tolerance)),
            formats.percent(e.max_error / e.tolerance) if e.tolerance else "",
            *map(formats.digits, (e.eager_error, e.relative)),
        )
        for result, e in accuracy.errors.items()
    )
    columns = (Column(title), *(Column(heading, "right", wrap=False) for heading in headings))
    compared = f"Compared: {count(accuracy.rows, 'query row')} of {count(accuracy.heads, 'head')}."
    return Table(name, columns, rows, note=compared)


def _metrics(cell: Cell) -> Iterator[tuple[str, str, str]]:
    """Yield the metrics that the cell has; the median of several rounds."""
    for metric in METRICS.values():
        value = cell.value(metric.name)
        if value is not None:
            text = metric.format(value)
            if metric.name == "error":
                text = f"{formats.percent(value)} of the error allowed"
            own_unit = metric.unit in ("", "s", "B", "Hz", "J")
            yield metric.name, text if own_unit else f"{text} {metric.unit}", metric.title


def _data(cell: Cell) -> Any:
    return {
        "name": cell.name,
        "device": cell.device,
        "status": cell.status,
        "metrics": {name: cell.value(name) for name in METRICS},
        "records": [to_json(row.record) for row in cell.rows],
    }
