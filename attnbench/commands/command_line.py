"""The program: all commands, each in its own file, put together."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnbench import __version__
from attnbench.core.documents import with_addresses
from attnbench.core.errors import UserError, did_you_mean, nearest

# Commands in the order of --help. The file of a command has a function of its name, or `app` for its subcommands.
COMMANDS = (
    "run",
    "report",
    "check",
    "capacity",
    "profile",
    "backends",
    "doctor",
    "suites",
    "models",
    "gate",
    "ab",
    "bisect",
    "recommend",
    "tune",
    "compare",
    "history",
    "site",
    "claims",
    "step",
    "cluster",
    "baseline",
    "env",
)
_HOME = re.compile(r"((?<=[=,])|(?<=^-\w))~(?=/)")  # a ~ that a shell does not expand: --out=~/x, -o~/x, in lists
_NO_HOME = "this user has none; set HOME to a folder"  # as in containers
PATHS = {"RUN", "DIR", "FILE", "PATH", "BASELINE", "CURRENT", "MODEL"}  # metavars of paths; several are joined by "|"
# Parameters whose value is the file of a document, and their options. Any other --out names a run file.
DOCUMENTS = {"html": "--html", "png": "--png", "svg": "--svg", "document_file": "--out"}


class OneLineErrors:
    """Mixin of commands: a mistake in options or arguments is a UserError of one line, without usage in a box."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)  # type: ignore[misc]
        except Exception as error:  # an error of click, or of the copy of click that newer typers have
            if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
                raise
            command = f"{parent.command_path} {info_name}" if parent else info_name
            if hasattr(error, "option_name") and hasattr(error, "possibilities"):
                no_such = _no_such_option(error.option_name, self)
                raise UserError(f"{no_such}; {command} --help shows what there is") from None
            said = re.sub(
                r"Input should be (.*?)(, unable to .*)?$", r"it should be \1", error.format_message().rstrip(".")
            )
            raise UserError(f"{said[:1].lower()}{said[1:]}; {command} --help shows what there is") from None


class Command(OneLineErrors, TyperCommand):
    """A command whose help fits the terminal and shows no types, and whose completion converts no values."""

    def get_help(self, ctx: Any) -> str:
        self.help = with_addresses(_in_whole_paragraphs(self.help or ""))
        return super().get_help(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _adapted(super().get_params(ctx), ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _check_given_once(self.get_params(ctx), args)
            home = os.path.expanduser("~")
            if home == "~" and any(_HOME.search(word) for word in args):
                raise UserError(f"~ stands for the home folder, and {_NO_HOME}, or write the path in full")
            # A function as replacement, because sub() would interpret backslashes in a text.
            args = [_HOME.sub(lambda _: home, word) for word in args]
        rest = super().parse_args(ctx, args)
        _check_names_once(self.get_params(ctx), ctx.params)
        _check_nothing_is_overwritten(ctx.params)
        return rest


class Group(OneLineErrors, TyperGroup):
    """Several commands; in plain text each is listed with the whole first sentence of its help."""

    def get_help(self, ctx: Any) -> str:
        self.epilog = with_addresses(self.epilog or "")
        return super().get_help(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return _adapted(super().get_params(ctx), ctx)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args[:1] == ["--install-completion"] and os.path.basename(sys.argv[0]) == "__main__.py":
            raise UserError("as python -m attnbench a shell cannot complete it; attnbench --install-completion can")
        if args[:1] == ["--install-completion"] and os.path.expanduser("~") == "~":
            raise UserError(f"the completion is written to the home folder, and {_NO_HOME}")
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UserError(f"no command {args[0]!r}{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, (c.help or "").partition("\n\n")[0]) for name, c in self.commands.items()])


def _no_such_option(name: str, command: Any) -> str:
    """Return the error for an unknown option, with the names that are close to it."""
    options = {word.lstrip("-"): word for param in command.params for word in (*param.opts, *param.secondary_opts)}
    close = [options[word] for word in nearest(name.lstrip("-"), options)]
    return f"no such option: {name}" + (f" (did you mean {' or '.join(close)}?)" if close else "")


def _check_given_once(params: Iterable[Any], args: Sequence[str]) -> None:
    """Raise UserError where an option of one value is given twice, or a switch both ways: the last would win."""
    words = [word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", args)]
    for param in params:
        given = [word for word in words if word in (*param.opts, *param.secondary_opts) and word.startswith("-")]
        if len(set(given)) > 1 and not {*given} <= {*param.opts}:
            raise UserError(f"{' and '.join(dict.fromkeys(given))} say the opposite; give one of them")
        if len(given) > 1 and not param.multiple and not getattr(param, "count", False) and not param.is_flag:
            lists = ", with commas between its values" if str(param.metavar).endswith("S") else ""
            raise UserError(f"{given[-1]} is given twice, and one value would win silently; give it once{lists}")


def _check_names_once(params: Iterable[Any], values: Mapping[str, Any]) -> None:
    """Raise UserError where a repeatable NAME=VALUE has a name twice: the last value would win."""
    for param in params:
        if getattr(param, "multiple", False) and re.search(r"\w=", param.metavar or ""):
            names = [str(text).rpartition("=")[0] for text in values[param.name] or ()]
            for name in names:
                if names.count(name) > 1:
                    what = f"{param.opts[0]} {name}=".removesuffix(" =")
                    raise UserError(f"{what} is given twice, and one value would win silently; give it once")


def _check_nothing_is_overwritten(values: Mapping[str, Any]) -> None:
    """Raise UserError where a document would overwrite a file that another option names, by whatever path."""
    written = [(f"-f {text}", text.partition("=")[2]) for text in values.get("format") or ()]
    written += [(f"{option} {values[name]}", values[name]) for name, option in DOCUMENTS.items() if values.get(name)]
    inputs: list[Path] = []
    for name, value in values.items():
        if name not in ("format", *DOCUMENTS):
            each = value if isinstance(value, list | tuple) else [value]
            texts = [str(one) for one in each if one and isinstance(one, str | Path)]
            texts += [text.partition("=")[2] for text in texts]  # the path of NAME=PATH
            inputs += [Path(text) for text in texts if text]
    for option, file in written:
        if file and any(_is_one_file(Path(file), other) for other in inputs):
            raise UserError(
                f"{option}: the command line names that file already, and it would be overwritten; choose another"
            )


def _is_one_file(file: Path, other: Path) -> bool:
    try:
        return os.path.samefile(file, other)
    except OSError:  # one of the files does not exist yet
        return os.path.realpath(file) == os.path.realpath(other)
    except ValueError:  # the text is no path
        return False


def _in_whole_paragraphs(text: str) -> str:
    """Return a docstring with a line for each paragraph, which rich wraps; examples keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("attnbench ") else " ".join(p.split("\n")) for p in paragraphs)


def _adapted(params: list[Any], ctx: Any) -> list[Any]:
    """Return the parameters of a command, without what typer would add to them, and with a check for empty values.

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
        elif not getattr(param, "is_flag", False) and "process_value" not in vars(param):
            param.process_value = partial(_process_value, param, param.process_value)
    return params


def _process_value(param: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return the converted value of a parameter.

    Raises UserError for an empty one: as a path it would be ".", as a list of names it would choose nothing.
    """
    given = value if isinstance(value, list | tuple) else [value]
    if value != param.default and any(isinstance(one, str) and not one.strip(", \t\n") for one in given):
        name = param.metavar if param.param_type_name == "argument" else param.opts[0]
        what = "path" if {*str(param.metavar).rstrip(".").split("|")} <= PATHS else "value"
        raise UserError(f"{name}: the {what} is empty; give one (is a variable of the shell empty?)")
    return process(ctx, value)


def command_line(*names: str) -> typer.Typer:
    """Return the program with these commands, or with all.

    The program with all commands shows --help as plain text, because rich takes a tenth of a second to import.
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
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"attnbench {__version__} from {Path(__file__).parents[1]} (Python {python})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version and the folder that attnbench runs from.",
        ),
    ] = False,
) -> None:
    pass
