"""The pages of a site, each an address and a Document; some are the documents of other commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from attnbench.analysis.compare.answer import ratio_text
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.site.findings import Findings, Pair, RunFile
from attnbench.analysis.site.published import published_table
from attnbench.analysis.site.tables import (
    backend_table,
    cases_table,
    fastest_table,
    files_table,
    joined,
    link,
    often,
    pair_chart,
    run_links,
    summary,
    wins,
    work_address,
)
from attnbench.analysis.site.work import WORKS, Work, work_of
from attnbench.core.errors import EXIT_DONE, UserError
from attnbench.core.text import count, listed
from attnbench.render.document import Block, Column, Document, Entry, Paragraphs, Section, Span, Table
from attnbench.results.case_names import NOTHING
from attnbench.results.cells import cells as cells_of
from attnbench.run.run_command import run_command

INDEX = "index.html"
RUNS = "runs.html"
BACKENDS = "backends.html"
MOST_PAIRS = 2  # with charts on the index
ReportOf = Callable[[RunFile], Document]


@dataclass(frozen=True)
class Page:
    """A page of a site: its address in the site's folder, its name in the links of all pages, and its document.

    `make` returns the document; a page without a name is linked only from the text of other pages.
    """

    address: str
    name: str
    make: Callable[[], Document]


def pages(site: Findings, given: Sequence[str], report_of: ReportOf) -> list[Page]:
    """Return the pages of a site, the index first. `given`: the words for the run files in a command.

    `report_of` returns the report of a run file, as `attnbench report` shows it.
    """
    found = [
        *(Page(site.gpu_address(of.label), of.label, partial(_gpu, site, of, given)) for of in site.machines),
        *(Page(site.pair_address(pair), pair.title, partial(_pair, site, pair, given)) for pair in site.pairs),
        *(
            Page(work_address(work), work.title, partial(_work, site, work, given))
            for work in WORKS.values()
            if any(site.of_work(machine, work) for machine in site.machines)
        ),
        *_subjects(site, given),
        *([Page(BACKENDS, "Backends", partial(_backends, site))] if site.backends else []),
        Page(RUNS, "Run files", partial(_runs, site)),
        *(
            Page(site.backend_address(name), "", partial(_backend, site, name, given))
            for name in (*site.backends, *site.own_code)
        ),
        *(Page(file.address, "", partial(_run, file, report_of)) for file in site.files),
    ]
    return [Page(INDEX, "Overview", partial(_index, site, given)), *found]


def _command(*words: str) -> tuple[Section, ...]:
    """Return the section with the command that gives the same figures."""
    return (Section("command", "The same figures by command", code=f"attnbench {shlex.join(words)}"),)


# ---- The index.


def _index(site: Findings, given: Sequence[str]) -> Document:
    measured = sum(len(machine.log_rounds) for machine in site.machines)
    cards = len({card for machine in site.machines for card in machine.cards})
    days = sorted(file.run.started[:10] for file in site.files if file.run.started)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    models = listed(machine.label for machine in site.machines)
    which = f" ({models})" if models else ""
    files, of_cards = count(len(site.files), "run file"), count(cards, "card")
    of_all = f"From {files} of {of_cards}{which}{when}: {count(measured, 'figure')}."
    return Document(
        command="site",
        title="Attention kernels, measured",
        answer=tuple(map(_said, site.pairs[:MOST_PAIRS])) or (of_all,),
        blocks=(
            *([summary(site)] if site.machines else []),
            *(pair_chart(site, pair) for pair in site.pairs[:MOST_PAIRS]),
            *published_table(site),
        ),
        notes=tuple((Span(note, "quiet"),) for note in (of_all, *_not_compared(site)) if site.pairs),
        appendix=_command("site", *given, "--out", "site"),
    )


def _not_compared(site: Findings) -> Iterator[str]:
    """Yield a sentence on the pairs of machines without a page, with the command that compares them."""
    if site.not_compared:
        pairs = count(site.not_compared, "more pair")
        yield f"{pairs} of machines with fewer cases in common: attnbench compare FILE FILE compares two."


def _said(pair: Pair) -> str:
    """Return the speed ratios of a machine to the reference for each kind of work, in one sentence."""
    other, home = pair.labels
    figures = next((f for f in pair.comparison.figures if not f.sustained and f.shared), None)
    each = []
    for work in WORKS.values():
        cases = [case for case in figures.cases if work_of(case) == work] if figures else []
        if figures and cases and (ratio := figures.of(cases).ratio(other)):
            each.append(f"{work.title[0].lower()}{work.title[1:]} {ratio_text(ratio)}")
    return f"{other} over {home}, same backends: {', '.join(each)}." if each else f"{pair.title}: no backend in common."


# ---- By GPU, by work, by backend, by pair.


def _gpu(site: Findings, machine: Machine, given: Sequence[str]) -> Document:
    said = [
        f"{work.title}, fastest or alike: {told}."
        for work in site.works(machine)
        if (told := often(site, machine, work))
    ]
    environment = machine.environment
    limit = f", power limit {environment.power_limit_w:g} W" if environment.power_limit_w else ""
    cards, files = count(len(machine.cards), "card"), count(len(machine.files), "run file")
    about = f"{environment.device.name}{limit}: {cards}, {files}."
    return Document(
        command="site",
        title=machine.label,
        answer=(*said, about),
        blocks=(
            *(fastest_table(site, machine, work) for work in site.works(machine)),
            files_table([file for file in site.files if file.path in {one.path for one in machine.files}]),
        ),
        appendix=_by_command(site, given),
    )


def _by_command(site: Findings, given: Sequence[str]) -> tuple[Section, ...]:
    """Return the command that gives the figures of all machines as a table for programs."""
    return _command("compare" if site.pairs else "report", *given, "-f", "csv")


def _work(site: Findings, work: Work, given: Sequence[str]) -> Document:
    own = [machine for machine in site.machines if site.of_work(machine, work)]
    told = ((machine.label, often(site, machine, work)) for machine in own)
    said = [f"{label}, fastest or alike: {text or 'no case has several backends'}." for label, text in told]
    return Document(
        command="site",
        title=f"{work.title}: {work.what}",
        answer=tuple(said),
        blocks=(cases_table(site, work, own), *(_over_gpus(site) if work.name == "several-gpus" else ())),
        appendix=_by_command(site, given),
    )


def _over_gpus(site: Findings) -> tuple[Block, ...]:
    """Return the gain from each further GPU for a sequence that is split over GPUs, by run, and the run files."""
    from attnbench.analysis.report import scaling

    files = [file for file in site.files if any(record.case.ranks > 1 for record in file.run.records)]
    found = [cell for cell in cells_of([file.run for file in files]) if work_of(cell.case) == WORKS["several-gpus"]]
    tables = (_by_model(block) for block in scaling.tables(found, partial(run_links, site)))
    hidden = ("latency", "weak", "exposed", "sent", "of the bus", "memory", "error")
    return (*(_narrow(block, hidden) for block in tables), files_table(files))


def _by_model(block: Block) -> Block:
    """Return a table with only the model in its column "machine"; the links lead to the runs."""
    if not isinstance(block, Table):
        return block
    place = next((i for i, column in enumerate(block.columns) if column.heading == "machine"), len(block.columns))
    rows = (
        tuple(
            entry.partition(" (")[0] if i == place and isinstance(entry, str) else entry for i, entry in enumerate(row)
        )
        for row in block.rows
    )
    return replace(block, rows=tuple(rows))


def _backends(site: Findings) -> Document:
    rows: list[tuple[Entry, ...]] = []
    counts = {m.label: [wins(site.of_work(m, work)) for work in site.works(m)] for m in site.machines}
    for name in site.backends:
        each = (
            f"{sum(of[name] for of in counts[m.label])} / {number}"
            if (number := sum(key[1] == name for key in m.log_rounds))
            else NOTHING
            for m in site.machines
        )
        rows.append(((link(name, site.backend_address(name)),), *each))
    columns = (Column("backend"), *(Column(machine.label, "right") for machine in site.machines))
    note = "Number of cases in which it is the fastest or ties with the fastest / in which it has a figure."
    return Document(
        command="site",
        title="Backends",
        answer=(f"{count(len(site.backends), 'backend')} with a figure.",),
        blocks=(Table("backends", columns, tuple(rows), "Backends", note), *_own_code(site)),
    )


def _own_code(site: Findings) -> Iterator[Block]:
    """Yield a paragraph with the names of own code, linked to its pages, if there is any."""
    if site.own_code:
        names = joined([link(name, site.backend_address(name))] for name in site.own_code)
        why = ". Named by file or module when it was measured, so no reader can take it: it is in no ranking."
        yield Paragraphs(((*names, Span(why)),), title="Own code")


def _backend(site: Findings, name: str, given: Sequence[str]) -> Document:
    own = [machine for machine in site.machines if any(backend == name for _, backend in machine.log_rounds)]
    said = []
    for machine in own:
        first = sum(wins(site.of_work(machine, work))[name] for work in WORKS.values())
        number = sum(key[1] == name for key in machine.log_rounds)
        version = machine.run.versions.get(name, "")
        told = f"the fastest, or alike with it, in {first} of " if name in site.backends else "own code, "
        said.append(f"{machine.label}: {told}{count(number, 'case')}" + (f"; {version}." if version else "."))
    works = (
        work for work in WORKS.values() if any(work_of(c) == work for m in own for c, b in m.log_rounds if b == name)
    )
    return Document(
        command="site",
        title=name,
        answer=tuple(said),
        blocks=tuple(backend_table(site, name, work, own) for work in works),
        appendix=(*_by_command(site, given), *(_profile(name, own) if name in site.backends else ())),
    )


def _profile(name: str, machines: Sequence[Machine]) -> tuple[Section, ...]:
    """Return the section with the command that profiles a backend in the case of its highest TFLOP/s; () without one.

    A profile has no run file, so no page has its figures.
    """
    found = {key[0]: machine.tflops(key) or 0.0 for machine in machines for key in machine.log_rounds if key[1] == name}
    cases = [case for case in found if case.ranks == 1 and not case.step]
    if not cases:
        return ()
    code = run_command([max(cases, key=found.__getitem__)]).replace("attnbench run", f"attnbench profile -b {name}", 1)
    return (Section("profile", "Where the time of its fastest case goes", code=code),)


def _pair(site: Findings, pair: Pair, given: Sequence[str]) -> Document:
    from attnbench.analysis.compare.document import document
    from attnbench.analysis.site.pair_tables import linked

    shown = document(pair.comparison, every=True)
    paths = {file.path for machine in pair.comparison.machines for file in machine.files}
    both = [file for file in site.files if file.path in paths]
    return replace(
        shown,
        title=pair.title,
        blocks=(
            pair_chart(site, pair, with_files=True),
            *linked(site, pair.comparison, shown.blocks),
            files_table(both),
        ),
        appendix=(*shown.appendix, *_command("compare", *given, "--to", pair.labels[1], "--all")),
    )


# ---- Questions of other commands.


def _subjects(site: Findings, given: Sequence[str]) -> Iterator[Page]:
    """Yield the pages of models, steps, capacity, claims and history, from the runs with such records."""
    from attnbench.analysis.site import whole_models

    if models := whole_models.models(site):
        yield Page("models.html", "Models", partial(whole_models.list_of_models, site, models))
    for model, files in models.items():
        yield Page(whole_models.model_address(model), "", partial(_model, site, model, files))
    steps = [file for file in site.files if any(record.case.step for record in file.run.records)]
    if steps:
        yield Page("steps.html", "Steps", partial(_steps, site, steps))
    searches = [file for file in site.files if file.run.search]
    if searches:
        yield Page("capacity.html", "Capacity", partial(_capacity, site, searches))
    if (claims := _claims(site, given)).exit_code == EXIT_DONE:  # some figure could be judged
        yield Page("claims.html", "Claims", lambda: claims)
    if len(site.files) > 1:
        yield Page("history.html", "Over time", partial(_history, site, given))


def _with_files(shown: Document, files: Sequence[RunFile], *command: str) -> Document:
    """Return a document with links to its run files, and the command that prints it."""
    words = command or (shown.command, *(str(file.path) for file in files))
    return replace(shown, blocks=(*shown.blocks, files_table(files)), appendix=(*shown.appendix, *_command(*words)))


def _model(site: Findings, name: str, files: Sequence[RunFile]) -> Document:
    from attnbench.analysis.site.whole_models import model_page

    paths = [str(file.path) for file in files]
    return _with_files(model_page(site, name, files), files, "report", *paths, "--model", name)


def _steps(site: Findings, files: Sequence[RunFile]) -> Document:
    from attnbench.analysis.site.whole_models import steps_page

    return _with_files(steps_page(site, files), files)


def _capacity(site: Findings, files: Sequence[RunFile]) -> Document:
    from attnbench.analysis.capacity.document import document

    shown = document([file.run for file in files], sources=partial(run_links, site))
    shown = _narrowed(shown, ("case", "next", "memory", "per token", "growth", "forecast", "one call"))
    return _with_files(replace(shown, title="What fits in memory", machines=()), files)


def _narrowed(shown: Document, hidden: Collection[str]) -> Document:
    """Return a document with tables that omit the `hidden` columns on a narrow screen, and may wrap the others."""
    return replace(shown, blocks=tuple(_narrow(block, hidden) for block in shown.blocks))


def _narrow(block: Block, hidden: Collection[str]) -> Block:
    if not isinstance(block, Table):
        return block
    columns = (
        replace(c, optional=c.optional or 1) if c.heading in hidden else replace(c, wrap=c.heading != "GPU")
        for c in block.columns
    )
    return replace(block, columns=tuple(columns))


def _claims(site: Findings, given: Sequence[str]) -> Document:
    from attnbench.analysis.claims import SUITE
    from attnbench.analysis.claims.claim_file import load
    from attnbench.analysis.claims.document import document

    shown = _narrowed(
        document(load(), [file.run for file in site.files], partial(run_links, site)),
        ("what", "printed", "without pauses"),
    )
    claimed = [file for file in site.files if file.run.suite == SUITE]
    return _with_files(
        replace(shown, title="Published figures, measured again", machines=()), claimed, "claims", *given
    )


def _history(site: Findings, given: Sequence[str]) -> Document:
    from attnbench.analysis.history.document import document
    from attnbench.analysis.site import over_time

    found = over_time.changes(site)
    versions = [over_time.table(site, found)] if found else []
    said = [over_time.sentence(found)] if found else []
    try:
        shown = document([file.run for file in site.files])
    except UserError as error:  # raised where a library that the history needs is missing
        shown = Document("history", "", (f"{error}.",))
    blocks = (*versions, *shown.blocks, *([over_time.cards(shown)] if shown.machines else []))
    shown = replace(shown, title="Over time", answer=(*said, *shown.answer), machines=(), blocks=blocks)
    return _with_files(shown, site.files, "history", *given)


# ---- Run files.


def _runs(site: Findings) -> Document:
    return Document(
        command="site",
        title="Run files",
        answer=(f"{count(len(site.files), 'run file')}, the newest first; each has a page with its report.",),
        blocks=(files_table(site.files),),
    )


def _run(file: RunFile, report_of: ReportOf) -> Document:
    shown = report_of(file)
    where = (
        Span("Run file: ", "quiet"),
        Span(str(file.path), link=file.source),
        Span(f", suite {file.run.suite}", "quiet"),
    )
    command = shlex.join(["attnbench", shown.command, str(file.path)])
    lines = (where, (Span("By command: ", "quiet"), Span(command)))
    return replace(shown, title=f"{shown.title}: {file.name}", lead=(Paragraphs(lines), *shown.lead))
