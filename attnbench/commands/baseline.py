"""`attnbench baseline save|list|show`: parse, call, write. Heavy imports stay inside functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.analysis.baseline import FOLDER, MAIN
from attnbench.commands import options, output
from attnbench.commands.shared import read_with_damage, tell
from attnbench.core.errors import UserError

app = typer.Typer(
    help="Keep the runs that gates compare with: small text files for git, one per name and GPU model.",
    epilog="attnbench gate baselines RUN then finds the one for the GPU of RUN. The guide: docs/ci.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, kw_only=True)
class Options(output.Output):
    """The options of all of its commands."""

    folder: Path = options.plain("DIR", "Where baselines are kept.", FOLDER, "--dir")


@dataclass(frozen=True, kw_only=True)
class SaveOptions(Options):
    """The options of `attnbench baseline save`."""

    run: Path = options.argument("RUN", "The run file, of attnbench run --rounds 5.")
    name: str = options.plain("NAME", "The name of the baseline, as of a branch or a release.", MAIN)
    add: bool = options.plain.flag(
        "Add the run to the baseline: three show the spread between runs. Else it replaces all."
    )


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """The options of `attnbench baseline show`."""

    name: str = options.argument("NAME", "A baseline's name.", MAIN)


@app.command()
@options.command
def save(given: SaveOptions) -> None:
    """Save a run as the baseline for its GPU model, in place of the last one; commit it to git.

    attnbench run --suite ci --rounds 5 --out main.jsonl && attnbench baseline save main.jsonl
    attnbench run --suite ci --rounds 5 --out again.jsonl && attnbench baseline save again.jsonl --add
    attnbench baseline save v2.jsonl --name v2
    """
    from attnbench.analysis.baseline import baseline_files, document

    wanted, run = given.wanted(), given.run
    whole, damage = read_with_damage(run)
    if damage:
        raise UserError(f"{run}: {damage}, and a baseline would lack what is lost; restore the file, or measure again")
    path, before = baseline_files.save(whole, given.name, given.folder, given.add)
    for line in document.doubts(whole, run):
        tell(f"attnbench: {line}")
    raise typer.Exit(output.write(document.saved(path, whole, before), wanted))


@app.command("list")
@options.command
def list_(given: Options) -> None:
    """List the baselines: GPU, suite, when and with what they were measured."""
    from attnbench.analysis.baseline import baseline_files, document

    wanted = given.wanted()
    raise typer.Exit(output.write(document.listed(baseline_files.found(given.folder), given.folder), wanted))


@app.command()
@options.command
def show(given: ShowOptions) -> None:
    """Show a baseline on every GPU it has: how it was measured, its results, and how far its rounds differ.

    attnbench baseline show main
    """
    from attnbench.analysis.baseline import baseline_files, document

    wanted = given.wanted()
    runs = {one.path: read_with_damage(one.path)[0] for one in baseline_files.named(given.name, given.folder)}
    raise typer.Exit(output.write(document.shown(runs), wanted))
