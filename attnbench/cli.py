"""The command line: all the tool at a glance. Each command is a file in commands/."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from attnbench import __version__
from attnbench.core.errors import EXIT_BAD_INPUT, EXIT_TERMINATED, Terminated, UserError

# In the order of --help. A file of that name has a function of that name, or `app`, which has several.
COMMANDS = ("run", "report", "profile", "backends", "doctor", "suites", "gate", "ab", "compare", "baseline", "env")


def command_line(*names: str) -> typer.Typer:
    """With those commands, or with all."""
    app = typer.Typer(
        name="attnbench",
        help="Measures attention kernels: speed, memory, and how close they come to the hardware's limit.",
        epilog="First steps: `attnbench run --suite quick`, then `attnbench report` on the file it names. "
        "Without a GPU too; `attnbench run --device fake` only tries the tool out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names or COMMANDS:
        module = import_module(f"attnbench.commands.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command()(getattr(module, name))
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"attnbench {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point: errors a person can cause are one line and exit code 2."""
    try:
        asked = [name for name in sys.argv[1:2] if name in COMMANDS]  # to make all takes a tenth of a second
        command_line(*asked)()
    except UserError as error:
        print(f"attnbench: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Terminated:
        sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
