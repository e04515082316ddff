"""`attnbench baseline save|list|show`: parse, call, write. Heavy imports stay inside functions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.analysis.baseline import FOLDER, MAIN
from attnbench.commands import options, output
from attnbench.commands.shared import read, read_with_damage, tell
from attnbench.core.errors import UserError

app = typer.Typer(
    help="Keep what gates compare with: small text files for git, one per name and GPU model.",
    epilog="attnbench gate baselines RUN then finds the one for the GPU of RUN. The guide: docs/ci.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where baselines are kept.")]


@app.command()
@options.grouped
def save(
    *,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run file, of attnbench run --rounds 5.")],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What it is the baseline of: a branch, a release.")
    ] = MAIN,
    folder: Folder = FOLDER,
    add: Annotated[
        bool,
        typer.Option(
            "--add", help="One run more of the baseline: three show what runs differ by. Else it replaces all."
        ),
    ] = False,
    output_to: output.Output,
) -> None:
    """Save a run as the baseline for its GPU model, in place of the last one. To be committed.

    attnbench run --suite ci --rounds 5 --out main.jsonl && attnbench baseline save main.jsonl
    attnbench run --suite ci --rounds 5 --out again.jsonl && attnbench baseline save again.jsonl --add
    attnbench baseline save v2.jsonl --name v2
    """
    from attnbench.analysis.baseline import baseline_files, document

    wanted = output_to.wanted()
    whole, damage = read_with_damage(run)
    if damage:
        raise UserError(f"{run}: {damage}, and a baseline would lack what is lost; restore the file, or measure again")
    path, before = baseline_files.save(whole, name, folder, add)
    for line in document.doubts(whole, run):
        tell(f"attnbench: {line}")
    raise typer.Exit(output.write(document.saved(path, whole, before), wanted))


@app.command("list")
@options.grouped
def list_(
    *,
    folder: Folder = FOLDER,
    output_to: output.Output,
) -> None:
    """List the baselines: GPU, suite, when and with what they were measured."""
    from attnbench.analysis.baseline import baseline_files, document

    wanted = output_to.wanted()
    raise typer.Exit(output.write(document.listed(baseline_files.found(folder), folder), wanted))


@app.command()
@options.grouped
def show(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A baseline's name.")] = MAIN,
    folder: Folder = FOLDER,
    output_to: output.Output,
) -> None:
    """Show a baseline on every GPU it has: how it was measured, its figures, and how far its rounds differ.

    attnbench baseline show main
    """
    from attnbench.analysis.baseline import baseline_files, document

    wanted = output_to.wanted()
    runs = {one.path: read(one.path) for one in baseline_files.named(name, folder)}
    raise typer.Exit(output.write(document.shown(runs), wanted))
