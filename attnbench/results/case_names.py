"""Names for cases, sizes and endings, the same in every report: "triton 16k d128 causal fwd"."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from attnbench.core.case import DIRECTIONS, DTYPES, Case
from attnbench.core.record import Status
from attnbench.core.sizes import format_size

BACKEND_ORDER = (
    *("eager", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "sdpa-fa3", "sdpa-fa4", "triton"),
    *("flex", "compile", "fa1", "fa2", "fa3", "fa4"),
    *("xformers", "xformers-cutlass", "xformers-fa2", "xformers-fa3", "xformers-splitk"),
    *("flashinfer", "flashinfer-fa2", "flashinfer-fa3", "flashinfer-cudnn", "flashinfer-trtllm"),
    *("cudnn", "cudnn-fp8", "transformer-engine"),
    *("hf-eager", "hf-sdpa", "hf-flash_attention_2", "hf-flex_attention"),
)
ENDINGS: Mapping[Status, str] = {
    "wrong": "WRONG",
    "wrong-kernel": "KERNEL!",
    "failed": "FAIL",
    "oom": "OOM",
    "timeout": "TIMEOUT",
    "skipped": "skip",
}
NOTHING = "-"  # measured, but this metric has no value

_PLACED = {"shape", "dtype", "direction", "causal", "window_size"}  # fields that other parts of a name tell
_USUAL = {f.name: f.default for f in dataclasses.fields(Case) if f.name not in _PLACED}


def backend_rank(name: str) -> tuple[int, str]:
    """Return a sort key of backends: in the order of BACKEND_ORDER, then unknown ones by name."""
    return (BACKEND_ORDER.index(name) if name in BACKEND_ORDER else len(BACKEND_ORDER), name)


def headdim(case: Case) -> str:
    """Return "128", or "192-128" where values have another headdim than queries and keys."""
    s = case.shape
    return str(s.headdim) if s.headdim == s.headdim_v else f"{s.headdim}-{s.headdim_v}"


def heads(case: Case) -> str:
    """Return "16", or "32/8" where there are fewer key heads than query heads."""
    s = case.shape
    return str(s.nheads) if s.nheads == s.nheads_k else f"{s.nheads}/{s.nheads_k}"


@cache
def mask(case: Case) -> str:
    """Return "full", "causal", "window (1023, 0)" or "causal window (1023, open)"."""
    if case.window_size == (None, None):
        return "causal" if case.causal else "full"
    left, right = ("open" if side is None else str(side) for side in case.window_size)
    return f"{'causal ' if case.causal else ''}window ({left}, {right})"


@cache
def extras(case: Case) -> tuple[str, ...]:
    """Return the fields at another value than their default that no other name tells: ("softcap 30", "dropout 0.1")."""
    each = [(name, getattr(case, name), usual) for name, usual in _USUAL.items()]
    return tuple(_extra(name, value) for name, value, usual in each if value != usual)


def _extra(field: str, value: object) -> str:
    return f"{field.removesuffix('_p')} {value:g}" if isinstance(value, float) else f"{field} {value}"


@cache
def mask_rank(case: Case) -> tuple[bool, bool, str]:
    """Return the sort key of masks: full, causal, then windows."""
    return (case.window_size != (None, None), case.causal, mask(case))


def case_rank(case: Case) -> tuple[Any, ...]:
    """Return the sort key of cases in every report: dtype, headdim, mask, direction, then lengths."""
    s = case.shape
    kind = (DTYPES.index(case.dtype), s.headdim, s.headdim_v, mask_rank(case), DIRECTIONS.index(case.direction))
    return (*kind, s.seqlen_k, s.seqlen_q, s.batch, s.nheads, s.nheads_k, case.softcap, case.dropout_p, case.key)


def lengths(case: Case) -> str:
    """Return "16k", or "1x16k" for one query on 16k keys."""
    s = case.shape
    return (
        format_size(s.seqlen_k) if s.seqlen_q == s.seqlen_k else f"{format_size(s.seqlen_q)}x{format_size(s.seqlen_k)}"
    )


def case_name(backend: str, case: Case, dtype: bool = False) -> str:
    """Return a case on a backend in a few words, with its dtype if asked: triton 16k d128 causal fwd softcap 30."""
    said = (f"{backend} {lengths(case)} d{headdim(case)} {mask(case)} {case.direction}", *extras(case))
    return " ".join((*said, case.dtype) if dtype else said)


def span(values: Sequence[int], known: Sequence[int]) -> str:
    """Return lengths in short: "1k", "1k, 4k", or "1k-64k" where all known lengths between are among them."""
    values, known = sorted(set(values)), sorted(set(known))
    runs: list[list[int]] = []
    for v in values:
        if runs and known.index(v) == known.index(runs[-1][-1]) + 1:
            runs[-1].append(v)
        else:
            runs.append([v])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{format_size(run[0])}-{format_size(run[-1])}")
        else:
            parts += [format_size(v) for v in run]
    return ", ".join(parts)


def where(ours: Sequence[Case], every: Sequence[Case]) -> str:
    """Return what sets some cases apart from all: the axes on which they lack a value; "" where they lack none."""
    parts = []
    queries = [c.shape.seqlen_k for c in ours]
    known = [c.shape.seqlen_k for c in every]
    if set(queries) != set(known):
        parts.append(span(queries, known))
    dtypes = {c.dtype for c in ours}
    if dtypes != {c.dtype for c in every}:
        parts.append(", ".join(sorted(dtypes, key=DTYPES.index)))
    dims = {(c.shape.headdim, c.shape.headdim_v): f"d{headdim(c)}" for c in ours}
    if dims.keys() != {(c.shape.headdim, c.shape.headdim_v) for c in every}:
        parts.append(", ".join(dims[key] for key in sorted(dims)))
    groups = {c.shape.nheads // c.shape.nheads_k != 1 for c in ours}
    if groups == {True} != {c.shape.nheads // c.shape.nheads_k != 1 for c in every}:
        parts.append("grouped heads")
    if (
        {c.shape.seqlen_q == c.shape.seqlen_k for c in ours}
        == {False}
        != {c.shape.seqlen_q == c.shape.seqlen_k for c in every}
    ):
        parts.append("seqlen_q != seqlen_k")
    masks = {mask(c): mask_rank(c) for c in ours}
    if masks.keys() != {mask(c) for c in every}:
        parts.append(", ".join(sorted(masks, key=lambda m: masks[m])))
    others = {extras(c) for c in ours}
    if others != {extras(c) for c in every}:
        told = sorted({text.split()[0] for c in every for text in extras(c)})
        parts.append(", ".join(" ".join(found) or f"without {' or '.join(told)}" for found in sorted(others)))
    directions = {c.direction for c in ours}
    if directions != {c.direction for c in every}:
        parts.append(", ".join(sorted(directions, key=DIRECTIONS.index)))
    return "; ".join(parts)
