"""`attnbench env create|list|remove`: virtual environments for libraries that cannot share one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from attnbench.commands.shared import live
from attnbench.core.errors import EXIT_NOTHING_MEASURED

app = typer.Typer(
    help="Create virtual environments for libraries that cannot share one; later runs use them automatically.",
    no_args_is_help=True,
)


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The library: fa2, fa3, fa4, xformers, flashinfer, cudnn, hf, ...")
    ],
    pip: Annotated[list[str] | None, typer.Argument(metavar="-- PIP OPTIONS", help="Options for pip install.")] = None,
    path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder. Default: ~/.local/share/attnbench/envs/NAME.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Of fa3: a clone of flash-attention to build, or a wheel built from one."),
    ] = None,
    build: Annotated[
        bool, typer.Option("--build", help="Of fa3: compile it, with a backward, where a wheel without one exists.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands, and run none.")] = False,
) -> None:
    """Create a virtual environment with a library's packages, which also sees the torch that is installed here.

    fa3 is for Hopper. With a torch for CUDA 13 it is a wheel without backward; otherwise, or with --build, it is
    compiled, which takes minutes to an hour. FLASH_ATTENTION_DISABLE_FP16=FALSE and such variables choose what is
    built, MAX_JOBS how many files at a time; --dry-run shows them.

    Later runs start the backends of that library in it. --python and the interpreters of a suite have priority.

    attnbench env create fa4
    attnbench env create fa3 --build --dry-run
    attnbench env create fa4 -- --no-index --find-links wheels/

    Exit code 1: none of its backends can be used in the new environment.
    """
    from attnbench.backends import BACKENDS
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run import fa3_build, venvs
    from attnbench.run.select import Chosen
    from attnbench.run.session import Session

    if dry_run:
        made, steps = venvs.planned(name, path, pip or (), source, build=build)
        print(f"{sys.executable} -m venv --without-pip {made.path}")
        print(f"# {made.path} sees the packages of {sys.executable} through {venvs.PRESENT}")
        for step in steps:
            print(step)
        if made.requirements == (fa3_build.READY,):
            print(f"# {fa3_build.LACKS}")
        return
    with live(ProgressLine, "the environment was made") as line:
        made = venvs.create(
            *(name, path, pip or (), lambda said: line.say(said, also_in_a_pipe=said.startswith("compiled")), source),
            build=build,
        )
        names = venvs.backends_of(made.name)
        chosen = Chosen({name: BACKENDS[name] for name in names}, dict.fromkeys(names, made.python))
        with Session(None, chosen) as session:
            line.say(f"importing {', '.join(names)}")
            probes = session.load()
    usable = any(probe.usable for probe in probes.values())
    how = "its backends run there from now on" if usable else "none of its backends can be used there"
    print(f"{made.name}: {made.path}, with torch {made.torch}; {how}")
    for backend, probe in probes.items():
        print(f"  {backend}: {probe.why_not or probe.version}")
    if any(fa3_build.WHEEL in str(probe.version) for probe in probes.values()):
        print(f"  {fa3_build.LACKS}")
    for wheel in Path(made.path, "wheels").glob("*.whl"):
        print(f"  the wheel is {wheel}: --source installs it elsewhere, pip install --no-deps beside other libraries")
    raise typer.Exit(0 if usable else EXIT_NOTHING_MEASURED)


@app.command("list")
def list_() -> None:
    """List the environments that were created, and the backends that run in them."""
    from rich.table import Table

    from attnbench.core.text import one_line
    from attnbench.render.console import Console
    from attnbench.run import venvs

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "backends", "interpreter", "made for", "packages"):
        table.add_column(heading, overflow="fold")
    for made in venvs.known_venvs().values():
        where = made.python if made.exists else f"{made.python} (gone: env remove {made.name}, and create it again)"
        cells = (
            made.name,
            ", ".join(venvs.backends_of(made.name)),
            where,
            f"torch {made.torch}",
            " ".join(made.requirements),
        )
        table.add_row(*map(one_line, cells))
    console = Console(highlight=False)
    if table.rows:
        console.print(table, markup=False)
    else:
        console.print("none yet; attnbench env create fa4 makes one", markup=False)


@app.command()
def remove(name: Annotated[str, typer.Argument(metavar="NAME", help="A name that env list shows.")]) -> None:
    """Delete an environment that was created here; its backends then run in the interpreter of attnbench again."""
    from attnbench.core.text import one_line
    from attnbench.run import venvs

    path = venvs.remove(name).path
    stays = os.path.exists(path)
    print(
        f"taken from the list; not made here, so it stays: {one_line(path)}" if stays else f"removed: {one_line(path)}"
    )
