"""The tables of a site: the fastest backend in each case, pairs of machines, and lists of run files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attnbench.analysis.compare.answer import ratio_text
from attnbench.analysis.compare.figures import Figures
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.analysis.site.findings import Findings, Pair, RunFile, Standing, rate
from attnbench.analysis.site.work import WORKS, Work, work_of
from attnbench.core.case import Case
from attnbench.core.formats import digits, duration, percent, share
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.render.document import Bar, Column, Entry, Span, Table
from attnbench.results import case_names
from attnbench.results.case_names import NOTHING
from attnbench.results.cells import Cell, Key

MOST_SOURCES = 2  # run files of a figure that are shown; the rest is folded
LEAST_AXIS = 0.02  # least reach of the axis to both sides of 1x
UNLIKE = "†"  # beside a ratio of two GPUs, each with its own backend
MOST_NAMED = 3  # backends in a sentence
NOT_KNOWN = "not known"


def work_address(work: Work) -> str:
    return f"work-{work.name}.html"


def link(text: str, address: str) -> Span:
    return Span(text, link=address)


def joined(spans: Iterable[Sequence[Span]], by: str = ", ") -> tuple[Span, ...]:
    """Return the spans joined, with the text `by` between them."""
    found: list[Span] = []
    for one in spans:
        found += [Span(by), *one] if found else one
    return tuple(found)


def share_of_limit(machine: Machine, key: Key) -> str:
    """Return the share of the datasheet's limit, such as "71%"; "-" if it is not known."""
    found = _part(machine, key)
    return share(found) if found else NOTHING


def _part(machine: Machine, key: Key) -> float | None:
    limit, bandwidth = machine.limit(key), machine.cells[key].rates.bandwidth
    if limit == "memory":
        return (machine.gbps(key) or 0.0) * 1e9 / bandwidth if bandwidth else None
    return machine.utilization(key) if limit == "compute" else None


def sources(site: Findings, machine: Machine, key: Key) -> tuple[Span, ...] | str:
    """Return links to the pages of the run files behind a figure."""
    return _links(site.sources(machine.cells[key]))


def file_links(site: Findings, cells: Iterable[Cell], shown: int = MOST_SOURCES) -> tuple[Span, ...] | str:
    """Return links to the pages of the run files behind some cells; links after the first `shown` are folded."""
    found = {file.address: file for cell in cells for file in site.sources(cell)}
    return _links(sorted(found.values(), key=lambda file: file.run.started, reverse=True), shown)


def run_links(site: Findings, runs: Iterable[Run]) -> tuple[Span, ...] | str:
    """Return links to the pages of the run files of some runs, as `sources` does."""
    return _links(site.files_of(runs))


def _links(found: Sequence[RunFile], shown: int = MOST_SOURCES) -> tuple[Span, ...] | str:
    links, more = (joined([link(_day(file), file.address)] for file in of) for of in (found[:shown], found[shown:]))
    told = f"and {len(found) - shown} more" if links else count(len(found), "file")
    return (*links, Span(told, folded=more)) if more else links or NOTHING


def _day(file: RunFile) -> str:
    return file.run.started[:10] or file.name


def figure(machine: Machine, key: Key) -> str:
    """Return a cell's rate with its unit, or its time without a rate, with a mark if the clock was held down."""
    found, unit = rate(machine, key), "GB/s" if machine.limit(key) == "memory" else "TFLOP/s"
    held = "~" if machine.cells[key].held_down else ""
    return f"{digits(found)} {unit}{held}" if found else f"{duration(machine.latency(key))}{held}"


def interval(machine: Machine, key: Key) -> str:
    half = machine.cells[key].half_interval("latency")
    return percent(half) if half is not None else "?"


def gpu_link(site: Findings, machine: Machine, work: Work) -> tuple[Span, ...]:
    """Return the short name of a machine with a link to its figures of a kind of work."""
    return (link(site.short(machine.label), f"{site.gpu_address(machine.label)}#table-{work.name}"),)


def gpu_bar(site: Findings, machine: Machine, part: float, text: str) -> Bar:
    """Return a bar in a machine's colour; `part` is its speed over the fastest machine's in the row."""
    place = next(i for i, of in enumerate(site.machines) if of.label == machine.label)
    return Bar(0.0, part, place, label=f"{machine.label}: {text}, {percent(part)} of the best")


def device_bar(site: Findings, run: Run, part: float, text: str) -> Bar:
    """Return the bar for the device of a run, in the colour of its machine."""
    label = site.label(run)
    place = next((i for i, of in enumerate(site.machines) if of.label == label), len(site.machines))
    return Bar(0.0, part, place, label=f"{text} on {label}, {percent(part)} of the best")


def standing_entry(site: Findings, standing: Standing) -> Entry:
    """Return the fastest backend of a case with a link, and the backends that tie with it."""
    if standing.fastest is None:
        return Span(NOT_KNOWN, "quiet")
    named = [standing.fastest, *standing.alike]
    return joined(([link(backend, site.backend_address(backend))] for _, backend in named), " = ")


def fastest_table(site: Findings, machine: Machine, work: Work) -> Table:
    """Return a table of the fastest backend in each case of a kind of work on a machine."""
    rows: list[tuple[Entry, ...]] = []
    alone = 0
    for standing in site.of_work(machine, work):
        if len(standing.measured) < 2:
            alone += 1
            continue
        best = standing.fastest or standing.measured[0]
        then = next((key for key in standing.measured if key not in (best, *standing.alike)), None)
        apart = machine.latency(then) / machine.latency(best) - 1 if then else 0.0
        rows.append(
            (
                site.names[standing.case],
                standing_entry(site, standing),
                figure(machine, best) if standing.fastest else NOTHING,
                f"±{interval(machine, best)}" if standing.fastest else NOTHING,
                share_of_limit(machine, best) if standing.fastest else NOTHING,
                _part_bar(site, machine, best) or "",
                f"{then[1]}, {percent(apart)} slower" if then and standing.fastest else NOTHING,
                str(site.cards(machine, [best])),
                sources(site, machine, best),
            )
        )
    columns = (
        Column("case"),
        Column("fastest"),
        Column("speed", "right", wrap=False),
        Column("±", "right", optional=1),
        Column("of limit", "right", optional=1),
        Column("0 to 100%", optional=2),
        Column("next", optional=2),
        Column("cards", "right", optional=2),
        Column("run files", optional=1),
    )
    note = (
        f"{work.title}: {work.what}. Medians in bursts; ± is half the 95 % interval of the latency. Backends joined by "
        "= are alike within the uncertainty. ~: the clock was held down."
    )
    if alone:
        note += f" {count(alone, 'case')} with one backend alone: on its page."
    return Table(work.name, columns, tuple(rows), f"{work.title}, {count(len(rows), 'case')}", note)


def _part_bar(site: Findings, machine: Machine, key: Key) -> Bar | None:
    part = _part(machine, key)
    label = f"{key[1]}: {figure(machine, key)}, {share(part)} of what the datasheet allows" if part else ""
    return Bar(0.0, min(1.0, part), site.machines.index(machine), label=label) if part else None


def wins(standings: Sequence[Standing]) -> Counter[str]:
    """Return the number of cases in which each backend is fastest or ties, among cases with several backends."""
    found = Counter[str]()
    for standing in standings:
        if standing.fastest and len(standing.measured) > 1:
            found.update(backend for _, backend in (standing.fastest, *standing.alike))
    return found


def often(site: Findings, machine: Machine, work: Work) -> str:
    """Return the most often fastest backends: "fa3 in 42 of 134 cases, triton in 23"; "" without several in a case."""
    standings = site.of_work(machine, work)
    several = sum(1 for one in standings if one.fastest and len(one.measured) > 1)
    named = [f"{name} in {number}" for name, number in wins(standings).most_common(MOST_NAMED)]
    return ", ".join([f"{named[0]} of {count(several, 'case')}", *named[1:]]) if named else ""


def summary(site: Findings) -> Table:
    """Return a table of the most often fastest backend and the highest rate, by machine and kind of work."""
    rows: list[tuple[Entry, ...]] = []
    for machine in site.machines:
        for i, work in enumerate(site.works(machine)):
            standings = site.of_work(machine, work)
            contests = [one for one in standings if one.fastest and len(one.measured) > 1]
            known = [one.fastest for one in standings if one.fastest]
            usual = Counter(machine.limit(key) for key in known).most_common(1)
            rates = {key: rate(machine, key) or 0.0 for key in known if machine.limit(key) == usual[0][0]}
            best = max(rates, key=lambda key: rates[key], default=None)
            keys = [key for one in standings for key in one.measured]
            files = [file for key in known for file in site.sources(machine.cells[key])]
            newest = max((file.run.started[:10] for file in files), default=NOTHING)
            rows.append(
                (
                    "" if i else (link(site.short(machine.label), site.gpu_address(machine.label)),),
                    (link(work.title, f"{site.gpu_address(machine.label)}#table-{work.name}"),),
                    joined(
                        [link(name, site.backend_address(name)), Span(f" {number}")]
                        for name, number in wins(standings).most_common(2)
                    )
                    or NOTHING,
                    str(len(contests)),
                    _reached(site, machine, best) if best else NOTHING,
                    f"{best[1]}, {best[0].dtype}" if best else "",
                    str(site.cards(machine, keys)),
                    newest,
                )
            )
    columns = (
        Column("GPU"),
        Column("work", wrap=False),
        Column("fastest most often"),
        Column("cases", "right", optional=1),
        Column("most reached", "right", wrap=False),
        Column("with", optional=2),
        Column("cards", "right", optional=1),
        Column("newest", optional=1, wrap=False),
    )
    note = "Number of the cases with several backends; all backends that are alike within the uncertainty count."
    return Table("fastest", columns, tuple(rows), "What is fastest where", note)


def _reached(site: Findings, machine: Machine, best: Key) -> tuple[Span, ...]:
    found = site.sources(machine.cells[best])
    of_limit = share_of_limit(machine, best)
    told = figure(machine, best) + (f" ({of_limit})" if of_limit != NOTHING else "")
    return (link(told, found[0].address) if found else Span(told),)


def axis_of(ratios: Iterable[Ratio]) -> tuple[float, float]:
    """Return both ends of an axis that includes 1x and all ratios with their intervals."""
    ends = [end for ratio in ratios for end in (ratio.low, ratio.high, ratio.value) if end is not None]
    return min([1 - LEAST_AXIS, *ends]), max([1 + LEAST_AXIS, *ends])


def ratio_bar(ratio: Ratio, low: float, high: float, label: str, group: int = 0) -> Bar:
    """Return the bar from 1x to a ratio, with its interval, on an axis from `low` to `high`."""

    def at(value: float) -> float:
        return (value - low) / (high - low)

    first, last = sorted((1.0, ratio.value))
    known = (at(ratio.low), at(ratio.high)) if ratio.low is not None and ratio.high is not None else None
    return Bar(at(first), at(last), group, known, label=label)


def pair_chart(site: Findings, pair: Pair, *, with_files: bool = False) -> Table:
    """Return the speed ratio of a pair as a bar with its interval, for each kind of work.

    `with_files` adds the run files behind each ratio.
    """
    other, home = pair.labels
    c = pair.comparison
    bursts = [figures for figures in c.figures if not figures.sustained]
    ways = [
        (name, next((figures for figures in bursts if figures.shared == shared), None))
        for name, shared in (("same backend", True), ("own fastest", False))
    ]
    found: list[tuple[Work, str, Figures]] = []
    for work in WORKS.values():
        for name, figures in ways:
            if figures and (cases := [case for case in figures.cases if work_of(case) == work]):
                found.append((work, name, figures.of(cases)))
    ratios = [figures.ratio(other) for _, _, figures in found]
    low, high = axis_of([ratio for ratio in ratios if ratio])
    rows: list[tuple[Entry, ...]] = []
    for (work, name, figures), ratio in zip(found, ratios, strict=True):
        if ratio is None:
            continue
        text = f"{work.title}, {name}: {other} is {ratio_text(ratio)} as fast as {home}"
        bar = ratio_bar(ratio, low, high, text, 0 if name == "same backend" else 3)
        rows.append(
            (
                (link(work.title, work_address(work)),),
                name,
                ratio_text(ratio),
                bar,
                str(len(figures.cases)),
                *([file_links(site, _cells(figures), 0)] if with_files else []),
            )
        )
    columns = (
        Column("work"),
        Column("with"),
        Column(f"speed / {home}"),
        Column(f"{low:.2f}x to {high:.2f}x"),
        Column("cases", "right", optional=1),
        *([Column("run files", optional=1)] if with_files else []),
    )
    note = (
        f"Bars begin at 1x, as fast as {home}; to the left is slower. Thin lines: 95 % interval, cards included. "
        "Geometric means in bursts."
    )
    return Table(f"speed-{site.pair(pair)}", columns, tuple(rows), f"{other} against {home}, by kind of work", note)


def _cells(figures: Figures) -> Iterator[Cell]:
    """Yield the cells behind a total of all machines."""
    return (figures.machines[label].cells[key] for label, of in figures.chosen.items() for key in of.values())


def cases_table(site: Findings, work: Work, machines: Sequence[Machine]) -> Table:
    """Return the fastest backend of each case of a kind of work on each machine, as bars with one axis per case."""
    compared = {frozenset(pair.labels): pair for pair in site.pairs}
    rows: list[tuple[Entry, ...]] = []
    alone = 0
    cases = dict.fromkeys(case for m in machines for case in site.standings[m.label] if work_of(case) == work)
    for case in cases:
        own = [(m, standing) for m in machines if (standing := site.standings[m.label].get(case))]
        if len(own) == 1 and len(own[0][1].measured) == 1:
            alone += 1
            continue
        known = [(m, one.fastest) for m, one in own if one.fastest]
        least = min((m.latency(key) for m, key in known), default=0.0)
        for i, (machine, standing) in enumerate(own):
            best, first = standing.fastest, known[0][0] if known else None
            ratio = ""
            if best and first and first is not machine:
                pair = compared.get(frozenset((first.label, machine.label)))
                ratio = _ratio(pair, machine, first, case) if pair else ""
                if ratio and best[1] != known[0][1][1]:
                    ratio = f"{ratio} {UNLIKE}"
            bar: Entry = ""
            if best and len(known) > 1:
                bar = gpu_bar(site, machine, least / machine.latency(best), f"{figure(machine, best)} with {best[1]}")
            rows.append(
                (
                    "" if i else site.names[case],
                    gpu_link(site, machine, work),
                    standing_entry(site, standing),
                    figure(machine, best) if best else NOTHING,
                    bar,
                    ratio,
                    sources(site, machine, best) if best else NOTHING,
                )
            )
    columns = (
        Column("case"),
        Column("GPU", wrap=False),
        Column("fastest"),
        Column("rate", "right", wrap=False),
        Column("of the best GPU", optional=2),
        Column("speed", "right", wrap=False, optional=1),
        Column("run files", optional=1),
    )
    note = "Each GPU with its own fastest backend, in bursts. Speed: over the first GPU of the case; "
    note += f"{UNLIKE}: with unlike backends, so that the ratio is not of the GPUs alone."
    if alone:
        note += f" {count(alone, 'case')} with one backend on one GPU alone: on its page."
    return Table(work.name, columns, tuple(rows), f"{work.title} by case", note)


def _ratio(pair: Pair, machine: Machine, first: Machine, case: Case) -> str:
    """Return the ratio of a machine to another in one case, if `compare` has one in this order."""
    c = pair.comparison
    ours = next((m for m in c.machines if m.label == machine.label), None)
    if ours is None or c.reference.label != first.label or any(case not in m.fastest for m in c.machines):
        return ""
    return ratio_text(c.fastest_ratio(ours, [case]))


def backend_table(site: Findings, backend: str, work: Work, machines: Sequence[Machine]) -> Table:
    """Return a backend's figures in a kind of work and the fastest of each case; machines are bars by case."""
    rows: list[tuple[Entry, ...]] = []
    exact = all(machine.cells[key].is_exact for machine in machines for key in _keys(machine, backend, work))
    cases = dict.fromkeys(key[0] for machine in machines for key in _keys(machine, backend, work))
    for case in sorted(cases, key=case_names.case_rank):
        key = case, backend
        own = [machine for machine in machines if key in machine.log_rounds]
        most = min(machine.latency(key) for machine in own)
        for i, machine in enumerate(own):
            standing = site.standings[machine.label].get(case) if machine.label in site.standings else None
            text = figure(machine, key)
            part = most / machine.latency(key)
            rows.append(
                (
                    "" if i else site.names.get(case) or case_names.full_name("", case).strip(),
                    gpu_link(site, machine, work),
                    text,
                    gpu_bar(site, machine, part, text) if len(own) > 1 else "",
                    f"±{interval(machine, key)}",
                    share_of_limit(machine, key) if exact else NOTHING,
                    _beside_the_fastest(machine, key, standing),
                    sources(site, machine, key),
                )
            )
    columns = (
        Column("case"),
        Column("GPU", wrap=False),
        Column("rate" if exact else "latency", "right", wrap=False),
        Column("of the best GPU", optional=2),
        Column("±", "right", optional=1),
        Column("of limit", "right", optional=1),
        Column("of the fastest", "right"),
        Column("run files", optional=1),
    )
    note = "Of the fastest: the speed over the speed of the fastest backend of the case; =: alike with it. In bursts."
    note += "" if exact else " An approximation computes something else, so it has no rate."
    return Table(work.name, columns, tuple(rows), f"{work.title}, {count(len(cases), 'case')}", note)


def _keys(machine: Machine, backend: str, work: Work) -> list[Key]:
    return [key for key in machine.log_rounds if key[1] == backend and work_of(key[0]) == work]


def _beside_the_fastest(machine: Machine, key: Key, standing: Standing | None) -> str:
    """Return a cell's speed over the fastest backend's in its case, or a text that it is the fastest or ties."""
    best = standing and standing.fastest
    if not standing or not best:
        return NOTHING
    if key in (best, *standing.alike):
        return "=" if standing.alike else "fastest"
    return percent(machine.latency(best) / machine.latency(key))


def files_table(files: Sequence[RunFile], title: str = "Run files") -> Table:
    """Return a table of the run files with links to their pages, the newest first."""
    rows = tuple(
        (
            (link(file.run.started[:16].replace("T", " ") or file.name, file.address),),
            file.run.environment.device.name,
            file.run.suite,
            str(sum(record.status == "ok" for record in file.run.records)),
            str(file.path),
        )
        for file in sorted(files, key=lambda file: file.run.started, reverse=True)
    )
    columns = (
        Column("started", wrap=False),
        Column("device"),
        Column("suite", optional=1),
        Column("measured", "right", optional=1),
        Column("file"),
    )
    return Table("run-files", columns, rows, title)
