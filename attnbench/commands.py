"""What each command does once its line is parsed. Heavy imports stay inside, so that `report` starts at once."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOTHING_MEASURED,
    EXIT_TERMINATED,
    Terminated,
    UserError,
    did_you_mean,
)

if TYPE_CHECKING:
    from rich.console import Console

    from attnbench.report.live import Live
    from attnbench.run import Outcome
    from attnbench.types import Backend, Run
    from attnbench.work import Convention

FORMATS = ("table", "md", "csv", "json", "parquet", "pytest-benchmark", "bmf", "github-action-benchmark")


def run(suite: str, options: Mapping[str, Any], *, json: bool, **rest: Any) -> int:
    """`attnbench run`: measures, shows, and returns the exit code."""
    from rich.console import Console

    from attnbench import run as runs
    from attnbench.suite import settings

    request = runs.Request(suite=suite, settings=settings(options), argv=tuple(sys.argv[1:]), **rest)
    with _live("anything was measured") as live:
        outcome = runs.run(request, live)
    console = Console(highlight=False)
    if request.dry_run:
        from attnbench.report import planned

        print(planned.json_text(outcome.run)) if json else planned.render(console, outcome.run)
        return 0
    if json:
        from attnbench.report import export

        print(export.json_text([outcome.run]))
        console = Console(stderr=True, highlight=False)
    else:
        from attnbench.report import terminal

        console.print()
        terminal.render(console, [outcome.run])
    _epilogue(console, outcome)
    return outcome.exit_code


def _epilogue(console: Console, outcome: Outcome) -> None:
    """Forecast against actual, where the files are, and how to go on."""
    from attnbench.report.forecast import forecast_line
    from attnbench.report.words import count
    from attnbench.store import missing

    console.print()
    if line := forecast_line(outcome.run):
        console.print(line, markup=False, style="dim")
    console.print(f"Results: {outcome.path}", markup=False, soft_wrap=True)
    if left := missing(outcome.run):
        if outcome.exit_code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
            console.print(f"Interrupted; what was measured is kept. Go on with the {count(len(left), 'job')} left:")
        else:
            console.print(f"{count(len(left), 'job')} did not fit the time limit. To measure what is left:")
        console.print(f"  attnbench run --resume {outcome.path}", markup=False, soft_wrap=True)


def report(
    paths: Sequence[Path],
    format: str,
    metrics: Sequence[str],
    by: str,
    *,
    every: bool,
    convention: Convention,
    pictures: Mapping[str, Path | None],
    figure: str,
    panel: str,
) -> int:
    """`attnbench report`."""
    _one_of("--format", format, FORMATS)
    _one_of("--flops-convention", convention, ("exact", "fa"))
    if format != "table" and any(pictures.values()):
        raise UserError(f"--format {format}: --html, --png and --svg write nothing else; leave one of them out")
    names = [name for text in metrics for name in text.split(",")]
    from attnbench.metrics import METRICS

    if names == ["help"]:
        for m in METRICS.values():
            print(f"{m.name:22} {m.doc}")
        return 0
    for name in names:
        _one_of("--metric", name, tuple(METRICS))
    from attnbench.report.tables import BY, BY_OPTION

    by = BY_OPTION.get(by, by)
    _one_of("--by", by, BY)
    if not paths:
        raise UserError("give run files to report on, as in attnbench report results/*.jsonl")
    gc.disable()  # a short process that holds nearly all it makes: looking for garbage takes a third of its time
    runs = _read(paths)
    if any(pictures.values()):
        _draw(runs, paths, pictures, figure, panel, convention)
        return 0
    options: Any = {"metrics": names, "by": by, "convention": convention}
    options |= {"lines": math.inf} if every else {}
    if format in ("csv", "json"):
        from attnbench.report import export

        print(export.csv(runs, convention) if format == "csv" else export.json_text(runs, convention))
        return 0
    if format not in ("md", "table"):
        from attnbench.report import exports

        exports.write(sys.stdout, format, runs, convention)
        return 0
    if format == "md":
        from attnbench.report import markdown

        print(markdown.render(runs, **options))
        return 0
    from rich.console import Console

    from attnbench.report import terminal

    terminal.render(Console(highlight=False), runs, **options)
    return 0


def _draw(
    runs: Sequence[Run],
    paths: Sequence[Path],
    pictures: Mapping[str, Path | None],
    figure: str,
    panel: str,
    convention: Convention,
) -> None:
    """Writes the page, and the figure as PNG and SVG, whichever have a file."""
    from attnbench.report import draw, html

    for kind, path in pictures.items():
        if path is not None:
            if kind == "html":
                html.save(path, runs, paths, convention)
            else:
                draw.save(path, kind, runs, figure, panel, convention)
            print(f"{kind}: {path}")


def profile(options: Mapping[str, Any], *, json: bool, **rest: Any) -> int:
    """`attnbench profile`."""
    from rich.console import Console

    from attnbench import profile as profiles
    from attnbench.report import profile as shown
    from attnbench.suite import settings

    with _live("the profile was complete") as live:
        outcome = profiles.profile(profiles.Request(settings=settings(options), **rest), live.say)
    print(shown.json_text(outcome)) if json else shown.render(Console(highlight=False), outcome)
    return 0 if outcome.profiles else EXIT_NOTHING_MEASURED


def backends(pythons: Sequence[str], format: str) -> int:
    """`attnbench backends`."""
    if format != "table":
        raise UserError("--format: the list of backends is a table only; --matrix is md, csv or json too")
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from attnbench.backends import BACKENDS, available
    from attnbench.backends import load as instance
    from attnbench.choose import interpreters
    from attnbench.execute import Fleet, ends_well
    from attnbench.suite import load, resolve

    specs = available()
    fleet = Fleet(specs, interpreters(pythons, list(specs)))
    with ends_well(fleet):
        probes = fleet.probe()
        device = fleet.environment("auto", ()).device
        answers = fleet.survey(probes, resolve(load("default"), device.kind).cases, device)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("backend", "version", "right results on", "why not, and what would help"):
        table.add_column(heading, overflow="fold")
    for name, probe in probes.items():
        reasons = {answer.reason for answer in answers[name]}
        why = next(iter(reasons)) if len(reasons) == 1 else None
        tried = _tried(instance(name, specs[name])) if name in BACKENDS else "-"
        todo = "; ".join(filter(None, [why, probe.install]))
        where = f", in {fleet.interpreters[name]}" if name in fleet.interpreters else ""
        cells = (name, (probe.version or "-") + where, tried, todo)
        table.add_row(*map(escape, cells), style="dim" if why else None)
    console = Console(highlight=False)
    console.print(f"on {device.name}:", markup=False)
    console.print(table)
    more = "What each supports: --matrix; case by case: attnbench run --dry-run; one of its own: attnbench env create"
    console.print(more, style="dim", markup=False)
    return 0


def _tried(backend: Backend) -> str:
    """Where one of ours gave right results."""
    if getattr(backend, "simulated", False):
        return "simulated"
    return "; ".join(getattr(backend, "verified", ())) or "not verified on hardware"


def matrix(gpus: Sequence[str], device: str | None, format: str, into: Path | None) -> int:
    """`attnbench backends --matrix`."""
    from rich.console import Console

    from attnbench import matrix as pure
    from attnbench.report import matrix as shown

    _one_of("--format", format, shown.FORMATS)
    if into:
        shown.put_into(into)
        print(f"{into}: the support matrix by architecture, and by feature on {shown.DOCUMENTED}")
        return 0
    devices = [pure.device(name) for text in gpus for name in text.split(",")]
    if device is not None:
        from attnbench.choose import device_name
        from attnbench.execute import Fleet

        devices.append(Fleet({}).environment(device_name(device), ()).device)
    found = [pure.matrix(d) for d in devices]
    if format == "table":
        shown.render(Console(highlight=False), found)
    else:
        print(shown.WRITERS[format](found), end="")
    return 0


def env_create(word: str, path: Path | None, options: Sequence[str]) -> int:
    """`attnbench env create`: 1 where none of its backends can be used then."""
    from attnbench import venvs
    from attnbench.backends import BACKENDS
    from attnbench.execute import Fleet, ends_well

    with _live("the environment was made") as live:
        made = venvs.create(word, path, options, live.say)
        names = venvs.served(made.name)
        fleet = Fleet({name: BACKENDS[name] for name in names}, dict.fromkeys(names, made.python))
        with ends_well(fleet):
            live.say(f"importing {', '.join(names)}")
            probes = fleet.probe()
    print(f"{made.name}: {made.path}, with torch {made.torch}; its backends run there from now on")
    for name, probe in probes.items():
        print(f"  {name}: {probe.version if probe.usable else '; '.join(filter(None, [probe.reason, probe.install]))}")
    return 0 if any(probe.usable for probe in probes.values()) else EXIT_NOTHING_MEASURED


def env_list() -> int:
    """`attnbench env list`."""
    from rich.console import Console
    from rich.table import Table

    from attnbench import venvs

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "backends", "interpreter", "made for", "packages"):
        table.add_column(heading, overflow="fold")
    for made in venvs.known().values():
        where = made.python if made.there else f"{made.python} (gone: env remove {made.name}, and create it again)"
        cells = (
            made.name,
            ", ".join(venvs.served(made.name)),
            where,
            f"torch {made.torch}",
            " ".join(made.requirements),
        )
        table.add_row(*cells)
    console = Console(highlight=False)
    if table.rows:
        console.print(table, markup=False)
    else:
        console.print("none yet; attnbench env create fa4 makes one", markup=False)
    return 0


def env_remove(name: str) -> int:
    """`attnbench env remove`."""
    from attnbench import venvs

    print(f"removed: {venvs.remove(name).path}")
    return 0


def doctor(device: str, *, quick: bool, json: bool) -> int:
    """`attnbench doctor`: 0 fit, 1 fit with warnings, 3 unfit."""
    from rich.console import Console

    from attnbench.doctor import diagnose
    from attnbench.report import doctor as shown

    with _live("the diagnosis was complete") as live:
        diagnosis = diagnose(device, live.say, quick=quick)
    print(shown.json_text(diagnosis)) if json else shown.render(Console(highlight=False), diagnosis)
    return diagnosis.exit_code


def suites(name: str | None) -> int:
    """`attnbench suites [NAME]`."""
    from attnbench import suite

    if name is None:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        for known in suite.names():
            loaded = suite.load(known)
            table.add_row(known, f"{loaded.description} ({suite.describe(loaded)})")
        Console(highlight=False).print(table, markup=False)
        return 0
    path = suite.names().get(name)
    if path is None:
        raise UserError(f"no suite {name!r}{did_you_mean(name, suite.names())}")
    print(path.read_text(), end="")
    return 0


@contextmanager
def _live(goal: str) -> Iterator[Live]:
    """A line on stderr of what goes on. Interrupted before `goal`, attnbench says so and ends with its exit code."""
    from rich.console import Console

    from attnbench.report.live import Live

    live = Live(Console(stderr=True, highlight=False))
    try:
        yield live
    except (KeyboardInterrupt, Terminated) as end:
        live.close()
        print(f"attnbench: interrupted before {goal}", file=sys.stderr)
        sys.exit(EXIT_TERMINATED if isinstance(end, Terminated) else EXIT_INTERRUPTED)
    finally:
        live.close()


def _read(paths: Sequence[Path]) -> list[Run]:
    """The run files; what is wrong with one goes to stderr."""
    from attnbench import store

    runs = []
    for path in paths:
        found, problems = store.read(path)
        for problem in problems:
            print(f"attnbench: {problem}", file=sys.stderr)
        runs.append(found)
    return runs


def _one_of(option: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise UserError(f"{option}: unknown {word!r}{did_you_mean(word, known)}")
