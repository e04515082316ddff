"""`attnbench cluster run|report`: parse, call, write. Heavy imports stay inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live, read_runs, tell
from attnbench.core.errors import UserError
from attnbench.core.text import count

if TYPE_CHECKING:
    from attnbench.core.record import Run
    from attnbench.run.cluster import Plan, Unit

app = typer.Typer(
    help="Measure every GPU of a cluster with one suite, and find the units that stand out from their model.",
    epilog="First steps: `attnbench cluster run --dry-run`, then without it. Slurm, Kubernetes: docs/cluster.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
ONE_FILE = ("out", "resume", "again")  # options of attnbench run that name a single run file


@dataclass(frozen=True, kw_only=True)
class RunOptions(output.Output):
    """The options of `attnbench cluster run`, in addition to those of `attnbench run`."""

    context: typer.Context
    address: str | None = options.plain(
        "HOST:PORT", "The head of a Ray cluster. Default: RAY_ADDRESS, else this machine alone."
    )
    one_per_model: bool = options.plain.flag("Measure one GPU of each model only.")
    at_once: int = options.plain(
        "N", "GPUs of a node measured at the same time; they share its CPUs and power.", 1, min=1
    )
    patience: str = options.plain("TIME", "How long to wait for a node that died to come back.", "2m")
    out: Path | None = options.out("The folder of the run files. Default: results/DATE-TIME-cluster.", "DIR")
    dry_run: bool = options.dry_run("Show which devices would be measured, and with what.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@options.command
def run(given: RunOptions) -> None:
    """Measure every GPU of a Ray cluster with the same suite; all other options are those of `attnbench run`.

    Each node is reserved as a whole, and its GPUs are measured one after the other, each by a plain `attnbench run` in
    its own process, which writes a run file of its own here. A node that dies is retried once. --device cpu measures
    the CPUs of all nodes.

    attnbench cluster run --address 10.0.0.1:6379 --suite quick --rounds 5
    attnbench cluster run --address 10.0.0.1:6379 --one-per-model --seqlen 4k -b 'sdpa-*' --dry-run
    attnbench cluster run --device cpu --seqlen 1k --time-limit 2m

    Exit code 0: all measured; 1: a device is lost, or nothing could be measured on it; 2: bad input; 5: a wrong result;
    130: interrupted, the files are kept. Outliers are judged by `attnbench cluster report DIR`.
    """
    wanted, dry_run = given.wanted(), given.dry_run
    plan = _plan(given)
    from attnbench.render.progress.cluster_progress import ClusterProgress
    from attnbench.run import cluster

    with live(ClusterProgress, "anything was measured") as progress, cluster.connected(given.address):
        found, notes = cluster.units(plan, progress)
        if not dry_run:
            progress.planned(found, plan.out, notes)
            cluster.measure(found, plan, progress)
    for note in notes if dry_run else cluster.twins(found):
        tell(f"attnbench: {note}")
    if dry_run:
        from attnbench.analysis.cluster.document import planned

        raise typer.Exit(output.write(planned([_facts(unit) for unit in found], plan.words), wanted))
    from attnbench.analysis.cluster.document import document

    runs = [unit.path for unit in found if unit.done and unit.has_file]
    code = cluster.exit_code(found, plan.allow_wrong)
    if runs:
        code = output.write(replace(document(*_named(runs)), exit_code=code), wanted)
    for unit in found:
        if unit.state == "lost":
            tell(f"attnbench: {unit.name} is lost: {unit.reason}")
    tell(f"Results: {plan.out}; attnbench report shows each file" if runs else "attnbench: nothing was measured")
    raise typer.Exit(code)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(output.Output):
    """The options of `attnbench cluster report`."""

    results: list[Path] = options.argument("RUN|DIR", "Run files, one per GPU, or folders with them.")


@app.command()
@options.command
def report(given: ReportOptions) -> None:
    """Judge each GPU against the median of its model: which are outliers, and which compute wrong results?

    The files are those of `attnbench run`, however they were made: by `cluster run`, srun, or a Kubernetes Job. A file
    is named after its node and GPU. A model needs at least three units. The statistics: docs/cluster.md.

    attnbench cluster report results/20260701-100000-cluster
    attnbench cluster report runs/*.jsonl --html acceptance.html

    Exit code 0: no unit stands out; 1: a unit is an outlier, or measured nothing, or its file is damaged; 3: a unit is
    far off, but not apart from the others, or too few units to judge any; 5: a wrong result, or a kernel that is not as
    declared.
    """
    wanted = given.wanted()
    from attnbench.analysis.cluster.document import document

    runs, damage = _named(given.results)
    if all(run.search for _, run in runs):
        raise UserError("searches of what fits say nothing of a unit's speed; give files of attnbench run")
    if searches := sum(run.search is not None for _, run in runs):
        tell(f"attnbench: left out: {count(searches, 'file')} of a search of what fits, which measures no GPU's speed")
    raise typer.Exit(output.write(document(runs, damage), wanted))


def _named(paths: Sequence[Path]) -> tuple[list[tuple[str, Run]], dict[str, str]]:
    """Return the runs of files and folders, and what cannot be read of them, by the names of the files."""
    from attnbench.results import run_file
    from attnbench.results.run_setup import unique_labels

    found, damage = read_runs(paths)
    files = [*dict.fromkeys([*(path for path, _ in found), *damage])]
    labels = unique_labels([run_file.name(path) for path in files], [[str(path.parent)] for path in files], "{1}/{0}")
    names = dict(zip(files, labels, strict=True))
    return [(names[path], run) for path, run in found], {names[path]: what for path, what in damage.items()}


def _plan(given: RunOptions) -> Plan:
    """Return the checked plan; the parser of `attnbench run` reads the options. Raises UserError."""
    from attnbench.commands.command_line import command_line
    from attnbench.commands.run import Options
    from attnbench.core.sizes import parse_duration
    from attnbench.run.cluster import Plan
    from attnbench.run.select import parse_device, select_backends
    from attnbench.run.session import check_output_path
    from attnbench.run.suite import load_suite, resolve_suite_for

    program: Any = typer.main.get_command(command_line("run"))
    words = given.context.args
    of_run = options.made(Options, program.commands["run"].make_context("attnbench run", [*words]).params)
    if one := next(iter(options.changed(of_run, ONE_FILE)), None):
        raise UserError(f"{one} is of a single run file; go on with one by attnbench run --resume FILE there")
    device = parse_device(of_run.device)
    if device.startswith("cuda:"):
        raise UserError(f"--device {device}: every GPU is measured; leave it out, or give cpu")
    device = "cuda" if device == "auto" else device
    for resolved in resolve_suite_for(load_suite(of_run.suite), device, options.settings(of_run)):
        select_backends(resolved.backends, min(case.ranks for case in resolved.cases))
    folder = given.out or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}-cluster"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out: {folder} is there already and is not empty; choose another folder")
    check_output_path(folder / "node.jsonl")
    kept = ["--trust", *(["--allow-wrong"] if of_run.allow_wrong else [])]  # the files are the driver's own
    kept += ["--time-limit", of_run.time_limit] if of_run.time_limit else []
    own = [] if of_run.device != "auto" else ["--device", device]
    return Plan(
        words=(*words, *own),
        resume_words=tuple(kept),
        device=device,
        out=folder,
        patience=parse_duration(given.patience, "--patience"),
        allow_wrong=of_run.allow_wrong,
        one_per_model=given.one_per_model,
        at_once=given.at_once,
    )


def _facts(unit: Unit) -> tuple[str, str, str, str]:
    """Return a device's row of a dry run: its file, its node, its model, and whether attnbench is installed there."""
    what = unit.node.model if unit.gpu is None else f"GPU {unit.gpu} of {unit.node.gpus}, {unit.node.model}"
    cpus = f"{unit.node.name}, {count(unit.node.cpus, 'CPU')}"
    return unit.path.name, cpus, what, unit.node.version or unit.node.why_not
