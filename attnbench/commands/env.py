"""`attnbench env create|list|remove`: environments of their own for libraries that clash."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands.shared import live
from attnbench.core.errors import EXIT_NOTHING_MEASURED

app = typer.Typer(
    help="Environments of their own for libraries that clash: made once, used by every later run.",
    no_args_is_help=True,
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="fa4, xformers, flashinfer, cudnn, hf, fa2, fa1, ...")],
    pip: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PIP OPTIONS]", help="As they go to pip install.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where; ~/.local/share/attnbench/envs/NAME by default.")
    ] = None,
) -> None:
    """Make a virtual environment with a library's packages, which sees the present torch, and remember it.

    From then on the backends of that library run in it; --python and a suite's interpreters go before.

    attnbench env create fa4
    attnbench env create flashinfer --path /opt/envs/flashinfer
    attnbench env create fa4 -- --no-index --find-links wheels/
    """
    from attnbench.backends import BACKENDS
    from attnbench.report.progress.progress_line import ProgressLine
    from attnbench.run import venvs
    from attnbench.run.workers import WorkerPool, closing_workers

    with live(ProgressLine, "the environment was made") as line:
        made = venvs.create(name, path, pip or (), line.say)
        served = venvs.served(made.name)
        pool = WorkerPool({name: BACKENDS[name] for name in served}, dict.fromkeys(served, made.python))
        with closing_workers(pool):
            line.say(f"importing {', '.join(served)}")
            probes = pool.probe()
    print(f"{made.name}: {made.path}, with torch {made.torch}; its backends run there from now on")
    for backend, probe in probes.items():
        print(f"  {backend}: {probe.why_not or probe.version}")
    raise typer.Exit(0 if any(probe.usable for probe in probes.values()) else EXIT_NOTHING_MEASURED)


@app.command("list")
def list_() -> None:
    """List the environments that were made, and the backends that run in them."""
    from rich.console import Console
    from rich.table import Table

    from attnbench.run import venvs

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


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="As env list shows it.")]) -> None:
    """Delete an environment that was made, and forget it."""
    from attnbench.run import venvs

    print(f"removed: {venvs.remove(name).path}")
