"""The document of `attnbench step`: steps of models by implementation, and the gain of the fastest attention.

CSV and JSON have a row for each implementation of each step, in s, bytes and ratios.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.report.reasons import reasons
from attnbench.analysis.step.findings import FASTER, Timed, amdahl, timed_steps
from attnbench.core.case import Case
from attnbench.core.documents import with_addresses
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED
from attnbench.core.formats import duration, percent, share, size, times, whole_number
from attnbench.core.record import Run
from attnbench.core.sizes import format_size
from attnbench.core.text import listed, some
from attnbench.render.document import Caution, Column, Document, Entry, Span, Table
from attnbench.results import case_names, disturbed
from attnbench.results.cells import Cell, contest_of, why_no_winner
from attnbench.results.cells import cells as cells_of

NOTHING = "-"
AGREES = 0.03  # share of the step: attention alone does not explain a prediction that is further off
COLUMNS = (
    *("device", "model", "phase", "layers", "depth", "batch", "seqlen", "dtype", "backend", "status", "reason"),
    *("latency", "tokens_per_second", "tflops", "utilization", "memory_total", "attention_time", "attention_share"),
    *("host_bound", "fastest", "predicted", "off", "faster_kernel_gain", "case"),
)
HEADINGS = ("step", "tokens/s", "MFU", "peak memory", "attention", "share", "idle", "predicted", "off")
MFU = with_addresses(
    "MFU: model FLOPs (2 x weights x tokens and attention's products, three times that in training) over the latency, "
    "as a share of the datasheet peak. Attention: its kernels in one traced step, masks included. Idle: the device "
    "waited for the host. Predicted: the step with the attention and idle time of the fastest implementation; "
    "docs/step.md."
)


def document(runs: Sequence[Run]) -> Document:
    """Return the document of the steps in some runs; other cells are left out."""
    cells = [cell for cell in cells_of(runs) if cell.case.step]
    steps = timed_steps(cells)
    rows = [_row(cell, steps.get((cell.device, cell.case), [])) for cell in cells]
    devices = dict.fromkeys(cell.device for cell in cells)
    answer = tuple(_answer(device, case, own, several=len(devices) > 1) for (device, case), own in steps.items())
    nothing = "No step of a model was measured" + ("." if cells else ": attnbench report shows what was measured.")
    answer = (*disturbed.doubt(runs), *(answer or (nothing,)))
    return Document(
        command="step",
        title=f"Steps of models on {some(devices)}",
        answer=answer,
        machines=tuple(machines(cells)),
        blocks=tuple(_table(number, device, case, own) for number, ((device, case), own) in enumerate(steps.items())),
        reasons=tuple(reasons(cells)),
        cautions=tuple(_cautions(steps)),
        notes=((Span(MFU, "quiet"),),) if steps else (),
        data={"answer": answer, "steps": rows},
        rows=rows,
        columns=COLUMNS,
        exit_code=EXIT_DONE if any(cell.status == "ok" for cell in cells) else EXIT_NOTHING_MEASURED,
    )


def name(case: Case) -> str:
    """Return a step in a few words: "llama-3.1-8b prefill 4k, batch 1, bf16 (4 of 32 layers)"."""
    step = case.model_step
    assert step
    sizes = f"{format_size(case.shape.seqlen_k)}, batch {case.shape.batch}, {case.dtype}"
    return f"{step.model} {step.phase} {sizes} ({step.cut})"


def _answer(device: str, case: Case, own: Sequence[Timed], *, several: bool) -> str:
    first, where = own[0], f" on {device}" if several else ""
    said = f"{name(case)}{where}: {duration(first.latency)} with {first.cell.backend}{_rank(own)}."
    if first.share is not None:
        said += (
            f" Attention is {share(first.share)} of it: a kernel {FASTER:g}x faster makes the step "
            f"{times(amdahl(first.share))} faster."
        )
    gains = [(timed, off) for timed in own[1:] if (off := timed.off(first)) is not None]
    if gains:
        slower, off = gains[-1]
        said += (
            f" From {slower.cell.backend} to it: predicted {duration(slower.predicted(first) or 0.0)}, "
            f"measured {duration(first.latency)} ({_signed(off)} of the step)."
        )
    return said


def _rank(own: Sequence[Timed]) -> str:
    """Return the rank of the first of several steps in words: the fastest, alike with others, or hardly known."""
    if len(own) == 1:
        return ""
    found = contest_of([timed.cell for timed in own])
    if others := found.winners[1:]:
        return f", alike within the uncertainty with {listed(cell.backend for cell in others)}"
    return f", the fastest of {len(own)}" if found.winners else f"; {why_no_winner([found])}"


def _table(number: int, device: str, case: Case, own: Sequence[Timed]) -> Table:
    columns = (Column("implementation"), *(Column(heading, "right", wrap=False) for heading in HEADINGS))
    rows = tuple(entries(timed, own[0]) for timed in own)
    return Table(f"step-{number}", columns, rows, title=f"{name(case)} on {device}")


def entries(timed: Timed, first: Timed) -> tuple[Entry, ...]:
    """Return the name of an implementation and its entries below HEADINGS; `first` is the fastest of its device."""
    cell, off, predicted = timed.cell, timed.off(first), timed.predicted(first)
    is_first = timed is first
    return (
        cell.backend_name,
        duration(timed.latency),
        _said(cell, "tokens_per_second", lambda n: whole_number(float(f"{n:.3g}"))),
        _said(cell, "utilization", share),
        _said(cell, "memory_total", size),
        NOTHING if timed.attention is None else duration(timed.attention),
        NOTHING if timed.share is None else share(timed.share),
        _said(cell, "idle_time", lambda seconds: duration(seconds) if seconds else "0"),
        NOTHING if predicted is None or is_first else duration(predicted),
        NOTHING if off is None or is_first else Span(_signed(off), "good" if abs(off) <= AGREES else "warning"),
    )


def _said(cell: Cell, metric: str, write: Any) -> str:
    value = cell.value(metric)
    return NOTHING if value is None else str(write(value))


def _signed(off: float) -> str:
    return f"{'+' if off > 0 else '-'}{percent(abs(off))}"


def _cautions(steps: Mapping[tuple[str, Case], Sequence[Timed]]) -> Iterator[Caution]:
    every = [(timed, own[0]) for own in steps.values() for timed in own]
    if waiting := [_label(timed) for timed, _ in every if any(row.host_bound for row in timed.cell.ok)]:
        yield Caution(
            f"The host launched too slowly in {some(waiting)}.",
            "The device waited for the host (idle), and a faster kernel does not shorten the wait.",
            "Give a larger --batch or --seqlen.",
        )
    offs = [(timed, timed.off(first) or 0.0) for timed, first in every]
    if unlike := [f"{_label(timed)} ({_signed(off)})" for timed, off in offs if abs(off) > AGREES]:
        yield Caution(
            f"The prediction is off by more than {percent(AGREES)} of the step in {some(unlike)}.",
            "Something other than attention and waiting differs: the clock, or memory traffic.",
            "Compare `attnbench report --cell`, or measure more rounds.",
        )


def _label(timed: Timed) -> str:
    step = timed.cell.case.model_step
    return f"{timed.cell.backend} {step.title if step else ''}"


def _row(cell: Cell, own: Sequence[Timed]) -> dict[str, Any]:
    step, s = cell.case.model_step, cell.case.shape
    assert step
    timed = next((of for of in own if of.cell is cell), None)
    named = ("latency", "tokens_per_second", "tflops", "utilization", "memory_total", "attention_time", "idle_time")
    return {
        "device": cell.device,
        **{of: getattr(step, of) for of in ("model", "phase", "layers", "depth")},
        "batch": s.batch,
        "seqlen": case_names.seqlen(cell.case),
        "dtype": cell.case.dtype,
        "backend": cell.backend,
        "status": cell.status,
        "reason": cell.reason,
        **{of: cell.value(of) for of in named},
        "attention_share": timed.share if timed else None,
        "host_bound": any(row.host_bound for row in cell.ok),
        "fastest": own[0].cell.backend if own else None,
        "predicted": timed.predicted(own[0]) if timed else None,
        "off": timed.off(own[0]) if timed else None,
        "faster_kernel_gain": amdahl(timed.share) if timed and timed.share is not None else None,
        "case": cell.case.key,
    }
