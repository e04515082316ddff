"""Compares backends by the quantities of which the slower backend has more, as a table and a sentence.

More of any of these quantities costs more time. The sentence names the quantities of which the slowest right backend
has at least MORE times as much as the fastest, largest ratio first. It does not say which of them costs the time, as
the figures do not show that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnbench.core import stats
from attnbench.core.flops import Roofline
from attnbench.core.formats import duration, percent, size, times
from attnbench.core.text import listed
from attnbench.render.document import Column, Entry, Span, Table
from attnbench.run.profile.profile import Profile

MORE = 1.1
MOST_NAMED = 3


@dataclass(frozen=True)
class Quantity:
    """One figure of a profile by which backends are compared; `phrase` is its name in a sentence."""

    heading: str
    phrase: str  # "" for a quantity that the sentence never names
    of: Callable[[Profile], float | None]
    format: Callable[[float], str]


def _gaps(profile: Profile) -> float | None:
    return sum(profile.gaps) if profile.what == "kernels" and len(profile.activities) > 1 else None


QUANTITIES = (
    Quantity("latency", "", lambda p: p.latency, duration),
    Quantity("span", "", lambda p: stats.median(p.spans) if p.spans else None, duration),
    Quantity(
        "kernels", "the kernels", lambda p: len(p.activities) if p.what == "kernels" else None, lambda n: f"{n:.0f}"
    ),
    Quantity("gaps between kernels", "the gaps between its kernels", _gaps, duration),
    Quantity("CPU launch", "the time of the host", lambda p: stats.median(p.enqueue) if p.enqueue else None, duration),
    Quantity("in a CUDA graph", "", lambda p: stats.median(p.in_graph) if p.in_graph else None, duration),
    Quantity("host operators", "the operators on the host", lambda p: p.host.operators or None, lambda n: f"{n:.0f}"),
    Quantity("waits in the call", "the waits for a result", lambda p: sum(p.host.waits.values()), lambda n: f"{n:.0f}"),
    Quantity("allocations", "the allocations", lambda p: p.host.allocations or None, lambda n: f"{n:.0f}"),
    Quantity("peak memory", "the memory", lambda p: p.memory_peak, size),
    Quantity("HBM traffic", "the HBM traffic", lambda p: p.traffic.total if p.traffic else None, size),
)


def side_by_side(profiles: Sequence[Profile], roofline: Roofline | None) -> Table:
    """Return a table of the quantities of several backends, and of two backends the ratio of the slower to the faster.

    Quantities that no backend has, and counts that are 0 for all, are left out.
    """
    pair = _slow_and_fast(profiles) if len(profiles) == 2 else None
    columns = [Column(f"{p.backend} WRONG" if p.wrong else p.backend, "right") for p in profiles]
    rows: list[tuple[Entry, ...]] = []
    for quantity in QUANTITIES:
        values = [quantity.of(p) for p in profiles]
        if not any(values):
            continue
        row: list[Entry] = [Span(quantity.heading, "quiet")]
        row += [quantity.format(value) if value is not None else "-" for value in values]
        if pair:
            ratio = _ratio(quantity, *pair)
            row.append(times(ratio) if ratio else "")
        rows.append(tuple(row))
    if roofline:
        shares = (percent(roofline.seconds / p.latency) for p in profiles)
        rows.append((Span("of the roofline", "quiet"), *shares, *([""] if pair else [])))
        if any(p.traffic for p in profiles):
            least = (times(p.traffic.total / roofline.nbytes) if p.traffic else "-" for p in profiles)
            rows.append((Span("over the least", "quiet"), *least, *([""] if pair else [])))
    last = [Column(f"{pair[0].backend} over {pair[1].backend}", "right")] if pair else []
    return Table("side-by-side", (Column("side by side", wrap=False), *columns, *last), tuple(rows))


def difference(profiles: Sequence[Profile]) -> str:
    """Return a sentence on the quantities of which the slowest right backend has more than the fastest.

    "" where there are not two right backends.
    """
    if (pair := _slow_and_fast([p for p in profiles if not p.wrong])) is None:
        return ""
    slow, fast = pair
    found = [(ratio, q.phrase) for q in QUANTITIES if q.phrase and (ratio := _ratio(q, slow, fast)) and ratio >= MORE]
    new = [q.phrase for q in QUANTITIES if q.phrase and q.of(slow) and q.of(fast) == 0]
    named = [f"{times(ratio)} {phrase}" for ratio, phrase in sorted(found, reverse=True)[:MOST_NAMED]]
    named += [f"{phrase.removeprefix('the ')} where the other has none" for phrase in new]
    start = f"{slow.backend} takes {times(slow.latency / fast.latency)} the time of {fast.backend}"
    if not named:
        return f"{start}; the figures here do not say why, as they are the same for both."
    return f"{start}, and has {listed(named)}."


def _slow_and_fast(profiles: Sequence[Profile]) -> tuple[Profile, Profile] | None:
    if len(profiles) < 2:
        return None
    ordered = sorted(profiles, key=lambda p: p.latency)
    return ordered[-1], ordered[0]


def _ratio(quantity: Quantity, slow: Profile, fast: Profile) -> float | None:
    ours, theirs = quantity.of(slow), quantity.of(fast)
    return ours / theirs if ours and theirs else None
