"""The pages of a site by subject, recomputed from raw lines: models, steps, capacity, claims, several GPUs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import latency, work
from .audit import Audit
from .raw import Cell, RunFile, cells_of, memory_peak, middle, over_rounds, read, samples
from .site import digits, duration, share, short, table

LAYERS_OF_LLAMA, SHAPE_OF_LLAMA = 32, (4096, 4096, 32, 8, 128)  # of meta-llama/Llama-3.1-8B: queries, keys, heads, size
TABLE_OF_FA3 = {  # claims of figure 5 of FlashAttention-3, forward on 16k tokens: (headdim, causal)
    "fa3-d128-causal": (128, True),
    "fa3-d128-full": (128, False),
    "fa3-d64-full": (64, False),
    "fa3-d256-full": (256, False),
    "fa3-d256-causal": (256, True),
}


def check(audit: Audit, folder: Path, paths: Sequence[Path]) -> None:
    """Compare the pages by subject that a site of some run files has."""
    files = [read(path) for path in paths]
    _model(audit, (folder / "model-llama-3.1-8b.html").read_text(), files)
    _steps(audit, (folder / "steps.html").read_text(), files)
    _capacity(audit, (folder / "capacity.html").read_text(), files)
    _claims(audit, (folder / "claims.html").read_text(), files)
    _several(audit, (folder / "work-several-gpus.html").read_text(), files)


def _gpu(file: RunFile) -> str:
    return short(file.device["name"].removeprefix("NVIDIA "))


def _cells(file: RunFile) -> Iterable[Cell]:
    return cells_of(file.records).values()


def _same_rows(
    audit: Audit, where: str, what: str, shown: Iterable[tuple[str, ...]], by_hand: Counter[tuple[str, ...]]
) -> None:
    printed = Counter(shown)
    audit.same(where, f"number of {what}", printed.total(), by_hand.total())
    for entry in {*printed, *by_hand}:
        audit.same(where, what, str((entry, printed[entry])), str((entry, by_hand[entry])))


def _model(audit: Audit, text: str, files: Sequence[RunFile]) -> None:
    """Compare the attention of a model: the latency of its one kind of layer, times their number."""
    expected = Counter[tuple[str, ...]]()
    for file in (file for file in files if file.head["suite"] == "models"):
        spans = latency.timed_by_span(file.records)
        for cell in _cells(file):
            case = cell.case
            shape = case.seqlen_q, case.seqlen_k, case.nheads, case.nheads_k, case.headdim
            seconds = over_rounds(cell, lambda record, spans=spans: statistics.median(latency.calls(record, spans)))
            if shape == SHAPE_OF_LLAMA and case.line.keys() == {"shape", "dtype", "direction", "causal"} and seconds:
                expected[cell.backend, _gpu(file), duration(LAYERS_OF_LLAMA * seconds)] += 1
    rows, backend = [], ""
    for row in table(text, "step-0"):
        backend = row[0] or backend
        rows.append((backend, row[1], row[2].rstrip("~")))
    _same_rows(audit, "model", "attention of a model", rows, expected)


def _steps(audit: Audit, text: str, files: Sequence[RunFile]) -> None:
    """Compare steps of models: latency, tokens a second, and the share of attention in one traced step."""
    expected = Counter[tuple[str, ...]]()
    for file in (file for file in files if file.head["suite"] == "step"):
        for cell in _cells(file):
            seconds = over_rounds(cell, lambda record: middle(record, "time"))
            if not seconds:
                continue
            (record,) = cell.ok.values()
            traced, attention = (samples(record, name)[0] for name in ("step_traced", "attention"))
            of_step = attention / max(traced, seconds)
            tokens = cell.case.batch * cell.case.seqlen_q / seconds
            expected[cell.backend, _gpu(file), duration(seconds), f"{float(f'{tokens:.3g}'):.0f}", share(of_step)] += 1
    rows = []
    number = 0
    while found := table(text, f"step-{number}"):
        rows += [(row[0], row[1], row[2], row[5], row[9]) for row in found]
        number += 1
    _same_rows(audit, "steps", "step of a model", rows, expected)


def _capacity(audit: Audit, text: str, files: Sequence[RunFile]) -> None:
    """Compare what fits, the next size, and the memory at the largest that fits, of searches of a length."""
    expected = Counter[tuple[str, ...]]()
    for file in (file for file in files if file.head.get("search")):
        searches: dict[tuple[str, str], dict[int, dict[str, object]]] = {}
        for record in file.records:
            case = record["case"]
            searches.setdefault((record["backend"], case.direction), {})[case.seqlen_k] = record
        for (backend, _), steps in searches.items():
            fits = max(size for size, record in steps.items() if record["status"] == "ok")
            over = min((size for size, record in steps.items() if size > fits and record["status"] != "ok"), default=0)
            nbytes = samples(steps[fits], "memory_inputs")[0] + (memory_peak(steps[fits]) or 0.0)
            expected[backend, _tokens(fits), _tokens(over) if over else "", f"{nbytes / 2**30:.2g}"] += 1
    rows = table(text, "capacity")
    place = next(i for i, entry in enumerate(rows[0]) if entry in {of[0] for of in expected})
    shown = ((*row[place : place + 3], f"{float(row[place + 3].split()[0]):.2g}") for row in rows)
    _same_rows(audit, "capacity", "what fits", shown, expected)


def _tokens(size: int) -> str:
    return f"{size / 1024:.1f}".removesuffix(".0") + "k"


def _claims(audit: Audit, text: str, files: Sequence[RunFile]) -> None:
    """Compare claims of one case each in bursts and without pauses: FLOPs as the paper counts them, half if causal."""
    shown: dict[tuple[str, str], list[str]] = {}
    claim = ""
    for row in table(text, "claims-fa3"):
        claim = row[0] or claim
        if row[4] == "H100 SXM":
            shown[claim, row[2]] = row
    (file,) = (file for file in files if file.head["suite"] == "claims")
    for name, (headdim, causal) in TABLE_OF_FA3.items():
        for cell in _cells(file):
            case = cell.case
            of = case.headdim, case.causal, case.seqlen_k, case.direction, case.dtype
            row = shown.get((name, cell.backend))
            if of != (headdim, causal, 16384, "fwd", "fp16") or not row or cell.status != "ok":
                continue
            flops = 4 * 16384 * 16384 * case.batch * case.nheads * headdim / (2 if causal else 1)
            calls = over_rounds(cell, lambda record: middle(record, "time"))
            paused = over_rounds(cell, lambda record: statistics.fmean(samples(record, "sustained")))
            audit.same(f"claims: {name}", "claim in bursts", row[5], digits(flops / (calls or 1.0) / 1e12))
            audit.same(f"claims: {name}", "claim without pauses", row[6], digits(flops / (paused or 1.0) / 1e12))


def _several(audit: Audit, text: str, files: Sequence[RunFile]) -> None:
    """Compare the latency, the rate of each rank, and the error of sequences that are split over several GPUs."""
    expected = Counter[tuple[str, ...]]()
    for file in files:
        for cell in (cell for cell in _cells(file) if cell.case.ranks > 1 and cell.status == "ok"):
            seconds = over_rounds(cell, lambda record: middle(record, "time")) or 1.0
            rate = work.flops(cell.case) / cell.case.ranks / seconds / 1e12
            expected[cell.backend, str(cell.case.ranks), duration(seconds), digits(rate)] += 1
    shown = []
    for row in table(text, "scaling"):
        place = next(i for i, entry in enumerate(row) if entry.isdigit())
        shown.append((row[0], *row[place : place + 3]))
    _same_rows(audit, "several GPUs", "sequence on several GPUs", shown, expected)
