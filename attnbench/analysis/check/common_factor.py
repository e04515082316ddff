"""Finds the properties that all cases which are not right share, and that no right case has, or few have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnbench.core import masks
from attnbench.core.case import Case
from attnbench.core.groups import in_common
from attnbench.core.sizes import format_size
from attnbench.core.text import listed
from attnbench.results import case_names

FEW = 2  # cases on either side: a property that fewer share may be chance


def common_factor(bad: Sequence[Case], right: Sequence[Case]) -> str:
    """Return how many cases with the properties of all bad ones are bad: "52 of the 60 that are causal, ...".

    "" where there are no such properties, where most cases that have them are right, and for too few cases.
    """
    tried = [[*_properties(case)] for case in (*bad, *right)]
    common, alike = in_common(tried[: len(bad)], tried)
    if len(bad) < FEW or len(tried) - alike < FEW or 2 * len(bad) < alike:
        return ""
    share = f"all {alike}" if alike == len(bad) else f"{len(bad)} of the {alike}"
    return f"{share} that are {listed(common)}, none of the {len(tried) - alike} others"


def _properties(case: Case) -> Iterator[str]:
    """Yield the properties of a case, in words that follow "that are"; the likelier causes of a bug come first."""
    yield "causal" if case.causal else "not causal"
    yield case.direction
    yield case.dtype
    yield f"of d{case_names.headdim(case)}"
    if case.window_size != (None, None):
        yield "windowed"
    if case.mask:
        yield f"masked by {masks.without_folder(case.mask)}"
    if case_names.has_grouped_heads(case):
        yield "of grouped heads"
    yield from (f"of {text}" for text in case_names.extras(case))
    if case.is_ragged:
        yield "ragged"
    if case_names.lengths_differ(case):
        yield "of seqlen_q != seqlen_k"
    yield f"of {format_size(case.shape.seqlen_k)} keys"
    yield f"of seqlen_q {format_size(case.shape.seqlen_q)}"
    yield f"of batch {case.shape.batch}"
    yield f"of {case_names.counted_heads(case)}"
