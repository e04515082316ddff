"""Below the tables: what the figures hold and what they do not. Nothing is wrong with these; a reader wants to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attnbench.analysis.summary.cautions import Caution
from attnbench.core import stats
from attnbench.core.policy import INSTRUMENTS, SHORT
from attnbench.core.record import Record
from attnbench.results import case_names, derive, metrics
from attnbench.results.cells import Cell, having, values_of

OUTSIDE, OUTSIDE_SHARE = 64 * 2**20, 0.05  # bytes, and of the peak: less may be code that was loaded
SLOWED, GAP_GROWS = 0.02, 0.3e-6  # by tracing: a share of the call, and seconds that the launch gap may grow
NAMES = {"graph": "CUDA graph replay", "cupti": "CUPTI"}


def facts(cells: Sequence[Cell]) -> list[Caution]:
    measured = [c for c in cells if c.status == "ok"]
    found = [
        *_fp8(measured),
        *_spans(measured),
        *_traced(measured),
        *_launch_bound(measured),
        *_cross_check(measured),
        *_outside(measured),
        *_interpreters(measured),
    ]
    return [*found, *_said(cells)]


def _fp8(cells: Iterable[Cell]) -> Iterator[Caution]:
    narrow = [c for c in cells if c.case.dtype == "fp8"]
    if narrow:
        yield Caution(
            f"fp8 is e4m3 with one scale per tensor, in {case_names.count(len(narrow), 'cell')}.",
            "q, k and v are rounded before the time begins; the error is against exact attention of what they were.",
            "docs/backends.md has the tolerance.",
        )


def _spans(cells: Iterable[Cell]) -> Iterator[Caution]:
    short = [c for c in cells if c.spans]
    if short:
        waiting = {*having(short, lambda sheet: sheet.columns.host_bound)}
        gaps = _by_backend(short, lambda c: None if c in waiting else c.value("launch_gap"))
        each = ", ".join(f"{backend} {_microseconds(found)}" for backend, found in gaps)
        yield Caution(
            f"Latency is the kernels' own span (CUPTI) in {case_names.count(len(short), 'cell')}.",
            f"CUDA events read under {metrics.duration(SHORT)} there, launch gap included"
            + (f": {each}." if each else "."),
            "-m launch_gap has it by cell.",
        )


def _traced(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Spans are read while the profiler traces, which slows some kernels."""
    slowed = [c for c in cells if c.spans and any(map(_slowed, c.records))]
    if slowed:
        yield Caution(
            f"Tracing slows {case_names.count(len(slowed), 'cell')} whose latency is a span: "
            f"{case_names.some(map(case_names.name, slowed))}.",
            f"CUDA events read more than {metrics.percent(SLOWED)} more there while CUPTI traces.",
            "They are faster than shown, by as much.",
        )
    if having(cells, lambda sheet: [i for i, timer in enumerate(sheet.columns.timers) if timer == "cupti"]):
        yield Caution(
            "Latency is of traced calls.",
            "Tracing with CUPTI slows some kernels by a few percent (docs/measuring.md).",
            "run --cross-check tells which.",
        )


def _slowed(record: Record) -> bool:
    """Whether tracing lengthened a cell whose latency is the span."""
    traced, plain = derive.values(record, "span_events"), derive.values(record, "time")
    if not traced or not derive.uses_span(record) or record.host_bound:
        return False
    return stats.median(traced) > (1 + SLOWED) * stats.median(plain) + GAP_GROWS


def _launch_bound(cells: Sequence[Cell]) -> Iterator[Caution]:
    both = zip(cells, values_of(cells, "latency"), values_of(cells, "enqueue"), strict=True)
    bound = [c for c, latency, enqueue in both if (latency or 0.0) < (enqueue or 0.0)]
    if bound:
        each = ", ".join(f"{backend} {len(found)}" for backend, found in _by_backend(bound, lambda _: 1.0))
        yield Caution(
            f"Launch-bound: {case_names.count(len(bound), 'cell')} where the host takes longer to launch a call "
            f"than the GPU to run it ({each}).",
            "Unless calls are captured in a CUDA graph, users feel the host there, not the kernel.",
            "-m enqueue has the host's time by cell.",
        )


def _cross_check(cells: Sequence[Cell]) -> Iterator[Caution]:
    for backend, group in _groups([c for c in cells if c.compared]):
        parts = []
        for instrument in INSTRUMENTS[1:]:
            compared = [(c, ratio) for c in group if (ratio := _ratio(c, instrument)) is not None]
            apart = [abs(ratio - 1) for c, ratio in compared if _events(c) >= SHORT]
            gaps = [_events(c) * (1 - ratio) for c, ratio in compared if _events(c) < SHORT]
            said = []
            if apart:
                same = " of the same calls" if instrument == "cupti" else ""
                said.append(
                    f"differs from CUDA events{same} by {metrics.percent(stats.median(apart))} in the median and "
                    f"{metrics.percent(max(apart))} in the worst of {case_names.count(len(apart), 'cell')} of "
                    f"{metrics.duration(SHORT)} and more"
                )
            if gaps:
                than = "" if apart else " than CUDA events"
                said.append(f"reads {_microseconds(gaps)} less{than} in {case_names.count(len(gaps), 'shorter cell')}")
            if said:
                parts.append(f"{NAMES[instrument]} {' and '.join(said)}")
        tolls = [toll for c in group if (toll := c.value("tracing")) is not None and _events(c) >= SHORT]
        if tolls:
            parts.append(f"tracing costs {metrics.percent(stats.median(tolls))}, {metrics.percent(max(tolls))} at most")
        if parts:
            yield Caution(f"Cross-check of {backend}:", "; ".join(parts) + ".", "")


def _ratio(cell: Cell, instrument: str) -> float | None:
    found = [ratio for r in cell.records if r.status == "ok" for ratio in derive.ratios(r, instrument)]
    return stats.median(found) if found else None


def _events(cell: Cell) -> float:
    """Seconds, where they took turns with the others."""
    return stats.median([v for r in cell.records for v in derive.values(r, "turns_events")])


def _outside(cells: Sequence[Cell]) -> Iterator[Caution]:
    both = zip(cells, values_of(cells, "memory_driver"), values_of(cells, "memory_peak"), strict=True)
    extra = {
        cell: driver - peak
        for cell, driver, peak in both
        if driver is not None and peak is not None and driver - peak > max(OUTSIDE, OUTSIDE_SHARE * peak)
        if cell.run.environment.device.kind == "cuda"
    }
    found = _by_backend(cells, extra.get) if extra else ()
    if found:
        each = ", ".join(
            f"{backend} {metrics.size(stats.median(extras))} (median of {case_names.count(len(extras), 'cell')})"
            for backend, extras in found
        )
        yield Caution(
            f"Memory outside torch's allocator: {each}.",
            "memory_peak leaves it out.",
            "-m memory_driver has all of it.",
        )


def _interpreters(cells: Iterable[Cell]) -> Iterator[Caution]:
    """Which Python ran a backend, where it was not attnbench's own."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        if python := cell.run.interpreters.get(cell.backend):
            found.setdefault(python, {})[cell.backend] = None
    for python, backends in found.items():
        yield Caution(f"{', '.join(sorted(backends, key=case_names.backend_rank))} ran in {python}.", "", "")


def _said(cells: Sequence[Cell]) -> Iterator[Caution]:
    """The records' own notes, numbers aside, once each."""
    groups: dict[str, list[tuple[str, Cell]]] = {}
    for cell in having(cells, lambda sheet: sheet.columns.notes):
        for text in dict.fromkeys(
            case_names.one_line(note) for i in cell.rows for note in cell.columns.notes.get(i, ())
        ):
            groups.setdefault(case_names.template(text), []).append((text, cell))
    for group in groups.values():
        backends = ", ".join(sorted({c.backend for _, c in group}, key=case_names.backend_rank))
        number = case_names.count(len({id(c) for _, c in group}), "cell")
        yield Caution(case_names.merged([text for text, _ in group]), f"({number}: {backends})", "")


def _groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Cells by backend, and by device where there are several."""
    several = len({c.device for c in cells}) > 1
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.backend, cell.device), []).append(cell)
    ranked = sorted(groups.items(), key=lambda group: case_names.backend_rank(group[0][0]))
    return [(f"{backend} on {device}" if several else backend, group) for (backend, device), group in ranked]


def _by_backend(cells: Sequence[Cell], value: Callable[[Cell], float | None]) -> list[tuple[str, list[float]]]:
    """The values of each backend's cells, where there are any."""
    found = [(label, [v for c in group if (v := value(c)) is not None]) for label, group in _groups(cells)]
    return [(label, values) for label, values in found if values]


def _microseconds(seconds: Sequence[float]) -> str:
    low, high = f"{min(seconds) * 1e6:.1f}", f"{max(seconds) * 1e6:.1f}"
    return f"{low} us" if low == high else f"{low} to {high} us"
