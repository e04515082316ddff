"""What the figures hold and what they do not. Nothing is wrong with these; a reader wants to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from attnbench.analysis.summary.cautions import about
from attnbench.core import stats
from attnbench.core.formats import duration, megahertz, percent, share, size
from attnbench.core.policy import INSTRUMENTS, SHORT
from attnbench.core.text import capitalized, count, merged, one_line, template
from attnbench.report.document import Caution
from attnbench.results import case_names, metrics
from attnbench.results.cells import Cell
from attnbench.results.rows import SLOWED
from attnbench.run.shipped_backends import chosen

OUTSIDE, OUTSIDE_SHARE = 64 * 2**20, 0.05  # bytes, and of the peak: less may be code that was loaded
NAMES = {"graph": "CUDA graph replay", "cupti": "CUPTI"}


def facts(cells: Sequence[Cell]) -> list[Caution]:
    """Return what a reader wants to know of the figures of some cells."""
    measured = [c for c in cells if c.status == "ok"]
    return [
        *_uncertainty(measured),
        *_cards(measured),
        *about(
            [c for c in measured if c.case.dtype == "fp8"],
            "fp8 is e4m3 with one scale per tensor, in {cells}.",
            "q, k and v are rounded, and triton's v is transposed, before the time begins (--layout bshd times the "
            "transpose); the error is against exact attention of what they were.",
            "docs/backends.md has the tolerance.",
        ),
        *about(
            [c for c in measured if c.case.dtype == "fp8" and c.case.has_backward],
            "A backward in fp8 has dout and the gradient of the scores in e5m2, in {cells}.",
            "That has 2 bits of mantissa where e4m3 has 3, so gradients are off by more than out.",
            "docs/backends.md has the tolerance.",
        ),
        *_approximations(measured),
        *_clock_of_peak(measured),
        *_spans(measured),
        *about(
            [c for c in measured if c.uses_span and any(row.toll for row in c.rows)],
            "Tracing slows {cells} whose latency is a span: {names}.",
            f"CUDA events read more than {percent(SLOWED)} more there while CUPTI traces.",
            "They are faster than shown, by as much, which their uncertainty holds.",
        ),
        *about(
            [c for c in measured if any(row.record.timer == "cupti" for row in c.rows)],
            "Latency is of traced calls.",
            "Tracing with CUPTI slows some kernels by a few percent (docs/measuring.md).",
            "run --cross-check tells which.",
        ),
        *_launch_bound(measured),
        *_cross_check(measured),
        *_outside(measured),
        *_choices(measured),
        *_interpreters(measured),
        *noted(cells),
    ]


def _approximations(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield what the approximate backends compute, and that they do not compete."""
    found: dict[str, str] = {}
    for cell in cells:
        for row in cell.ok:
            if row.record.approximation:
                found[cell.backend] = row.record.approximation.what
    if found:
        each = "; ".join(f"{backend}: {found[backend]}" for backend in sorted(found, key=case_names.backend_rank))
        yield Caution(
            f"Approximations of attention, not ranked among backends that compute it: {each}.",
            "err is the norm of out less exact attention's over the norm of that; their TFLOP/s count exact "
            "attention's FLOPs.",
            "docs/approximate.md says how they are judged.",
        )


def _clock_of_peak(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield for each device and dtype at which clock its peak holds, and both shares of the cell nearest to it."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.value("utilization") and cell.value("utilization_clock"):
            groups.setdefault((cell.device, cell.case.dtype), []).append(cell)
    several = len({device for device, _ in groups}) > 1
    for (device, dtype), group in groups.items():
        top = max(group, key=lambda cell: cell.value("utilization") or 0.0)
        of_peak, at_clock = top.value("utilization") or 0.0, top.value("utilization_clock") or 0.0
        yield Caution(
            f"The peak of {dtype}{f' on {device}' if several else ''} holds at {megahertz(top.rates.clock or 0.0)}.",
            f"{top.name} has {share(of_peak)} of it, and {share(at_clock)} of the peak at the clock it held.",
            "-m utilization_clock has the latter by cell.",
        )


def _uncertainty(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield what the latencies are sure to, by where that is known from."""
    found: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        known = cell.uncertainty
        where = "card" if cell.source.run.environment.device.kind == "cuda" else "machine"
        if known and known.total:
            found.setdefault((str(known), where), []).append(known.total)
    for (how, where), halves in found.items():
        yield Caution(
            f"Uncertainty of the latency: {percent(stats.median(halves))} in the median of "
            f"{count(len(halves), 'cell')}, {percent(max(halves))} at most; 95 %, for other processes on this {where}.",
            "Two latencies that differ by less than both uncertainties, added in quadrature, are alike.",
            f"{capitalized(how)}.",
        )


def _cards(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield for each device whose runs were on several cards what that adds where their latencies are compared."""
    of_runs: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        of_runs.setdefault(cell.device, {})[id(cell.run)] = cell
    for device, runs in of_runs.items():
        between = max(one.between_cards(other) for one in runs.values() for other in runs.values())
        if between:
            yield Caution(
                f"The runs of {device} were on several cards.",
                f"Two latencies of unlike cards are alike within {percent(between)} more, in quadrature: what cards of "
                "one model differ by.",
                "attnbench report on the file of one card has its figures alone.",
            )


def _spans(cells: Iterable[Cell]) -> Iterator[Caution]:
    short = [c for c in cells if c.uses_span]
    if short:
        fast_enough = [c for c in short if not any(row.host_bound for row in c.rows)]
        gaps = _by_backend(fast_enough, lambda c: c.value("launch_gap"))
        each = ", ".join(f"{backend} {_microseconds(found)}" for backend, found in gaps)
        yield Caution(
            f"Latency is the kernels' own span (CUPTI) in {count(len(short), 'cell')}, of cases whose fastest takes "
            f"under {duration(SHORT)}.",
            "CUDA events include a launch gap" + (f": {each}." if each else "."),
            "-m launch_gap has it by cell.",
        )
    by_events = [c for c in cells if not c.uses_span and any((row.events or SHORT) < SHORT for row in c.ok)]
    if by_events:
        cases = len({c.case for c in by_events})
        yield Caution(
            f"Latency is what CUDA events read in {count(len(by_events), 'cell')} under {duration(SHORT)}, a launch "
            "gap of 1 to 4 us included.",
            f"Not every cell of their {count(cases, 'case')} has a span, and one case has one method.",
            "Measured again, all have one." if any(map(_has_span, by_events)) else "",
        )


def _has_span(cell: Cell) -> bool:
    return any(row.measured("span") for row in cell.ok)


def _launch_bound(cells: Sequence[Cell]) -> Iterator[Caution]:
    bound = [c for c in cells if c.is_launch_bound]
    if bound:
        each = ", ".join(f"{backend} {len(found)}" for backend, found in _by_backend(bound, lambda _: 1.0))
        yield Caution(
            f"Launch-bound: {count(len(bound), 'cell')} where the host takes longer to launch a call "
            f"than the GPU to run it ({each}).",
            "Unless calls are captured in a CUDA graph, the host limits the speed there, not the kernel.",
            "-m enqueue has the host's time by cell.",
        )


def _cross_check(cells: Sequence[Cell]) -> Iterator[Caution]:
    for backend, group in _groups([c for c in cells if any(row.measured("turns_events") for row in c.rows)]):
        parts = []
        for instrument in INSTRUMENTS[1:]:
            compared = [(c, ratio) for c in group if (ratio := _ratio(c, instrument)) is not None]
            apart = [abs(ratio - 1) for c, ratio in compared if _events(c) >= SHORT]
            gaps = [_events(c) * (1 - ratio) for c, ratio in compared if _events(c) < SHORT]
            said = []
            if apart:
                same = " of the same calls" if instrument == "cupti" else ""
                said.append(
                    f"differs from CUDA events{same} by {percent(stats.median(apart))} in the median and "
                    f"{percent(max(apart))} in the worst of {count(len(apart), 'cell')} of "
                    f"{duration(SHORT)} and more"
                )
            if gaps:
                than = "" if apart else " than CUDA events"
                said.append(f"reads {_microseconds(gaps)} less{than} in {count(len(gaps), 'shorter cell')}")
            if said:
                parts.append(f"{NAMES[instrument]} {' and '.join(said)}")
        tolls = [toll for c in group if (toll := c.value("tracing")) is not None and _events(c) >= SHORT]
        if tolls:
            parts.append(f"tracing costs {percent(stats.median(tolls))}, {percent(max(tolls))} at most")
        if parts:
            yield Caution(f"Cross-check of {backend}:", "; ".join(parts) + ".")


def _ratio(cell: Cell, instrument: str) -> float | None:
    found = [ratio for row in cell.ok for ratio in metrics.turn_ratios(row, instrument)]
    return stats.median(found) if found else None


def _events(cell: Cell) -> float:
    """Return the median of what CUDA events read in a cross-check, in which the instruments take turns; in seconds."""
    return stats.median([v for row in cell.rows for v in row.measured("turns_events")])


def _outside(cells: Sequence[Cell]) -> Iterator[Caution]:
    found = _by_backend(cells, _outside_of)
    if found:
        each = ", ".join(f"{name} {size(stats.median(of))} (median of {count(len(of), 'cell')})" for name, of in found)
        yield Caution(
            f"Memory outside torch's allocator: {each}.",
            "memory_peak leaves it out.",
            "-m memory_driver has all of it.",
        )


def _outside_of(cell: Cell) -> float | None:
    """Return the bytes that the driver saw beyond torch's peak; None where loaded code may explain them."""
    driver, peak = cell.value("memory_driver"), cell.value("memory_peak")
    if driver is None or peak is None or cell.run.environment.device.kind != "cuda":
        return None
    return driver - peak if driver - peak > max(OUTSIDE, OUTSIDE_SHARE * peak) else None


def _choices(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield what backends that choose among kernels chose, by those that ran."""
    for label, group in _groups(cells):
        records = [(cell, row.record) for cell in group for row in cell.ok]
        chose = Counter(filter(None, (chosen(cell.run, cell.backend, record.kernels) for cell, record in records)))
        if chose:
            said = ", ".join(f"{name} in {number}" if len(chose) > 1 else name for name, number in chose.most_common())
            yield Caution(f"{label} ran {said}, by the names of its kernels.")


def _interpreters(cells: Iterable[Cell]) -> Iterator[Caution]:
    """Yield a line for each Python, other than attnbench's own, that ran backends."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        if python := cell.run.interpreters.get(cell.backend):
            found.setdefault(python, {})[cell.backend] = None
    for python, backends in found.items():
        yield Caution(f"{', '.join(sorted(backends, key=case_names.backend_rank))} ran in {python}.")


def noted(cells: Sequence[Cell]) -> Iterator[Caution]:
    """Yield the notes of the records of some cells, numbers aside, once each."""
    groups: dict[str, list[tuple[str, Cell]]] = {}
    for cell in cells:
        for text in dict.fromkeys(one_line(note) for row in cell.rows for note in row.record.notes):
            groups.setdefault(template(text), []).append((text, cell))
    for group in groups.values():
        backends = ", ".join(sorted({c.backend for _, c in group}, key=case_names.backend_rank))
        number = count(len({id(c) for _, c in group}), "cell")
        yield Caution(merged([text for text, _ in group]), f"({number}: {backends})")


def _groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Return (label, cells) by backend, and by device where there are several."""
    several = len({c.device for c in cells}) > 1
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.backend, cell.device), []).append(cell)
    ranked = sorted(groups.items(), key=lambda group: case_names.backend_rank(group[0][0]))
    return [(f"{backend} on {device}" if several else backend, group) for (backend, device), group in ranked]


def _by_backend(cells: Sequence[Cell], value: Callable[[Cell], float | None]) -> list[tuple[str, list[float]]]:
    """Return (label, values) of the groups of _groups() in which a cell has a value."""
    found = [(label, [v for c in group if (v := value(c)) is not None]) for label, group in _groups(cells)]
    return [(label, values) for label, values in found if values]


def _microseconds(seconds: Sequence[float]) -> str:
    low, high = f"{min(seconds) * 1e6:.1f}", f"{max(seconds) * 1e6:.1f}"
    return f"{low} us" if low == high else f"{low} to {high} us"
