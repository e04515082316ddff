"""`attnbench models`: the models that --model takes, or one of them in full."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from attnbench.commands import complete, options, output


@dataclass(frozen=True, kw_only=True)
class Options(output.Output):
    """The options of `attnbench models`."""

    name: str | None = options.argument(
        "NAME", "Show this model in full.", None, autocompletion=complete.one(complete.models)
    )


@options.command
def models(given: Options) -> None:
    """List the models whose attention `attnbench run --model` measures, or show one in full with its source.

    attnbench models
    attnbench models gpt-oss-120b       # heads, windows, sinks, and what of it cannot be measured yet
    attnbench models -f csv
    """
    wanted = given.wanted()
    from attnbench.analysis.models import document
    from attnbench.core.models import MODELS, find

    shown = document.listed([*MODELS.values()]) if given.name is None else document.in_full(find(given.name))
    raise typer.Exit(output.write(shown, wanted))
