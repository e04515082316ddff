"""`attnbench history`: parse, read, write. Heavy imports stay inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import options
from attnbench.commands.output import Output, write
from attnbench.commands.shared import read_runs, tell
from attnbench.core.errors import EXIT_PASS
from attnbench.core.text import count
from attnbench.render.document import with_damage

which = options.Panel("What to follow")
matters = options.Panel("What counts as a change")


@dataclass(frozen=True, kw_only=True)
class Options(Output):
    """The options of `attnbench history`."""

    results: list[Path] = options.argument("RUN|DIR", "Run files, or folders: all run files in them.")
    metric: list[str] | None = options.metrics(
        which,
        options.gate_metrics,
        "latency,memory_peak by default; also first_call and the gate's others; -m help lists them all.",
    )
    branch: str | None = which("NAME", "Only runs of this branch.")
    since: str | None = which("DATE|COMMIT", "Only runs from this date, or from this commit's first run, on.")
    join_units: bool = which.flag("Follow all units of a model as one; by default each on its own.")
    fail_on: str | None = matters(
        "PERCENT", "Exit code 1 where a cell's latest level is worse than its first by more: 3%."
    )
    acknowledged: Path | None = matters("FILE", "YAML: intended changes; from each on, the new level is the reference.")
    every: bool = options.files.flag("Also the cells that did not change.", "--all")


@options.command
def history(given: Options) -> None:
    """Follow each cell over commits and dates: when did its latency or memory change? Needs no GPU.

    A creep of 0.5 % a commit passes every gate; over a dozen runs it is found here. Keep the run files of a nightly
    job on one machine, with five rounds each, and give them all. A step needs ten runs; docs/history.md.

    attnbench history nightly/
    attnbench history nightly/ --all --html history.html
    attnbench history nightly/ --fail-on 3% --acknowledged history-acknowledged.yml
    """
    from attnbench.analysis.gate.margins import parse
    from attnbench.analysis.history.acknowledged import acknowledged
    from attnbench.analysis.history.document import Request, document
    from attnbench.analysis.history.series import DEFAULT, of_branch, since
    from attnbench.results.run_file import undecided
    from attnbench.results.run_setup import seconds_started

    wanted = given.wanted()
    request = Request(
        given.join_units,
        tuple(given.metric or DEFAULT),
        tuple(acknowledged(given.acknowledged)) if given.acknowledged else (),
        None if given.fail_on is None else parse(given.fail_on, "--fail-on"),
    )
    read, damage = read_runs(given.results)
    runs = [run for _, run in read]
    if given.branch is not None:
        if unknown := sum(run.environment.branch is None for run in runs):
            tell(f"attnbench: left out: {count(unknown, 'run')} whose branch is not known; older runs do not record it")
        runs = of_branch(runs, given.branch)
    if given.since is not None:
        if undated := sum(seconds_started(run) is None for run in runs):
            tell(f"attnbench: left out: {count(undated, 'run')} whose date is not known")
        runs = since(runs, given.since)
    shown = document(runs, request, given.every)
    if given.fail_on is not None and shown.exit_code == EXIT_PASS:
        left_out = {path for path, run in read if not any(run is one for one in runs)}
        for path, what in damage.items():
            if path not in left_out:
                raise undecided(what if str(path) in what else f"{path}: {what}", "a worse cell")
    raise typer.Exit(write(with_damage(shown, damage), wanted))
