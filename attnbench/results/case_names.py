"""Names for cases, sizes and endings, the same in every report: "triton 16k d128 causal fwd"."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from attnbench.core.case import DIRECTIONS, DTYPES, Case
from attnbench.core.record import Status
from attnbench.core.sizes import short

if TYPE_CHECKING:
    from attnbench.results.cells import Cell

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

_PLACED = {"shape", "dtype", "direction", "causal", "window_size"}  # fields that a name says in a way of their own
_USUAL = {f.name: f.default for f in dataclasses.fields(Case) if f.name not in _PLACED}
_FACTORS = {"h": 3600.0, "m": 60.0, "s": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}
_QUANTITY = re.compile(
    r"(?<![\w.])(?:\d+h\d+m|\d+m\d+s|\d+(?:\.\d+)?s|"  # as attnbench.core.sizes writes durations
    r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:[KMG]i)?B)?)(?!\w|\.\d)"
)


def backend_rank(name: str) -> tuple[int, str]:
    """From plain to clever, then by name: the same column order in every report."""
    return (BACKEND_ORDER.index(name) if name in BACKEND_ORDER else len(BACKEND_ORDER), name)


def headdim(case: Case) -> str:
    """128, or 192-128 where values have their own."""
    s = case.shape
    return str(s.headdim) if s.headdim == s.headdim_v else f"{s.headdim}-{s.headdim_v}"


def heads(case: Case) -> str:
    """16, or 32/8 where keys have their own."""
    s = case.shape
    return str(s.nheads) if s.nheads == s.nheads_k else f"{s.nheads}/{s.nheads_k}"


@cache
def mask(case: Case) -> str:
    """full, causal, window (1023, 0), causal window (1023, open)."""
    if case.window_size == (None, None):
        return "causal" if case.causal else "full"
    left, right = ("open" if side is None else str(side) for side in case.window_size)
    return f"{'causal ' if case.causal else ''}window ({left}, {right})"


@cache
def extras(case: Case) -> tuple[str, ...]:
    """What else is not as usual: ("softcap 30", "dropout 0.1"). A field that this file does not know is named too."""
    each = [(name, getattr(case, name), usual) for name, usual in _USUAL.items()]
    return tuple(_extra(name, value) for name, value, usual in each if value != usual)


def _extra(field: str, value: object) -> str:
    return f"{field.removesuffix('_p')} {value:g}" if isinstance(value, float) else f"{field} {value}"


@cache
def mask_rank(case: Case) -> tuple[bool, bool, str]:
    return (case.window_size != (None, None), case.causal, mask(case))


def case_rank(case: Case) -> tuple[Any, ...]:
    """The order of cases in every report: dtype, headdim, mask, pass, then lengths."""
    s = case.shape
    kind = (DTYPES.index(case.dtype), s.headdim, s.headdim_v, mask_rank(case), DIRECTIONS.index(case.direction))
    return (*kind, s.seqlen_k, s.seqlen_q, s.batch, s.nheads, s.nheads_k, case.softcap, case.dropout_p, case.key)


def lengths(case: Case) -> str:
    """16k, or 1x16k for one query on 16k keys."""
    s = case.shape
    return short(s.seqlen_k) if s.seqlen_q == s.seqlen_k else f"{short(s.seqlen_q)}x{short(s.seqlen_k)}"


def case(backend: str, case: Case, dtype: bool = False) -> str:
    """One case on one backend in a few words: triton 16k d128 causal fwd softcap 30; with its dtype where asked for."""
    said = (f"{backend} {lengths(case)} d{headdim(case)} {mask(case)} {case.direction}", *extras(case))
    return " ".join((*said, case.dtype) if dtype else said)


def name(cell: Cell) -> str:
    """With its dtype where there are cells of another."""
    return case(cell.backend, cell.case, cell.sheet.several_dtypes)


def count(n: int, what: str) -> str:
    """1 cell, 2 cells."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def some(names: Iterable[str], limit: int = 3) -> str:
    """The first few, and how many more."""
    names = list(names)
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def span(values: Sequence[int], known: Sequence[int]) -> str:
    """Lengths, compressed: 1k, or 1k, 4k, or 1k-64k where all of the known ones between are meant."""
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
            parts.append(f"{short(run[0])}-{short(run[-1])}")
        else:
            parts += [short(v) for v in run]
    return ", ".join(parts)


def where(some_cells: Sequence[Cell], all_cells: Sequence[Cell]) -> str:
    """What sets some cells apart from all: the axes on which they have not every value; "" where they are all."""
    ours, every = [c.case for c in some_cells], [c.case for c in all_cells]
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


@lru_cache(maxsize=10_000)  # many records have one reason
def one_line(text: str) -> str:
    """Without line breaks and escape sequences: reasons quote libraries."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


@lru_cache(maxsize=10_000)
def template(reason: str) -> str:
    """The reason with its quantities taken out, so that those that differ in quantities only are one."""
    return _QUANTITY.sub("\0", reason)


def merged(reasons: Sequence[str]) -> str:
    """Reasons of one template as one line: "needs 512 MiB to 137 GiB of scores"."""
    texts = []
    for quantities in zip(*(_QUANTITY.findall(r) for r in reasons), strict=True):
        low, high = min(quantities, key=_amount), max(quantities, key=_amount)
        texts.append(low if _amount(low) == _amount(high) else f"{low} to {high}")
    parts = template(reasons[0]).split("\0")
    return "".join(part + text for part, text in zip(parts, [*texts, ""], strict=True))


def _amount(quantity: str) -> float:
    """Seconds, bytes or just the number: 3m05s, 1.5 GiB, 0.0041."""
    pairs = re.findall(r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([a-zA-Z]*)", quantity)
    return sum(float(number) * _FACTORS.get(unit, 1.0) for number, unit in pairs)
