"""Tables of attention that aiconfigurator reads (ai-dynamo/aiconfigurator): latencies of a phase, as Parquet.

Its data has two files per device, engine and version, `context_attention_perf.parquet` and
`generation_attention_perf.parquet`, with the columns of COLUMNS. A context row is a causal forward of `isl` tokens per
sequence on themselves (`step` 0). A generation row is a forward of one query per sequence (`isl` 1) after `step`
earlier tokens, so on isl + step keys. A `window_size` of W is the last W keys, 0 no window. `latency` is in
milliseconds.

Its own rows are calls of an engine, which first write the keys and values of their queries to a cache of pages. Where
several cells have the same row, the ones most like that are taken: with pages and appending, else with pages, else
contiguous. Among them the fastest right backend has the row. Its name is a column of ours, `backend`, which
aiconfigurator does not read: it interpolates within one `kernel_source`, so all rows have the same.

Cells that no row can stand for are left out: ragged batches, backward passes, soft caps, sinks, masks by name, scales,
dtypes other than bf16 and fp8. So are approximations, and cells whose latency cannot be believed: other processes
disturbed them, their results are stored, or the device waited for the host. A row has no place for an interval.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench import __version__
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.text import listed
from attnbench.results.cells import Cell

TABLES = {"aiconfigurator-context": "context_attention", "aiconfigurator-generation": "generation_attention"}
_OF_CASE = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "beam_width")
_LAST = ("attn_dtype", "kv_cache_dtype", "step", "window_size")
COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", *_OF_CASE, *_LAST, "latency", "backend")
_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}


def content(format: str, cells: Sequence[Cell]) -> bytes:
    """Return the table of a format of TABLES. Raises UserError without a row, for several devices, without pyarrow."""
    rows = table_rows(TABLES[format], cells)
    if not rows:
        raise UserError(
            f"--format {format}: no cell has a latency that a row can stand for, in bf16 or fp8; measure with "
            + ("--causal --pass fwd" if "context" in format else "--seqlen-q 1 --page-size 64")
        )
    if len(devices := {row["device"] for row in rows}) > 1:
        raise UserError(f"--format {format}: a table is of one device, not of {listed(sorted(devices))}; give its runs")
    import pandas

    buffer = io.BytesIO()
    try:
        pandas.DataFrame(rows, columns=[*COLUMNS]).to_parquet(buffer, index=False)
    except ImportError:
        raise UserError(f"--format {format} needs pyarrow: pip install pyarrow") from None
    return buffer.getvalue()


def table_rows(op_name: str, cells: Sequence[Cell]) -> list[Mapping[str, Any]]:
    """Return the rows of a table, with the keys of COLUMNS, in the order of the cells: one row for each case."""
    best: dict[tuple[Any, ...], tuple[tuple[float, ...], Mapping[str, Any]]] = {}
    for cell in cells:
        latency, of_case = cell.value("latency"), _row(op_name, cell.case)
        if latency is None or of_case is None or not cell.is_exact:
            continue
        if cell.is_disturbed or cell.not_computed or cell.is_host_bound():
            continue
        device = cell.run.environment.device.name
        row = {
            "framework": "attnbench",
            "version": __version__,
            "device": device,
            "op_name": op_name,
            "kernel_source": "attnbench",
            **of_case,
            "latency": 1e3 * latency,
            "backend": cell.backend,
        }
        key = (device, *of_case.values())
        rank = (not cell.case.append, not cell.case.is_paged, latency)
        if key not in best or rank < best[key][0]:
            best[key] = rank, row
    return [row for _, row in best.values()]


def _row(op_name: str, case: Case) -> Mapping[str, Any] | None:
    """Return the columns of a case; None where the table has no row for it."""
    s, (left, right) = case.shape, case.window_size
    plain = Case(
        *(s, case.dtype, "fwd", case.causal, case.window_size),
        page_size=case.page_size,
        cache_dtype=case.cache_dtype,
        append=case.append,
    )
    if plain != case or case.dtype not in _DTYPES or s.headdim != s.headdim_v:
        return None
    is_decode = s.seqlen_q == 1 < s.seqlen_k  # one query, the last, has no later keys: each mask is causal
    if is_decode != (op_name == "generation_attention") or not (is_decode or s.seqlen_q == s.seqlen_k):
        return None
    if not is_decode and (not case.causal or right not in (None, 0)):
        return None
    return {
        "batch_size": s.batch,
        "isl": s.seqlen_q,
        "num_heads": s.nheads,
        "num_key_value_heads": s.nheads_k,
        "head_dim": s.headdim,
        "beam_width": 1,
        "attn_dtype": _DTYPES[case.dtype],
        "kv_cache_dtype": "fp8" if case.cache_dtype == "fp8" else _DTYPES[case.dtype],
        "step": s.seqlen_k - s.seqlen_q,
        "window_size": 0 if left is None else left + 1,
    }
