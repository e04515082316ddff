"""The document of a profile: figures and timeline of each backend, backends side by side, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnbench.analysis.profile.bounds import sentence
from attnbench.analysis.profile.figures import figures, sentences
from attnbench.analysis.profile.side_by_side import difference, side_by_side
from attnbench.analysis.profile.timeline import (
    MAX_NAME,
    kernel_name,
    shortened,
    split_by_length,
    traffic_by_activity,
)
from attnbench.core.case import Case
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT
from attnbench.core.formats import duration, percent, share, size
from attnbench.core.json import to_json
from attnbench.render.document import (
    Bar,
    Block,
    Caution,
    Column,
    Document,
    Entry,
    Machine,
    Pairs,
    Reason,
    Span,
    Steps,
    Table,
)
from attnbench.results import case_names, disturbed
from attnbench.run.profile.counters import COUNTERS, longest
from attnbench.run.profile.nsight_reports import REPORTS
from attnbench.run.profile.profile import Outcome, Profile

KEPT_NAMES = {"trace": "Trace", "flame": "Flame graph of the host's work"}
KEPT_NAMES |= {tool: report.what for tool, report in REPORTS.items()}
OPENED = {"trace": "at https://ui.perfetto.dev.", "flame": "in a browser."}
OPENED |= {tool: f"with: {report.opened} {{path}}" for tool, report in REPORTS.items()}
MOST_KERNELS = 4  # in the table of counters


def document(outcome: Outcome) -> Document:
    """Return the document of a profile. Where no backend has a profile, it says why and nothing else."""
    profiles, environment = outcome.profiles, outcome.environment
    blocks: list[Block] = [side_by_side(profiles, outcome.roofline)] if len(profiles) > 1 else []
    for profile in profiles:
        heading = f"{profile.backend} WRONG" if profile.wrong else f"{profile.backend}  {profile.version or ''}".strip()
        blocks.append(Pairs(tuple(figures(profile, outcome.roofline)), heading))
        blocks += [_timeline(profile)] if profile.activities else []
        blocks += [_counters(profile)] if profile.counters else []
    refused = tuple(Caution(f"{name}: no profile", reason) for name, reason in outcome.refused.items())
    missing = [f"{p.backend}: {note}" for p in profiles for note in p.notes] + [*(outcome.notes if profiles else ())]
    case = described(outcome.case)
    driver = f", driver {environment.driver}" if environment.driver else ""
    memory = f"{size(environment.device.memory)}{driver}, torch {environment.torch}"
    return Document(
        command="profile",
        title=case,
        answer=(*disturbed.doubt_at_start(environment), *filter(None, (difference(profiles),))),
        machines=(Machine(environment.device.name, memory, case),) if profiles else (),
        blocks=tuple(blocks),
        reasons=tuple(Reason("WRONG", p.backend, p.wrong) for p in profiles if p.wrong),
        cautions=(
            *refused,
            *(_waits(p) for p in profiles if p.host.waits),
            *map(Caution, missing),
            *map(Caution, _lacking(profiles)),
        ),
        facts=tuple(
            Caution(f"{KEPT_NAMES[kind]} of {p.backend}: {path}", todo=f"Open it {OPENED[kind].format(path=path)}")
            for p in profiles
            for kind, path in p.kept.items()
        ),
        notes=tuple((Span(text, "strong"),) for text in (*_bounds(outcome), *sentences(outcome))),
        data=_data(outcome),
        rows=[row for profile in profiles for row in _csv_rows(profile)],
        exit_code=EXIT_WRONG_RESULT if outcome.wrong else EXIT_DONE if profiles else EXIT_NOTHING_MEASURED,
    )


def _bounds(outcome: Outcome) -> Iterator[str]:
    """Yield what bounds the longest kernel of each backend whose counters were read."""
    for profile in outcome.profiles:
        for kernel in longest(profile.counters, 1):
            total = sum(one.value("seconds") for one in profile.counters)
            of = f", {percent(kernel.value('seconds') / total)} of its time" if total else ""
            said = sentence(kernel, outcome.environment.device.multiprocessors or 0)
            yield f"{profile.backend}, {shortened(kernel_name(kernel.name), MAX_NAME)}{of}: {said}"


def _lacking(profiles: Sequence[Profile]) -> Iterator[str]:
    """Yield which counters no kernel has, where counters were read."""
    kernels = [kernel for profile in profiles for kernel in profile.counters]
    known = {key for kernel in kernels for key in kernel.values}
    if lacking := [counter.label for key, counter in COUNTERS.items() if kernels and key not in known]:
        yield f"counters that ncu does not give here: {', '.join(lacking)}"


def _counters(profile: Profile) -> Table:
    """Return a column for each of the longest kernels, with its counters and what its warps wait for."""
    shown = longest(profile.counters, MOST_KERNELS)
    columns = (
        Column("counter", wrap=False),
        *(Column(shortened(kernel_name(k.name), MAX_NAME), "right") for k in shown),
    )
    rows: list[tuple[Entry, ...]] = []
    for key, counter in COUNTERS.items():
        if any(key in kernel.values for kernel in shown):
            own = (counter.format(k.values[key]) if key in k.values else "-" for k in shown)
            rows.append((Span(counter.label, "quiet"), *own))
    for place in range(3):
        stalls = [k.top_stalls[place : place + 1] for k in shown]
        if any(stalls):
            own = (" ".join(f"{name} {percent(part)}" for name, part in one) or "-" for one in stalls)
            rows.append((Span("warps wait for" if not place else "", "quiet"), *own))
    return Table(f"counters-{profile.backend}", columns, tuple(rows))


def _waits(profile: Profile) -> Caution:
    """Return the caution that the call of a backend waits for its own results."""
    what = ", ".join(profile.host.waits)
    return Caution(
        f"{profile.backend} waits for a result in the call: {what}",
        "The host cannot launch ahead, so its time is in each call, and no CUDA graph can contain the call.",
        "Keep the number on the device, or make it before the call.",
    )


def described(case: Case) -> str:
    """Return the case in words: "8k d128 causal fwd bf16, batch 2, 16 heads"."""
    name = case_names.case_name("", case, dtype=True).strip()
    return f"{name}, batch {case.shape.batch}, {case_names.counted_heads(case)}"


def _timeline(profile: Profile) -> Table:
    """Return a row for each long activity with its place in the call, and a row for the memory in use.

    A terminal that is too narrow for the bars shows the figures alone.
    """
    shown, rest = split_by_length(profile.activities, profile.length)
    gaps = dict(zip(profile.activities, profile.gaps, strict=True))
    traffic = traffic_by_activity(profile)
    names = {a: shortened(kernel_name(a.name), MAX_NAME) for a in shown}
    groups = {name: i for i, name in enumerate(dict.fromkeys(names.values()))}
    headings = ("start", "time", "share", "gap", *(("HBM",) if traffic else ()))
    rows: list[tuple[Entry, ...]] = []
    for a in shown:
        figures = [
            duration(a.start) if a.start else "0",
            duration(a.seconds),
            share(a.seconds / profile.length),
            duration(gaps[a]) if gaps[a] > 0 else "-",
            *((size(traffic[a]) if a in traffic else "-",) if traffic else ()),
        ]
        bar = Bar(a.start / profile.length, a.end / profile.length, groups[names[a]])
        rows.append((names[a], *figures, bar))
    empty = ("",) * len(headings)
    if rest:
        seconds = sum(a.seconds for a in rest)
        figures = ["", duration(seconds), share(seconds / profile.length), *empty[3:]]
        rows.append(tuple(Span(text, "quiet") for text in (f"{len(rest)} more", *figures, "")))
    columns = (Column(profile.what), *(Column(heading, "right", wrap=False) for heading in headings))
    without_bars = Table(f"timeline-{profile.backend}", columns, tuple(row[:-1] for row in rows))
    if profile.memory:
        most = max(nbytes for _, nbytes in profile.memory)
        steps = Steps(tuple((at / profile.length, nbytes / most if most else 0.0) for at, nbytes in profile.memory))
        rows.append((Span(f"memory, to {size(most)}", "quiet"), *empty, steps))
    columns += (Column(f"0 to {duration(profile.length)}", wrap=False),)
    return Table(without_bars.name, columns, tuple(rows), narrow=without_bars)


def _data(outcome: Outcome) -> Any:
    """Return raw samples and the figures derived from them, in seconds, bytes and FLOP/s."""
    data = to_json(outcome)
    roofline = outcome.roofline
    if roofline:
        derived = {"intensity": roofline.intensity, "ridge": roofline.ridge, "seconds": roofline.seconds}
        data["roofline"].update(derived, bound=roofline.bound)
    for profile, found in zip(outcome.profiles, data.get("profiles", ()), strict=True):
        found["latency"] = profile.latency
        if roofline:
            found["roofline_fraction"] = roofline.seconds / profile.latency
        if profile.traffic:
            found["traffic"].update(read=profile.traffic.read, written=profile.traffic.written)
    return data


def _csv_rows(profile: Profile) -> Iterator[Mapping[str, Any]]:
    """Yield a row for each activity of the call, in seconds and bytes."""
    traffic = traffic_by_activity(profile)
    for a, gap in zip(profile.activities, profile.gaps, strict=True):
        row = {"backend": profile.backend, "activity": a.name, "stream": a.stream, "start": a.start}
        yield {**row, "seconds": a.seconds, "gap": gap, "hbm_bytes": traffic.get(a)}
