"""Names of cases, sizes and endings, the same in every report: "triton 16k d128 causal fwd"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from attnbench.core import axes
from attnbench.core.axes import EXTRAS as EXTRAS
from attnbench.core.axes import Axis
from attnbench.core.axes import counted_heads as counted_heads
from attnbench.core.axes import has_grouped_heads as has_grouped_heads
from attnbench.core.axes import headdim as headdim
from attnbench.core.axes import heads as heads
from attnbench.core.axes import lengths_differ as lengths_differ
from attnbench.core.axes import mask as mask
from attnbench.core.axes import mask_rank as mask_rank
from attnbench.core.axes import pattern as pattern
from attnbench.core.axes import seqlen as seqlen
from attnbench.core.case import DIRECTIONS, DTYPES, Case
from attnbench.core.lengths import is_pattern
from attnbench.core.record import Status
from attnbench.core.sizes import format_size

BACKEND_ORDER = (  # backends with a fixed colour in all charts; there are 32 colours
    *("eager", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "sdpa-fa3", "sdpa-fa4", "triton"),
    *("flex", "compile", "fa1", "fa2", "fa3", "fa4"),
    *("xformers", "xformers-cutlass", "xformers-fa2", "xformers-fa3", "xformers-splitk"),
    *("flashinfer", "flashinfer-fa2", "flashinfer-fa3", "flashinfer-cudnn", "flashinfer-trtllm"),
    *("cudnn", "cudnn-fp8", "transformer-engine"),
    *("hf-eager", "hf-sdpa", "hf-flash_attention_2", "hf-flex_attention"),
    "sdpa",
)
ENDINGS: Mapping[Status, str] = {
    "wrong": "WRONG",
    "wrong-kernel": "KERNEL!",
    "failed": "FAIL",
    "oom": "OOM",
    "timeout": "TIMEOUT",
    "skipped": "skip",
}
NOTHING = "-"  # measured, without a value of this metric

AXES: Mapping[str, Axis] = {  # the properties in which two cases may differ, in the order of titles and tables
    name: axes.AXES[name]
    for name in (
        *("dtype", "headdim", "causal", *EXTRAS, "lengths"),
        *("direction", "nheads", "batch", "seqlen_q", "seqlen"),
    )
}


def backend_rank(name: str) -> tuple[int, str]:
    """Return the sort key of a backend, or of its name from `with_versions`: by BACKEND_ORDER, then by name."""
    plain = name.partition(" ")[0]
    return (BACKEND_ORDER.index(plain) if plain in BACKEND_ORDER else len(BACKEND_ORDER), name)


def with_versions(versions: Mapping[str, str], unusual: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Return backend -> its name in a table: with a library's version where other backends of the run have another.

    `versions` has each backend's own text: "torch 2.11.0, flash-attn-4 4.0.0b18". The version that most of a library's
    backends have is not named. So a difference of versions is not taken for a difference of backends: "sdpa-fa4
    (4.0.0b18)" beside "fa4 (4.0.0b36)". `unusual` has the versions named in other runs of a report (unusual_versions),
    which are named here too.
    """
    told = {*unusual, *unusual_versions(versions)}
    named: dict[str, list[str]] = {backend: [] for backend in versions}
    for library, found in _by_library(versions).items():
        for backend, version in found.items():
            if (library, backend) in told:
                named[backend].append(version)
    return {backend: f"{backend} ({', '.join(of)})" if of else backend for backend, of in named.items()}


def unusual_versions(versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (library, backend) where the backend's version is not the one of most backends of the library."""
    for library, found in _by_library(versions).items():
        usual = [version for version, n in Counter(found.values()).items() if 2 * n > len(found)]
        yield from ((library, backend) for backend, version in found.items() if version not in usual)


def _by_library(versions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return library -> backend -> version of the library."""
    found: dict[str, dict[str, str]] = {}
    for backend, said in versions.items():
        for library, version in re.findall(r"(?<!\S)(\S+) (\d+\.[^\s,]+)", said):
            found.setdefault(library, {})[backend] = version
    return found


def by_version(versions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return (backend, its text of versions) -> its name in a sentence about several runs.

    Versions are named only where a backend has several: "fa4 (flash-attn-4 4.0.0b36)".
    """
    parts: dict[str, dict[str, list[str]]] = {}
    for backend, said in versions:
        parts.setdefault(backend, {})[said] = said.split(", ") if said else []
    found = {}
    for backend, of_version in parts.items():
        common = set.intersection(*map(set, filter(None, of_version.values()))) if any(of_version.values()) else set()
        for said, all_parts in of_version.items():
            own = ", ".join(part for part in all_parts if part not in common)
            found[backend, said] = f"{backend} ({own})" if own else backend
    return found


@cache
def extras(case: Case) -> tuple[str, ...]:
    """Return the fields with unusual values that a name does not show otherwise: ("softcap 30", "dropout 0.1")."""
    return tuple(filter(None, (AXES[name].label(case) for name in EXTRAS)))


def case_rank(case: Case) -> tuple[Any, ...]:
    """Return the sort key of cases in every report: dtype, headdim, mask, direction, then lengths."""
    s = case.shape
    kind = (DTYPES.index(case.dtype), s.headdim, s.headdim_v, mask_rank(case), DIRECTIONS.index(case.direction))
    sizes = (pattern(case), seqlen(case), s.seqlen_q, s.batch, s.nheads, s.nheads_k)
    return (*kind, *sizes, case.softcap, case.dropout_p, case.ranks, case.key)


def lengths(case: Case) -> str:
    """Return the length as "16k", as "1x16k" for one query on 16k keys, or as "longtail 16x1k" for a ragged batch.

    Where a pattern has fewer queries than keys, the largest number of queries is named too: "longtail 16x1k q1".
    """
    if case.is_ragged:
        queries = f" q{format_size(case.shape.seqlen_q)}" if lengths_differ(case) and is_pattern(pattern(case)) else ""
        return f"{pattern(case)} {case.shape.batch}x{format_size(seqlen(case))}{queries}"
    keys = format_size(case.shape.seqlen_k)
    return f"{format_size(case.shape.seqlen_q)}x{keys}" if lengths_differ(case) else keys


def case_name(backend: str, case: Case, dtype: bool = False, batch: bool = False) -> str:
    """Return a case on a backend in a few words, with its dtype if asked: triton 16k d128 causal fwd softcap 30.

    Batch and heads are named (triton 1x16k d128 causal fwd b64 h32/8) on request, and where the numbers of queries and
    keys differ, because there the length does not imply them.
    """
    said = [f"{backend} {lengths(case)} d{headdim(case)} {mask(case)} {case.direction}", *extras(case)]
    if dtype:
        said.append(case.dtype)
    if batch or lengths_differ(case):
        said.append(f"b{case.shape.batch} h{heads(case)}")
    return " ".join(said)


def span(values: Sequence[int], known: Sequence[int]) -> str:
    """Return lengths in short: "1k", "1k, 4k", or "1k-64k" where all known lengths between the two are among them."""
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
    """Return how some cases differ from all: their values on each axis where they lack a value; "" where none."""
    axes: tuple[tuple[Callable[[Case], Any], Callable[[Case], str]], ...] = (  # (sort key of a value, name of a value)
        (lambda c: DTYPES.index(c.dtype), lambda c: c.dtype),
        (lambda c: (c.shape.headdim, c.shape.headdim_v), lambda c: f"d{headdim(c)}"),
        (has_grouped_heads, lambda c: "grouped heads" if has_grouped_heads(c) else ""),
        (lengths_differ, lambda c: "seqlen_q != seqlen_k" if lengths_differ(c) else ""),
        (mask_rank, mask),
        (extras, lambda c: " ".join(extras(c)) or without),
        (lambda c: DIRECTIONS.index(c.direction), lambda c: c.direction),
    )
    seen = {value: {value(c) for c in ours} for value, _ in axes if value != extras}
    alike = [c for c in every if all(value(c) in of for value, of in seen.items())]  # alike except for extras
    told = " or ".join(sorted({text.split()[0] for case in alike for text in extras(case)}))
    without = told and f"without {told}"
    lengths_k, known = ({c.shape.seqlen_k for c in cases} for cases in (ours, every))
    parts = [span([*lengths_k], [*known])] if lengths_k != known else []
    for value, name in axes:
        found = {value(c): c for c in ours}
        if found.keys() != {value(c) for c in every}:
            parts.append(", ".join(name(found[key]) for key in sorted(found)))
    return "; ".join(filter(None, parts))


def full_name(backend: str, case: Case) -> str:
    """Return a name that no other cell has: triton 16k d128 causal fwd bf16 b1 h16."""
    return case_name(backend, case, dtype=True, batch=True)
