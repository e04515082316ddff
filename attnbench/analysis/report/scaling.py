"""The scaling over several devices: a table of cells on several ranks, and the length from which they are faster.

Strong scaling is the same sequence on more devices: efficiency = latency on one / (ranks x latency on `ranks`). Weak
scaling keeps the tokens of each device: the FLOP/s of each of `ranks` devices over the FLOP/s of one device with 1 /
ranks of the tokens. Both are of the same backend on devices of one name, also where these are of several runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.sources import Sources, with_sources
from attnbench.core import formats, stats
from attnbench.core.case import Case
from attnbench.core.groups import grouped
from attnbench.core.sizes import format_size
from attnbench.core.split_sequence import part_of
from attnbench.render.document import Column, Dot, Entry, Paragraphs, Plot, Section, Span, Table
from attnbench.results import case_names
from attnbench.results.cells import Cell

NOTE = (
    "A rank is one device. TFLOP/s: per rank. Strong: the speedup over one rank, over the ranks. Weak: TFLOP/s of "
    "each rank over the TFLOP/s of one rank with as many tokens. Exposed: the share of the time by which the same "
    "launch without communication is shorter. Sent: by each rank, over the time. Memory: of each rank, its inputs and "
    "the most in use beyond them. Error: relative, of the result where it is largest."
)

OTHER_RUN = " Some rows compare with one rank of another run, perhaps on another card of the model."

Key = tuple[Case, str, str]  # backend, device
Curve = tuple[str, Case, int, str]  # backend, case without its length, ranks, device
FACTS = ("headdim", "causal", "direction", "dtype")  # axes that name each case beside its length
OPTIONS = tuple(name for name in case_names.EXTRAS if name != "ranks")  # axes told only where they are unusual
SIZES = ("nheads", "batch")  # axes told only where cases differ in them


def tables(cells: Sequence[Cell], sources: Sources | None = None) -> list[Table | Paragraphs]:
    """Return the table of cells on several ranks, and the lengths from which they are faster; [] without such cells.

    `sources` gives links to the run files of a row, and of the cells on one rank with which it is compared.
    """
    several = [cell for cell in cells if cell.case.ranks > 1 and cell.status == "ok"]
    if not several:
        return []
    known = _by_key(cells)
    cases = [cell.case for cell in several]
    told = _differing(cases)
    alike = _said(cases[0], [axis for axis in (*FACTS, *OPTIONS) if axis not in told])
    on_several = len({cell.device for cell in several}) > 1
    figures = ("ranks", "latency", "TFLOP/s", "strong", "weak", "exposed", "sent", "of the bus", "memory", "error")
    columns = (
        *(Column(name, wrap=False) for name in ("backend", *(["machine"] if on_several else []), "case")),
        *(Column(name, "right", wrap=False) for name in figures),
    )
    order = sorted(several, key=lambda c: (case_names.backend_rank(c.backend), case_names.case_rank(c.case)))
    table = Table(
        "scaling",
        columns,
        tuple(_row(c, known, " ".join([case_names.lengths(c.case), *_said(c.case, told)]), on_several) for c in order),
        title=" ".join(["One sequence over several ranks,", *alike]).removesuffix(","),
        note=NOTE + (OTHER_RUN if any(_is_of_another_run(c, known) for c in several) else ""),
        labels=4 if on_several else 3,
    )
    table = with_sources(table, [[of.run for of in _of_row(cell, known)] for cell in order], sources)
    lines = [(Span(line),) for line in crossovers(cells)]
    return [table, Paragraphs(tuple(lines), title="From which length they are faster")] if lines else [table]


def crossovers(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield, for each backend, kind of case and number of ranks, the length from which these beat one rank."""
    known, curves = _by_key(cells), _curves(cells)
    names = _names(curves)
    for key, curve in curves.items():
        name, ranks = names[key], key[2]
        measured = ", ".join(f"{_size(cell)} {formats.times(speedup)}" for cell, speedup in curve)
        if len(curve) == 1:
            yield f"{name}: {ranks} ranks at one length only ({measured})"
            continue
        faster = [speedup > 1 and not cell.alike(known[_on_one(cell)]) for cell, speedup in curve]
        first = next((i for i in range(len(curve)) if all(faster[i:])), None)  # from this length on all are faster
        if not any(faster):
            said = "shown to be faster than one at no length"
        elif first is None:
            said = "faster at some lengths, and not at the longest"
        elif first == 0:
            said = f"faster from {_size(curve[0][0])} on, the shortest measured"
        elif curve[first - 1][1] < 1:
            said = f"faster from about {format_size(_crossing(curve[first - 1], curve[first]))} on"
        else:
            said = f"faster from {_size(curve[first][0])} on, and alike below"
        yield f"{name}: {ranks} ranks are {said} ({measured})"


def sections(cells: Sequence[Cell]) -> tuple[Section, ...]:
    """Return the figures for a page: the speedup over one device, by length."""
    curves = _curves(cells)
    names = _names(curves)
    groups = grouped([(key, key[2], curve) for key, curve in curves.items()], lambda of: names[of[0]])
    by_ranks = {name: [(ranks, curve) for _, ranks, curve in own] for name, own in groups.items()}
    plots = tuple(_plot(name, own) for name, own in by_ranks.items() if any(len(curve) > 1 for _, curve in own))
    return (Section("scaling", "Speedup over one rank", plots),) if plots else ()


def _plot(name: str, curves: Sequence[tuple[int, Sequence[tuple[Cell, float]]]]) -> Plot:
    lengths = sorted({case_names.seqlen(cell.case) for _, curve in curves for cell, _ in curve})
    first, last = math.log2(lengths[0]), math.log2(lengths[-1])
    marks = sorted({1, *(ranks for ranks, _ in curves)})
    top = max(*marks, *(speedup for _, curve in curves for _, speedup in curve))

    def at(length: int) -> float:
        return (math.log2(length) - first) / (last - first)

    dots = tuple(
        Dot(
            at(case_names.seqlen(cell.case)),
            speedup / top,
            group=group,
            tip=f"{ranks} ranks, {_size(cell)}: {formats.times(speedup)}",
        )
        for group, (ranks, curve) in enumerate(curves)
        for cell, speedup in curve
    )
    return Plot(
        f"{name}: {', '.join(str(ranks) for ranks, _ in curves)} ranks",
        dots,
        levels=((0.0, 1.0, 1 / top),),
        x_labels=tuple((at(n), format_size(n)) for n in lengths),
        y_labels=tuple((n / top, f"{n}x") for n in (0, *marks)),
    )


def _row(cell: Cell, known: Mapping[Key, Cell], name: str, with_device: bool) -> tuple[Entry, ...]:
    one, weak = known.get(_on_one(cell)), _weak(cell, known)
    seconds, rate = cell.value("latency") or 0.0, cell.value("tflops")
    strong = (one.value("latency") or 0.0) / (cell.case.ranks * seconds) if one and seconds else None
    weakly = rate / alone if weak and rate and (alone := weak.value("tflops")) else None
    figures = (
        (seconds, formats.duration),
        (rate, formats.digits),
        (strong, formats.share),
        (weakly, formats.share),
        (cell.value("exposed"), formats.share),
        (cell.value("bus_gbps"), lambda n: f"{formats.digits(n)} GB/s"),
        (cell.value("bus_share"), formats.share),
        (cell.value("memory_total"), formats.size),
        (cell.value("relative_error"), formats.percent),
    )
    texts = (form(value) if value is not None else "" for value, form in figures)
    return (cell.backend_name, *([cell.device] if with_device else []), name, str(cell.case.ranks), *texts)


def _by_key(cells: Sequence[Cell]) -> dict[Key, Cell]:
    return {(cell.case, cell.backend, cell.device): cell for cell in cells if cell.status == "ok"}


def _on_one(cell: Cell) -> Key:
    """Return the key of the cell of the same sequence on one device."""
    return replace(cell.case, ranks=1), cell.backend, cell.device


def _of_row(cell: Cell, known: Mapping[Key, Cell]) -> list[Cell]:
    """Return a cell and the one-device cells with which it is compared: the whole sequence, and a rank's share."""
    return [cell, *filter(None, (known.get(_on_one(cell)), _weak(cell, known)))]


def _is_of_another_run(cell: Cell, known: Mapping[Key, Cell]) -> bool:
    """Return whether any one-device cell with which this cell is compared comes from another run."""
    return any(of.run is not cell.run for of in _of_row(cell, known))


def _weak(cell: Cell, known: Mapping[Key, Cell]) -> Cell | None:
    """Return the cell of one device with as many tokens as each of the ranks has."""
    return known.get((part_of(cell.case), cell.backend, cell.device))


def _curves(cells: Sequence[Cell]) -> dict[Curve, list[tuple[Cell, float]]]:
    """Return the curves of cells: their speedups over one device, by length.

    The batch is left out where the length tells it, as a budget of tokens changes it with the length.
    """
    known = _by_key(cells)
    by_batch = "batch" in _differing([cell.case for cell in cells if cell.case.ranks > 1 and cell.status == "ok"])
    found: dict[Curve, list[tuple[Cell, float]]] = {}
    for cell in cells:
        if cell.case.ranks == 1 or cell.status != "ok" or (one := known.get(_on_one(cell))) is None:
            continue
        ours, theirs = cell.value("latency"), one.value("latency")
        if ours and theirs:
            shape = replace(cell.case.shape, batch=cell.case.shape.batch if by_batch else 1, seqlen_q=1, seqlen_k=1)
            kind = replace(cell.case, ranks=1, shape=shape)
            found.setdefault((cell.backend, kind, cell.case.ranks, cell.device), []).append((cell, theirs / ours))
    return {key: sorted(curve, key=lambda of: case_names.seqlen(of[0].case)) for key, curve in found.items()}


def _crossing(slower: tuple[Cell, float], faster: tuple[Cell, float]) -> int:
    """Return the length at which the speedup passes 1, between neighbouring lengths with speedups below and above 1.

    Interpolated on logarithms of both, and rounded to 1k, or to 64 below 4k.
    """
    (low, a), (high, b) = slower, faster
    x, y = math.log(case_names.seqlen(low.case)), math.log(case_names.seqlen(high.case))
    length = stats.exp(x + (y - x) * math.log(1 / a) / (math.log(b) - math.log(a)))
    unit = 1024 if length >= 4096 else 64
    return max(unit, round(length / unit) * unit)


def _size(cell: Cell) -> str:
    return format_size(case_names.seqlen(cell.case))


def _names(curves: Mapping[Curve, Sequence[tuple[Cell, float]]]) -> dict[Curve, str]:
    """Return a name for each curve; curves that differ in the number of ranks alone share one."""
    told = [axis for axis in _differing([case for _, case, _, _ in curves]) if axis not in FACTS]
    several = len({device for *_, device in curves}) > 1
    return {
        (backend, case, ranks, device): " ".join(
            [curve[0][0].backend_name, *_said(case, (*FACTS, *told)), *([f"on {device}"] if several else [])]
        )
        for (backend, case, ranks, device), curve in curves.items()
    }


def _differing(cases: Sequence[Case]) -> list[str]:
    """Return the axes beside the length in which cases differ; the batch only where cases of one length do."""
    axes = [
        axis for axis in (*FACTS, *OPTIONS, *SIZES) if len({case_names.AXES[axis].value(case) for case in cases}) > 1
    ]
    lengths = {case_names.lengths(case) for case in cases}
    by_length = len({(case_names.lengths(case), case.shape.batch) for case in cases}) == len(lengths)
    return [axis for axis in axes if axis != "batch" or not by_length]


def _said(case: Case, axes: Sequence[str]) -> list[str]:
    return [text for axis in axes if (text := case_names.AXES[axis].brief(case))]
