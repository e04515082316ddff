"""The pages of models: the attention of one step, layer by layer, and steps of a whole model, with GPUs as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from attnbench.analysis.models.findings import StepTime, step_times
from attnbench.analysis.models.step_document import contest_of_steps, document
from attnbench.analysis.site.findings import Findings, RunFile, word
from attnbench.analysis.site.tables import device_bar, link, run_links
from attnbench.analysis.step.document import HEADINGS, entries, name
from attnbench.analysis.step.document import document as steps_document
from attnbench.analysis.step.findings import FASTER, Timed, amdahl, timed_steps
from attnbench.core.formats import duration, percent, share, times
from attnbench.core.groups import grouped
from attnbench.core.models import MODELS
from attnbench.core.record import Run
from attnbench.core.text import count, listed
from attnbench.render.document import Column, Document, Entry, Grids, Span, Table
from attnbench.results import case_names
from attnbench.results.case_names import NOTHING
from attnbench.results.cells import cells as cells_of
from attnbench.results.cells import runs_of

GPU = Column("GPU", wrap=False)
RUN_FILES = Column("run files", optional=1)
BAR = Column("speed", optional=1)  # speed of a row over the fastest in its table


def models(site: Findings) -> dict[str, list[RunFile]]:
    """Return model -> the run files, from `run --model` or the suite of models, with a whole step of it."""
    files = [file for file in site.files if file.run.suite == "models" or _names_a_model(file.run.argv)]
    found = cells_of([file.run for file in files])
    own: dict[str, list[RunFile]] = {}
    for model in MODELS.values():
        runs = {id(cell.run) for time in step_times(found, model, 1) for _, cell in time.parts}
        if runs:
            own[model.name] = [file for file in files if id(file.run) in runs]
    return own


def _names_a_model(argv: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--model" for word in argv)


def model_address(name: str) -> str:
    return f"model-{word(name)}.html"


def list_of_models(site: Findings, found: Mapping[str, Sequence[RunFile]]) -> Document:
    """Return the time of each model's attention in one step on each GPU, with links to the models' pages."""
    rows: list[tuple[Entry, ...]] = []
    for model, files in found.items():
        first = True
        for what, own in _by_step(model, files).items():
            for on_device in grouped(own, lambda time: time.device).values():
                winners = contest_of_steps(on_device).winners
                best = min(winners or on_device, key=lambda time: time.seconds)
                rows.append(
                    (
                        (link(model, model_address(model)),) if first else "",
                        what,
                        site.short(site.label(best.cell.run)),
                        duration(best.seconds),
                        " = ".join(time.backend for time in winners) or Span("not known", "quiet"),
                        run_links(site, _runs(best)),
                    )
                )
                first = False
    columns = (Column("model", wrap=False), Column("step", optional=1), GPU, Column("attention", "right", wrap=False))
    return Document(
        command="site",
        title="Attention of models",
        answer=(f"{count(len(found), 'model')} of which a whole step was measured, layer by layer.",),
        blocks=(Table("models", (*columns, Column("fastest"), RUN_FILES), tuple(rows), "Models"),),
    )


def model_page(site: Findings, model: str, files: Sequence[RunFile]) -> Document:
    """Return the attention of a model in one step: a table for each step, a row for each backend on each GPU."""
    shown = document(cells_of([file.run for file in files]), MODELS[model], 1)
    tables = tuple(
        _step_table(site, number, what, own) for number, (what, own) in enumerate(_by_step(model, files).items())
    )
    rest = (block for block in shown.blocks[1:] if isinstance(block, Grids))  # plans
    return replace(shown, title=f"Attention of {model}", blocks=(*tables, *rest))


def _by_step(model: str, files: Sequence[RunFile]) -> dict[str, list[StepTime]]:
    """Return step in words ("4k, batch 1, bf16, fwd") -> its times on all devices."""
    found = step_times(cells_of([file.run for file in files]), MODELS[model], 1)

    def what(time: StepTime) -> str:
        sizes = f"{case_names.lengths(time.case)}, batch {time.case.shape.batch}, {time.case.dtype}"
        return ", ".join([sizes, time.direction, *case_names.extras(time.case)])

    return grouped(sorted(found, key=lambda time: case_names.case_rank(time.case)), what)


def _runs(time: StepTime) -> list[Run]:
    return runs_of(cell for _, cell in time.parts)


def _step_table(site: Findings, number: int, what: str, own: Sequence[StepTime]) -> Table:
    least = min(time.seconds for time in own)
    best = {id(time) for of in grouped(own, lambda time: time.device).values() for time in contest_of_steps(of).winners}
    backends = grouped(sorted(own, key=lambda time: time.seconds), lambda time: time.backend)
    rows: list[tuple[Entry, ...]] = []
    for backend, of in backends.items():
        for i, time in enumerate(of):
            text = duration(time.seconds) + ("~" if time.held_down else "")
            half = time.uncertainty
            rows.append(
                (
                    "" if i else backend,
                    site.short(site.label(time.cell.run)),
                    Span(text, "strong" if id(time) in best else ""),
                    f"±{percent(half)}" if half is not None else "±?",
                    device_bar(site, time.cell.run, least / time.seconds, f"{backend}: {text}"),
                    run_links(site, _runs(time)),
                )
            )
    columns = (Column("backend"), GPU, Column("attention", "right", wrap=False), Column("±", "right", optional=1))
    note = "The latencies of all layers added up. Bold: the fastest on its GPU, or alike with it. ~: clock held down."
    return Table(f"step-{number}", (*columns, BAR, RUN_FILES), tuple(rows), what, note)


# ---- Steps of a whole model.


def steps_page(site: Findings, files: Sequence[RunFile]) -> Document:
    """Return the steps of whole models: the fastest of each on each GPU, then a table for each step."""
    runs = [file.run for file in files]
    shown = steps_document(runs)
    steps = timed_steps([cell for cell in cells_of(runs) if cell.case.step])
    by_case = grouped([own for _, own in steps.items()], lambda own: own[0].cell.case)
    named = {name(case): [*of] for case, of in by_case.items()}
    tables = tuple(_table(site, number, what, of) for number, (what, of) in enumerate(named.items()))
    told = "from one traced step; a kernel of attention that is"
    note = (
        f"Attention: its share of the step, {told} {FASTER:g}x as fast makes the step as many times as fast as shown."
    )
    columns = (
        *(Column("step"), GPU, Column("time", "right", wrap=False), Column("fastest", optional=1)),
        *(Column("attention", "right"), Column(f"gain of {FASTER:g}x", "right", wrap=False, optional=1), RUN_FILES),
    )
    fastest = Table("fastest", columns, tuple(_fastest(site, named)), "The fastest of each step", note)
    answer = (f"{count(len(named), 'step')} of {count(len({what.split()[0] for what in named}), 'model')}.",)
    return replace(shown, title="Steps of whole models", answer=answer, machines=(), blocks=(fastest, *tables))


def _fastest(site: Findings, named: Mapping[str, Sequence[Sequence[Timed]]]) -> Iterator[tuple[Entry, ...]]:
    for what, of_devices in named.items():
        for i, own in enumerate(of_devices):
            first = own[0]
            alike = [timed.cell.backend for timed in own if timed is first or timed.cell.alike(first.cell)]
            yield (
                "" if i else what,
                site.short(site.label(first.cell.run)),
                duration(first.latency),
                listed(alike),
                share(first.share) if first.share is not None else NOTHING,
                times(amdahl(first.share)) if first.share is not None else NOTHING,
                run_links(site, [first.cell.run]),
            )


def _table(site: Findings, number: int, what: str, of_devices: Sequence[Sequence[Timed]]) -> Table:
    least = min(own[0].latency for own in of_devices)
    rows: list[tuple[Entry, ...]] = []
    for own in of_devices:
        for timed in own:
            backend, latency, *rest = entries(timed, own[0])
            label = f"{timed.cell.backend}: {latency}"
            bar = device_bar(site, timed.cell.run, least / timed.latency, label)
            gpu = site.short(site.label(timed.cell.run))
            rows.append((backend, gpu, latency, bar, run_links(site, [timed.cell.run]), *rest))
    first, *others = (Column(heading, "right", wrap=False, optional=i) for i, heading in enumerate(HEADINGS))
    columns = (Column("implementation"), GPU, first, BAR, RUN_FILES, *others)
    return Table(f"step-{number}", columns, tuple(rows), what)
