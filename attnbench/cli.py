"""The command line: all the tool at a glance. Each command is a file in commands/."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from attnbench import __version__
from attnbench.commands.ab import ab
from attnbench.commands.backends import backends
from attnbench.commands.baseline import app as baseline
from attnbench.commands.compare import compare
from attnbench.commands.doctor import doctor
from attnbench.commands.env import app as env
from attnbench.commands.gate import gate
from attnbench.commands.profile import profile
from attnbench.commands.report import report
from attnbench.commands.run import run
from attnbench.commands.suites import suites
from attnbench.errors import EXIT_BAD_INPUT, EXIT_TERMINATED, Terminated, UserError

app = typer.Typer(
    name="attnbench",
    help="Measures attention kernels: speed, memory, and how close they come to the hardware's limit.",
    epilog="First steps: `attnbench run --suite quick`, then `attnbench report` on the file it names. "
    "Without a GPU too; `attnbench run --device fake` only tries the tool out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(run)
app.command()(report)
app.command()(profile)
app.command()(backends)
app.command()(doctor)
app.command()(suites)
app.command()(gate)
app.command()(ab)
app.command()(compare)
app.add_typer(baseline, name="baseline")
app.add_typer(env, name="env")


def _version(asked: bool) -> None:
    if asked:
        print(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point: errors a person can cause are one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"attnbench: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Terminated:
        sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
