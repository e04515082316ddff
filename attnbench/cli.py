"""The command line: one file per command in commands/, put together here."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnbench import __version__
from attnbench.core.errors import EXIT_BAD_INPUT, EXIT_CANNOT_WRITE, EXIT_DONE, EXIT_TERMINATED, Terminated, UserError
from attnbench.core.text import printable

COMPLETION = "_ATTNBENCH_COMPLETE"  # set by what --install-completion gives a shell
# In the order of --help. A file of that name has a function of that name, or `app`, which has several.
COMMANDS = (
    "run",
    "report",
    "check",
    "profile",
    "backends",
    "doctor",
    "suites",
    "gate",
    "ab",
    "compare",
    "baseline",
    "env",
)


class Command(TyperCommand):
    """A command whose help shows no types, and whose completion converts no values."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _adapted(super().get_params(ctx), ctx)


class Group(TyperGroup):
    """Several commands; in plain text each is listed with the whole first sentence of its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _adapted(super().get_params(ctx), ctx)

    def format_commands(self, _: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, (c.help or "").partition("\n\n")[0]) for name, c in self.commands.items()])


def _adapted(params: list[Any], ctx: Any) -> list[Any]:
    """Return the parameters of a command, without what typer would add to them.

    A flag has no type, and an argument's name says what it is: no `<bool>`, no `<list[Path]>`. To convert values typer
    imports pydantic, which takes longer than the rest of a completion.
    """
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
        if ctx.resilient_parsing:
            param.process_value = lambda ctx, value: value
    return params


def command_line(*names: str) -> typer.Typer:
    """Return the program with these commands, or with all.

    With all it is written for --help: as plain text, because rich takes a tenth of a second to import.
    """
    app = typer.Typer(
        cls=Group,
        name="attnbench",
        help="Measures attention kernels: speed, memory, and how close they come to the hardware's limit.",
        epilog="First steps: `attnbench run --suite quick`, then `attnbench report` on the file that it names. Both "
        "work without a GPU too. `attnbench run --device fake` measures nothing: it is for trying the commands.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if names else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names or COMMANDS:
        module = import_module(f"attnbench.commands.{name}")
        if hasattr(module, "app"):
            for command in module.app.registered_commands:
                command.cls = Command
            app.add_typer(module.app, name=name, cls=Group)
        else:
            app.command(cls=Command)(getattr(module, name))
    return app


def _version(asked: bool) -> None:
    if asked:
        print(f"attnbench {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _words_to_complete() -> list[str]:
    """Prepare for a Tab of a shell, and return the words of its command line after the program's name."""
    sys.modules["rich"] = None  # type: ignore[assignment]  # typer would import it for the texts beside options
    if "COMP_WORDS" in os.environ:  # bash splits --suite=quick into three words, which typer takes for values
        words, position = os.environ["COMP_WORDS"].split("\n"), int(os.environ["COMP_CWORD"])
        signs = [i for i, word in enumerate(words[:position]) if word == "="]
        os.environ["COMP_WORDS"] = "\n".join(word for i, word in enumerate(words) if i not in signs)
        os.environ["COMP_CWORD"] = str(position - len(signs))
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def main() -> None:
    """Run the command line and exit.

    An error that a person can cause is one line and exit code 2. So is output that cannot be written, where the command
    itself ended with 0.
    """
    code: Any = EXIT_DONE
    try:
        words = _words_to_complete() if COMPLETION in os.environ else sys.argv[1:]
        asked = [name for name in words[:1] if name in COMMANDS]  # to build all commands takes 40 ms
        try:
            command_line(*asked)(complete_var=COMPLETION)
        except SystemExit as end:
            code = end.code
        if sys.stdout:
            sys.stdout.flush()
    except UserError as error:
        print(f"attnbench: {printable(str(error))}", file=sys.stderr)
        code = EXIT_BAD_INPUT
    except Terminated:
        code = EXIT_TERMINATED
    except OSError as error:
        what = f"{error.filename}: " if error.filename else "cannot write the output: "
        print(f"attnbench: {what}{error.strerror}", file=sys.stderr)
        code = code or EXIT_CANNOT_WRITE
        with contextlib.suppress(OSError, ValueError):  # the rest of the buffer would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
