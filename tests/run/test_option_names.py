"""Options are spelled as the documents say, whichever typer is installed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from attnbench.commands.command_line import command_line


def options(of: typer.Typer) -> Iterator[tuple[str, str, OptionInfo]]:
    """Yield (command, parameter, option) of all commands."""
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from options(group.typer_instance)
    for command in of.registered_commands:
        function: Any = command.callback
        for name, hint in get_type_hints(function, include_extras=True).items():
            for said in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
                if isinstance(said, OptionInfo):
                    yield inspect.unwrap(function).__name__, name, said


def test_an_option_whose_metavar_is_its_name_names_its_flag() -> None:
    """typer 0.27 would spell the flag like such a metavar: --DEVICE."""
    found = list(options(command_line()))
    assert ("run", "device") in [(command, name) for command, name, _ in found]
    bare = [
        (command, name)
        for command, name, option in found
        if option.metavar and option.metavar.replace("_", "-").lower() == name.replace("_", "-")
        if not str(option.default).startswith("--")  # in Annotated typer keeps the first flag there
    ]
    assert bare == []
