"""The document of capacity: the largest size that fits with each backend, what stops the next, and memory over size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.analysis.capacity.findings import Finding, findings, memory
from attnbench.analysis.sources import Sources, with_sources
from attnbench.core.errors import EXIT_DONE, EXIT_WRONG_RESULT
from attnbench.core.groups import grouped
from attnbench.core.record import LEAVES, Run, Search
from attnbench.core.sizes import format_bytes, format_duration, format_seconds, format_size
from attnbench.core.text import count, some
from attnbench.render.document import (
    Caution,
    Column,
    Document,
    Dot,
    Entry,
    Machine,
    Plot,
    Reason,
    Section,
    Span,
    Style,
    Table,
)
from attnbench.results import case_names, disturbed
from attnbench.results.exit_codes import exit_code
from attnbench.results.export_rows import case_columns
from attnbench.run.capacity import at_size, key_of, size_of

PASSES = {"fwd": "forward", "bwd": "backward", "fwd_bwd": "training"}
STYLES: Mapping[str, Style] = {"wrong": "bad", "failed": "bad", "unchecked": "warning", "not reached": "warning"}
NOTE = (
    "Memory counts one attention layer: its inputs, results and workspace. Weights and the memory of other "
    "layers are not counted. Each size in the column fits was compared with the reference at that size, in one call; "
    "attnbench run checks more."
)
BEYOND = "Sizes beyond it do not count as fitting."


def document(runs: Sequence[Run], allow_wrong: bool = False, sources: Sources | None = None) -> Document:
    """Return the document of the searches in some run files, with links to them where `sources` is given.

    Raises UserError for run files of other commands.
    """
    found = findings(runs)
    devices = list(dict.fromkeys(run.environment.device.name for run in runs))
    if len(devices) > 1:  # searches of one backend stand together
        passes = [*PASSES]
        found.sort(key=lambda of: (passes.index(of.case.direction), case_names.backend_rank(of.backend)))
    plots = tuple(plot for of in found if (plot := _plot(of, several=len(devices) > 1)))
    wrong = [of for of in found if of.limit == "wrong"]
    codes = {exit_code(run, allow_wrong) for run in runs}
    return Document(
        command="capacity",
        title=f"What fits: {', '.join(devices)}",
        answer=(*disturbed.doubt(runs), *_answers(found)),
        machines=tuple(Machine(name, "") for name in devices),
        blocks=tuple(_tables(found, sources)),
        reasons=tuple(_reasons(found)),
        cautions=(
            *(Caution(f"{_stopped(of)} is WRONG: {of.reason}", BEYOND) for of in wrong),
            *(Caution(f"{_who(of)}: {leak}") for of in found if (leak := _leak(of))),
        ),
        notes=((Span(NOTE, "quiet"),),),
        appendix=(Section("memory", "Memory over size", plots),) if plots else (),
        data=[*map(_data, found)],
        rows=[*map(_row, found)],
        exit_code=max(codes) if EXIT_WRONG_RESULT in codes or EXIT_DONE not in codes else EXIT_DONE,
    )


def plan_document(run: Run) -> Document:
    """Return the document of a dry run: where each search would start, or go on."""
    columns = (*map(Column, ("case", "pass", "backend", "forecast")), Column("memory", "right"))
    rows, data = [], []
    found = findings([run])
    assert run.search is not None
    jobs = {key_of(job, run.search.of): job for job in run.plan}  # a file may plan a search twice
    for of in found:
        job = jobs[of.backend, of.case]
        start = _size(of, size_of(job.case, of.search.of))
        where = start if not of.tried else "is done" if of.is_done else "goes on"
        where = f"refused: {job.skip}" if job.skip else where
        data.append({"backend": of.backend, "forecast": size_of(job.case, of.search.of), "skip": job.skip})
        rows.append((_case(of), PASSES[of.case.direction], of.backend, where, format_bytes(job.forecast.nbytes)))
    title = "Dry run: nothing was measured" + (f"; {_limits(found)}" if found else "")
    return Document(
        command="capacity",
        title="What would be searched",
        machines=(Machine(run.environment.device.name, ""),),
        blocks=(Table("plan", columns, tuple(rows), title=title),),
        data=data,
    )


def _answers(found: Sequence[Finding]) -> Iterator[str]:
    """Yield a sentence for each device, case, pass and limits: how many tokens fit, and with which backend."""
    calls: dict[tuple[Any, ...], set[float]] = {}  # the limits of a call in searches that are otherwise alike
    for of in found:
        calls.setdefault((of.run.environment.device.name, of.case, of.search.memory), set()).add(of.search.call_limit)
    in_order = [of for alike in _by_limits(found) for of in alike]
    groups = grouped(in_order, lambda of: (of.run.environment.device.name, of.case, replace(of.search, what="")))
    for (device, case, search), members in groups.items():
        what = members[0].search.what or _case(members[0])
        best = max(members, key=lambda of: of.largest or 0)
        within = _in_memory(best)
        if len(calls[device, case, search.memory]) > 1:
            within += f" at {_a_call(search)} a call"
        who = f"{what}, {PASSES[case.direction]}, {device}"
        if best.largest is None:
            nothing = "nothing fits" if all(of.is_done for of in members) else "not searched to the end"
            yield f"{who}: {nothing}{within}"
            continue
        also = [of.backend for of in members if of.largest == best.largest]
        least = "at least " if not best.is_done or best.limit == "not reached" else ""
        limit = f"more than {_a_call(search)} a call" if best.limit == "too slow" else best.limit
        stop = f" ({limit} stops the next)" if best.next else ""
        yield f"{who}: {least}{_size(best, best.largest)}{within} with {' and '.join(also)}{stop}"


def _by_limits(found: Sequence[Finding]) -> list[list[Finding]]:
    """Return the findings by what is searched and its limits, as sizes under unlike limits do not compare."""
    return [*grouped(found, lambda of: (of.search.of, of.search.memory, of.search.call_limit)).values()]


def _tables(found: Sequence[Finding], sources: Sources | None) -> Iterator[Table]:
    """Yield a table for each set of limits, then the tables that compare numbers of ranks."""
    several_devices = len({of.run.environment.device.name for of in found}) > 1
    groups = [(f"-{i}" if i > 1 else "", alike) for i, alike in enumerate(_by_limits(found), start=1)]
    for number, alike in groups:
        table = _table(f"capacity{number}", alike, several_devices)
        yield with_sources(table, [[of.run] for of in alike], sources)
    for number, alike in groups:
        yield from _over_ranks(f"ranks{number}", alike, several_devices, sources)


def _table(name: str, found: Sequence[Finding], several_devices: bool) -> Table:
    headings = ("device", "case", "pass", "backend", "ranks")
    by_ranks = len({of.case.ranks for of in found}) > 1  # several have a column, a single one is in the case
    named = [
        (
            of.run.environment.device.name,
            _case(_on_one(of) if by_ranks else of),
            PASSES[of.case.direction],
            of.backend,
            str(of.case.ranks),
        )
        for of in found
    ]
    told = _told(headings, named)
    columns = (
        *(Column(headings[i], "right" if headings[i] == "ranks" else "left", wrap=False) for i in told),
        *(Column(name, "right", wrap=False) for name in ("fits", "next", "memory", "per token")),
        Column("stopped by"),
        Column("growth"),
        *(Column(name, "right", wrap=False) for name in ("forecast", "one call")),
    )
    rows = tuple((*(name[i] for i in told), *_figures(of)) for name, of in zip(named, found, strict=True))
    note = "Forecast: the error of the forecast of memory at the size that fits, without copies of the inputs."
    if any(of.search.of == "seqlen" for of in found):
        note = f"Fits, next: tokens of a sequence. {note}"
    in_title = ("case", "pass", *(("device",) if several_devices else ()))
    alike = [named[0][i] for i, heading in enumerate(headings) if heading in in_title and i not in told]
    return Table(name, columns, rows, title=", ".join((*alike, _limits(found))), note=note, labels=len(told))


def _told(headings: Sequence[str], named: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the columns of names that a table shows: the backend, and those in which rows differ."""
    return [i for i, name in enumerate(headings) if name == "backend" or len({row[i] for row in named}) > 1]


def _on_one(of: Finding) -> Finding:
    return replace(of, case=replace(of.case, ranks=1))


def _figures(of: Finding) -> tuple[Entry, ...]:
    return (
        Span(_short(of, of.largest), "strong") if of.largest else Span("nothing", "warning"),
        _short(of, of.next) if of.next else "",
        format_bytes(of.nbytes) if of.nbytes else "",
        format_bytes(round(of.nbytes / tokens(of))) if of.nbytes else "",
        Span(of.limit if of.is_done else f"{of.limit}, unfinished", STYLES.get(of.limit, "")),
        of.growth.name if of.growth else "",
        f"{of.forecast_error:+.0%}" if of.forecast_error is not None else "",
        format_seconds(of.call) if of.call is not None else "",
    )


def _over_ranks(name: str, found: Sequence[Finding], several_devices: bool, sources: Sources | None) -> Iterator[Table]:
    """Yield a table of the largest size by number of ranks; none where every search has one number only."""
    methods: dict[tuple[Any, ...], dict[int, Finding]] = {}
    for of in found:
        named = (of.run.environment.device.name, _case(_on_one(of)), PASSES[of.case.direction], of.backend)
        methods.setdefault((*named, of.search), {})[of.case.ranks] = of
    several = {named: members for named, members in methods.items() if len(members) > 1}
    if not several:
        return
    ranks = sorted({n for members in several.values() for n in members})
    headings = ("device", "case", "pass", "backend")
    told = _told(headings, [*several])
    names = (Column(headings[i], wrap=headings[i] != "backend") for i in told)
    columns = (*names, *(Column(count(n, "rank"), "right") for n in ranks))
    rows = [
        (*(named[i] for i in told), *(_of_fewest(members.get(n), members[min(members)]) for n in ranks))
        for named, members in several.items()
    ]
    note = "The largest size that fits. Factors are over the fewest ranks, where memory is the limit of both."
    device = [next(iter(several))[0]] if several_devices and 0 not in told else []
    title = ", ".join(("Over several devices", *device, _limits(found)))
    table = Table(name, columns, tuple(rows), title=title, note=note)
    yield with_sources(table, [[of.run for of in members.values()] for members in several.values()], sources)


def _limits(found: Sequence[Finding]) -> str:
    """Return the limits that searches share, for a title: "2 GiB of each device, 10s a call at most"."""
    search = found[0].search
    each = " of each device" if any(of.case.ranks > 1 for of in found) else ""
    memory = f"{_memory(search.memory)}{each}" if search.memory else "all memory"
    return f"{memory}, {_a_call(search)} a call at most"


def _in_memory(of: Finding) -> str:
    """Return the limit of memory behind a size: " in 2 GiB", " in 2 GiB of each device"; "" without one."""
    if not of.search.memory:
        return ""
    return f" in {_memory(of.search.memory)}{' of each device' if of.case.ranks > 1 else ''}"


def _memory(nbytes: int) -> str:
    """Return the bytes of --memory, which are whole MiB: "2 GiB", "512 MiB"."""
    return f"{nbytes // 2**20} MiB" if nbytes % 2**30 else f"{nbytes // 2**30} GiB"


def _a_call(search: Search) -> str:
    """Return the longest call that a search takes: "3s", "2m00s"."""
    return f"{search.call_limit:g}s" if search.call_limit < 60 else format_duration(search.call_limit)


def _of_fewest(of: Finding | None, fewest: Finding) -> Entry:
    """Return the largest size on some ranks and its factor over the fewest ranks, or its limit: "36k tokens, 1.90x"."""
    if of is None or of.largest is None:
        return Span("nothing", "warning") if of else ""
    size = _size(of, of.largest)
    if not of.is_done:
        return Span(f"at least {size}", "strong")
    if of.limit != "memory":
        return f"{size}, {of.limit}"
    if of is not fewest and fewest.largest and fewest.is_done and fewest.limit == "memory":
        size += f", {of.largest / fewest.largest:.2f}x"
    return Span(size, "strong")


def tokens(of: Finding) -> int:
    """Return the number of keys in a batch at the largest size; decoding has one query, so queries are not counted."""
    shape, largest = of.case.shape, of.largest or 0
    return largest * (shape.seqlen_k if of.search.of == "batch" else shape.batch)


def _size(of: Finding, size: int | None) -> str:
    if size is None:
        return "nothing"
    return _short(of, size) if of.search.of == "batch" else f"{_tokens(size)} tokens"


def _short(of: Finding, size: int) -> str:
    return f"batch {size}" if of.search.of == "batch" else _tokens(size)


def _tokens(size: int) -> str:
    return format_size(size) if size % 1024 == 0 or size < 10_000 else f"{size / 1024:.1f}k"


def _case(of: Finding) -> str:
    """Return a case without the size that is searched: "bf16 d128 causal, heads 32/8"."""
    case = of.case
    words = [case.dtype, f"d{case_names.headdim(case)}", case_names.mask(case), *case_names.extras(case)]
    words += [f"{format_size(case.shape.seqlen_k)} tokens"] if of.search.of == "batch" else []
    batch = f", batch {case.shape.batch}" if of.search.of == "seqlen" and case.shape.batch > 1 else ""
    return f"{' '.join(words)}, heads {case_names.heads(case)}{batch}"


def _who(of: Finding) -> str:
    return f"{of.backend} {_case(of)} {PASSES[of.case.direction]}"


def _reasons(found: Sequence[Finding]) -> Iterator[Reason]:
    """Yield the reason why each search stopped; searches with equal reasons share a line."""
    stopped = [of for of in found if of.reason and of.limit != "wrong"]
    for (limit, reason), alike in grouped(stopped, lambda of: (of.limit, of.reason)).items():
        yield Reason(limit, some(map(_stopped, alike)), reason)


def _stopped(of: Finding) -> str:
    """Return which search it is, and the size that stopped it."""
    at = f" at {_size(of, of.next)}" if of.next and of.limit != "refused" else ""
    return f"{_who(of)}{at}{_in_memory(of)}"


def _leak(of: Finding) -> str:
    """Return the note on memory that calls leave allocated, at the largest size that has one; "" for none."""
    notes = [note for _, record in of.tried for note in record.notes]
    return next((note for note in reversed(notes) if note.startswith(LEAVES)), "")


def _plot(of: Finding, *, several: bool) -> Plot | None:
    """Return memory over size, both by logarithm; None for fewer than two sizes. `several`: there are other devices."""
    points = [(size, nbytes) for size, record in of.tried if record.status == "ok" and (nbytes := memory(record))]
    if len(points) < 2:
        return None
    (left, right), ys = (points[0][0], points[-1][0]), [nbytes for _, nbytes in points]
    low, high = min(ys), max(ys)

    def place(value: float, start: float, end: float) -> float:
        return math.log(value / start) / math.log(end / start) if end > start else 0.5

    measured = [
        Dot(place(size, left, right), place(nbytes, low, high), tip=f"{_size(of, size)}: {format_bytes(nbytes)}")
        for size, nbytes in points
    ]
    fit: list[Dot] = []
    if of.growth:
        for step in range(33):
            size = left * (right / left) ** (step / 32)
            if low <= of.growth.at(size) <= high:
                at = place(of.growth.at(size), low, high)
                fit.append(Dot(step / 32, at, group=1, tip=f"fit, {of.growth.name}"))
    x_labels = ((0.0, _size(of, left)), (1.0, _size(of, right)))
    y_labels = ((0.0, format_bytes(low)), (1.0, format_bytes(high)))
    where = f" on {of.run.environment.device.name}" if several else ""
    return Plot(f"{_who(of)}{_in_memory(of)}{where}", (*fit, *measured), (), x_labels, y_labels)


def _row(of: Finding) -> Mapping[str, Any]:
    """Return a row of CSV. The case is that of the largest size that fits, else of the smallest that does not."""
    size = of.largest or of.next
    return {
        "device": of.run.environment.device.name,
        "backend": of.backend,
        "version": of.run.versions.get(of.backend),
        "of": of.search.of,
        "memory_limit": of.search.memory,
        "call_limit": of.search.call_limit,
        "fits": of.largest,
        "next": of.next,
        "limit": of.limit,
        "done": of.is_done,
        "reason": of.reason or None,
        "bytes": of.nbytes,
        "seconds": of.call,
        "growth": of.growth.name if of.growth else None,
        "forecast_error": of.forecast_error,
        **case_columns(at_size(of.case, of.search.of, size) if size else of.case),
    }


def _data(of: Finding) -> Mapping[str, Any]:
    growth = of.growth and {"a": of.growth.a, "b": of.growth.b, "c": of.growth.c, "name": of.growth.name}
    steps = [
        {"size": size, "status": record.status, "reason": record.reason, "bytes": memory(record)}
        for size, record in of.tried
    ]
    return {**_row(of), "growth": growth, "steps": steps}
