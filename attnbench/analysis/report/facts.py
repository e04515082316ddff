"""The facts of a report: what its figures include and what they leave out. A fact is no fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attnbench.analysis.cautions import Places, Rule, in_cells, stated, when
from attnbench.analysis.report.cautions import Reported, measured
from attnbench.core import stats
from attnbench.core.formats import duration, megahertz, percent, share, size
from attnbench.core.groups import grouped
from attnbench.core.policy import INSTRUMENTS, SHORT
from attnbench.core.text import capitalized, count, merged, one_line, template
from attnbench.render.document import Caution
from attnbench.results import bits, case_names, metrics
from attnbench.results.cells import Cell
from attnbench.results.rows import SLOWED
from attnbench.run.shipped_backends import chosen

OUTSIDE, OUTSIDE_SHARE = 64 * 2**20, 0.05  # bytes, and share of the peak: less may be loaded code
NAMES = {"graph": "CUDA graph replay", "cupti": "CUPTI"}
DO_NOT_REPEAT, DEPEND_ON_BATCH = "a run with them does not repeat itself bit by bit", "they depend on the batch"
OF_VARIANT = "--deterministic measures the variant of a library that gives the same gradients in each launch."


def facts(cells: Sequence[Cell]) -> tuple[Caution, ...]:
    """Return the facts on the figures of some cells."""
    return stated(FACTS, Reported(cells))


def noted(cells: Sequence[Cell]) -> tuple[Caution, ...]:
    """Return the notes of the records of some cells, numbers aside, once each."""
    return stated([NOTED], Reported(cells))


def _approximations(of: Reported) -> Places:
    """Return one place for the approximate backends with their definitions, or none without them."""
    rows = [(cell.backend, row.record.approximation) for cell in of.measured for row in cell.ok]
    found = {backend: approximation.what for backend, approximation in rows if approximation}
    each = (f"{backend}: {found[backend]}" for backend in sorted(found, key=case_names.backend_rank))
    return when(found, each="; ".join(each))


def _clock_of_peak(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield for each device and dtype the clock of its peak, and both shares of the cell nearest to the peak."""
    known = [c for c in of.measured if c.value("utilization") and c.value("utilization_clock")]
    groups = grouped(known, lambda c: (c.device, c.case.dtype))
    several = len({device for device, _ in groups}) > 1
    for (device, dtype), group in groups.items():
        top = max(group, key=lambda cell: cell.value("utilization") or 0.0)
        of_peak, at_clock = (share(top.value(metric) or 0.0) for metric in ("utilization", "utilization_clock"))
        clock, on = megahertz(top.rates.clock or 0.0), f" on {device}" if several else ""
        yield {"dtype": dtype, "on": on, "clock": clock, "top": top, "of_peak": of_peak, "at_clock": at_clock}


def _uncertainty(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield one place for each source of the uncertainty of latencies, with its values."""
    known = [(c, found) for c in of.measured if (found := c.uncertainty) and found.total]
    alike = grouped(known, lambda pair: (str(pair[1]), pair[0].source.run.environment.device.kind == "cuda"))
    for (how, on_gpu), group in alike.items():
        halves = [found.total for _, found in group]
        told = {"middle": percent(stats.median(halves)), "most": percent(max(halves)), "how": capitalized(how)}
        yield {**told, "cells": count(len(halves), "cell"), "where": "card" if on_gpu else "machine"}


def _cards(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield one place for each device with runs on several cards, with the uncertainty that unlike cards add."""
    for device, cells in grouped(of.measured, lambda c: c.device).items():
        runs = [*{id(c.run): c for c in cells}.values()]
        if between := max(one.between_cards(other) for one in runs for other in runs):
            yield {"device": device, "between": percent(between)}


def _spans(of: Reported) -> Places:
    short = [c for c in of.measured if c.uses_span]
    fast_enough = [c for c in short if not any(row.host_bound for row in c.rows)]
    gaps = _by_backend(fast_enough, lambda c: c.value("launch_gap"))
    each = ", ".join(f"{backend} {_microseconds(found)}" for backend, found in gaps)
    return in_cells(short, gaps=f": {each}" if each else "")


def _by_events(of: Reported) -> Places:
    found = [c for c in of.measured if not c.uses_span and any((row.events or SHORT) < SHORT for row in c.ok)]
    again = any(row.measured("span") for c in found for row in c.ok)
    cases = count(len({c.case for c in found}), "case")
    return in_cells(found, cases=cases, todo="Measure these cells again to have all spans." if again else "")


def _launch_bound(of: Reported) -> Places:
    bound = [c for c in of.measured if c.is_launch_bound]
    return in_cells(bound, each=", ".join(f"{label} {len(group)}" for label, group in _groups(bound)))


def _cross_check(of: Reported) -> Iterator[dict[str, Any]]:
    for backend, group in _groups([c for c in of.measured if any(row.measured("turns_events") for row in c.rows)]):
        parts = [said for instrument in INSTRUMENTS[1:] if (said := _compared(instrument, group))]
        tolls = [toll for c in group if (toll := c.value("tracing")) is not None and _events(c) >= SHORT]
        if tolls:
            parts.append(f"tracing costs {percent(stats.median(tolls))}, {percent(max(tolls))} at most")
        if parts:
            yield {"backend": backend, "parts": "; ".join(parts)}


def _compared(instrument: str, cells: Sequence[Cell]) -> str:
    """Return the difference of an instrument from CUDA events, in words; "" where no cell was read by both."""
    pairs = ((c, [ratio for row in c.ok for ratio in metrics.turn_ratios(row, instrument)]) for c in cells)
    known = [(_events(c), stats.median(found)) for c, found in pairs if found]
    apart = [abs(ratio - 1) for events, ratio in known if events >= SHORT]
    gaps = [events * (1 - ratio) for events, ratio in known if events < SHORT]
    said = []
    if apart:
        same = " of the same calls" if instrument == "cupti" else ""
        said.append(
            f"differs from CUDA events{same} by {percent(stats.median(apart))} in the median and {percent(max(apart))} "
            f"in the worst of {count(len(apart), 'cell')} of {duration(SHORT)} and more"
        )
    if gaps:
        than = "" if apart else " than CUDA events"
        said.append(f"reads {_microseconds(gaps)} less{than} in {count(len(gaps), 'shorter cell')}")
    return f"{NAMES[instrument]} {' and '.join(said)}" if said else ""


def _events(cell: Cell) -> float:
    """Return the median reading of CUDA events in a cross-check, in which the instruments take turns; in seconds."""
    return stats.median([v for row in cell.rows for v in row.measured("turns_events")])


def _outside(of: Reported) -> Places:
    found = _by_backend(of.measured, _outside_of)
    each = (f"{name} {size(stats.median(sizes))} (median of {count(len(sizes), 'cell')})" for name, sizes in found)
    return when(found, each=", ".join(each))


def _outside_of(cell: Cell) -> float | None:
    """Return the bytes that the driver saw beyond torch's peak; None where loaded code may explain them."""
    driver, peak = cell.value("memory_driver"), cell.value("memory_peak")
    if driver is None or peak is None or cell.run.environment.device.kind != "cuda":
        return None
    return driver - peak if driver - peak > max(OUTSIDE, OUTSIDE_SHARE * peak) else None


def _choices(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield the choices of backends that choose among kernels, by the kernels that ran."""
    for label, group in _groups(of.measured):
        records = [(cell, row.record) for cell in group for row in cell.ok]
        chose = Counter(filter(None, (chosen(cell.run, cell.backend, record.kernels) for cell, record in records)))
        if chose:
            said = (f"{name} in {number}" if len(chose) > 1 else name for name, number in chose.most_common())
            yield {"label": label, "chose": ", ".join(said)}


def _interpreters(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield each Python, other than attnbench's own, that ran backends."""
    elsewhere = [c for c in of.measured if c.run.interpreters.get(c.backend)]
    for python, cells in grouped(elsewhere, lambda c: c.run.interpreters[c.backend]).items():
        yield {"backends": _backends(cells), "python": python}


def _bits(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield what differs in the bits of each backend, with the number of its cells that differ so."""
    for label, group in _groups([cell for cell in of.measured if cell.bits]):
        found = grouped(filter(None, (bits.differences(cell.bits) for cell in group)), template)
        each = "; ".join(f"{merged(own)} ({count(len(own), 'cell')})" for own in found.values())
        if each:
            differing = [cell for cell in group if bits.deterministic(cell.bits) is False]
            yield {
                "label": label,
                "each": each,
                "cells": count(len(group), "cell"),
                "repeats": DO_NOT_REPEAT if differing else DEPEND_ON_BATCH,
                "todo": "" if all(cell.case.deterministic for cell in differing) else OF_VARIANT,
            }


def _proven(of: Reported) -> Iterator[dict[str, Any]]:
    """Yield the backends with latencies by a clock outside their process, and the fences that did not hold."""
    for label, group in _groups(of.measured):
        proofs = [proof for cell in group for row in cell.ok if (proof := row.record.proof) and proof.launches]
        if proofs:
            open_fences = {name: why for proof in proofs for name, why in proof.unfenced.items()}
            yield {
                "label": label,
                "checked": sum(proof.checked for proof in proofs),
                "within": percent(max(proof.within or 0.0 for proof in proofs)),
                "link": "up to " + duration(max(proof.link or 0.0 for proof in proofs)),
                "cells": count(len(proofs), "cell"),
                "unfenced": "".join(f"Not fenced here: {name} ({why}). " for name, why in open_fences.items()).strip(),
            }


def _notes(of: Reported) -> Iterator[dict[str, Any]]:
    notes = [(one_line(note), cell) for cell in of.cells for row in cell.rows for note in row.record.notes]
    for group in grouped(dict.fromkeys(notes), lambda note: template(note[0])).values():
        cells = [*dict.fromkeys(cell for _, cell in group)]
        told = {"cells": count(len(cells), "cell"), "backends": _backends(cells)}
        yield {"note": merged([text for text, _ in group]), **told}


def _backends(cells: Sequence[Cell]) -> str:
    return ", ".join(sorted({cell.backend for cell in cells}, key=case_names.backend_rank))


def _groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Return (label, cells) by backend, and by device where there are several."""
    several = len({c.device for c in cells}) > 1
    groups = grouped(cells, lambda c: (c.backend, c.device))
    ranked = sorted(groups.items(), key=lambda group: case_names.backend_rank(group[0][0]))
    return [(f"{backend} on {device}" if several else backend, group) for (backend, device), group in ranked]


def _by_backend(cells: Sequence[Cell], value: Callable[[Cell], float | None]) -> list[tuple[str, list[float]]]:
    """Return (label, values) of the groups of _groups() in which a cell has a value."""
    found = [(label, [v for c in group if (v := value(c)) is not None]) for label, group in _groups(cells)]
    return [(label, values) for label, values in found if values]


def _microseconds(seconds: Sequence[float]) -> str:
    low, high = f"{min(seconds) * 1e6:.1f}", f"{max(seconds) * 1e6:.1f}"
    return f"{low} us" if low == high else f"{low} to {high} us"


NOTED = Rule(_notes, "{note}", "({cells}: {backends})")
FACTS: Sequence[Rule[Reported]] = (
    Rule(
        _uncertainty,
        "Uncertainty of the latency: {middle} in the median of {cells}, {most} at most; 95 %, for other processes on "
        "this {where}.",
        "Two latencies that differ by less than both uncertainties, added in quadrature, are alike.",
        "{how}.",
    ),
    Rule(
        _cards,
        "The runs of {device} were on several cards.",
        "To the uncertainty of two latencies of unlike cards {between} is added, in quadrature: the spread between "
        "cards of one model.",
        "attnbench report on the file of one card shows only its figures.",
    ),
    Rule(
        measured(lambda c: c.case.dtype == "fp8" and c.case.is_softmax),
        "fp8 is e4m3 with one scale per tensor, in {cells}.",
        "q, k and v are rounded, and triton's v is transposed, before timing begins (--layout bshd times the "
        "transpose); the error is against exact attention of the unrounded inputs.",
        "docs/backends.md has the tolerance.",
    ),
    Rule(
        measured(lambda c: c.case.dtype == "fp8" and c.case.has_backward),
        "A backward in fp8 has dout and the gradient of the scores in e5m2, in {cells}.",
        "e5m2 has 2 bits of mantissa where e4m3 has 3, so gradients have larger errors than out.",
        "docs/backends.md has the tolerance.",
    ),
    Rule(
        _approximations,
        "Approximations of attention, not ranked among backends that compute it: {each}.",
        "err is the norm of the difference between out and exact attention's, over the norm of exact attention's out; "
        "their TFLOP/s count exact attention's "
        "FLOPs.",
        "docs/approximate.md says how they are judged.",
    ),
    Rule(
        measured(lambda c: any(row.record.judge == "within" for row in c.rows)),
        "Judged within the process of their kernel: {cells}.",
        "So are a person's own masks, steps of models and approximations, and every cell where memory cannot "
        "be shared with the judge's process.",
        "docs/measuring.md says who judges.",
    ),
    Rule(
        _clock_of_peak,
        "The peak of {dtype}{on} holds at {clock}.",
        "{top.name} reaches {of_peak} of it, and {at_clock} of the peak at the clock that it held.",
        "-m utilization_clock shows the second share by cell.",
    ),
    Rule(
        _spans,
        f"Latency is the kernels' own span (CUPTI) in {{cells}}, of cases whose fastest takes under {duration(SHORT)}.",
        "CUDA events include a launch gap{gaps}.",
        "-m launch_gap shows it by cell.",
    ),
    Rule(
        _by_events,
        f"Latency is by CUDA events in {{cells}} under {duration(SHORT)}, a launch gap of 1 to 4 us included.",
        "Not every cell of their {cases} has a span, and all cells of a case are timed by one method.",
        "{todo}",
    ),
    Rule(
        measured(lambda c: c.uses_span and any(row.toll for row in c.rows)),
        "Tracing slows {cells} whose latency is a span: {names}.",
        f"CUDA events read more than {percent(SLOWED)} more there while CUPTI traces.",
        "They are faster than shown, by this slowdown; their uncertainty includes it.",
    ),
    Rule(
        measured(lambda c: any(row.record.timer == "cupti" for row in c.rows)),
        "Latency is of traced calls.",
        "Tracing with CUPTI slows some kernels by a few percent (docs/measuring.md).",
        "run --cross-check shows which.",
    ),
    Rule(
        _launch_bound,
        "Launch-bound: {cells} where the host takes longer to launch a call than the GPU to run it ({each}).",
        "Unless calls are captured in a CUDA graph, the host limits the speed there, not the kernel.",
        "-m enqueue shows the host's time by cell.",
    ),
    Rule(_cross_check, "Cross-check of {backend}:", "{parts}."),
    Rule(
        _outside,
        "Memory outside torch's allocator: {each}.",
        "memory_peak leaves it out.",
        "-m memory_driver includes it.",
    ),
    Rule(_choices, "{label} ran {chose}, by the names of its kernels."),
    Rule(
        _bits,
        "{label} gives other bits, of {cells}: {each}.",
        "The results are right within the tolerance, but {repeats}.",
        "{todo}",
    ),
    Rule(
        _proven,
        "{label} was judged from outside its process: {checked} results along chains of launches are right, and its "
        "own clock agrees to {within}, in {cells}.",
        "The latency is of launches one after the other, warm, by a clock outside. It leaves out the step between "
        "them, {link}, and may be too low by as much where the kernel makes this step faster than the judge.",
        "{unfenced}",
    ),
    Rule(_interpreters, "{backends} ran in {python}."),
    NOTED,
)
