"""`attnbench models`: the models that --model takes, or one of them in full."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.commands import complete, options, output


@options.grouped
def models(
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this model in full.", autocompletion=complete.one(complete.models)),
    ] = None,
    output_to: output.Output,
) -> None:
    """List the models whose attention `attnbench run --model` measures, or show one in full with its source.

    attnbench models
    attnbench models gpt-oss-120b       # heads, windows, sinks, and what of it cannot be measured yet
    attnbench models -f csv
    """
    wanted = output_to.wanted()
    from attnbench.analysis.models import document
    from attnbench.core.models import MODELS, find

    shown = document.listed([*MODELS.values()]) if name is None else document.in_full(find(name))
    raise typer.Exit(output.write(shown, wanted))
