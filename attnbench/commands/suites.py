"""`attnbench suites`: list the suites that ship, or print the YAML of one."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.commands import complete
from attnbench.core.errors import UserError, did_you_mean


def suites(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Print the YAML of this suite.", autocompletion=complete.one(complete.suites)
        ),
    ] = None,
) -> None:
    """List the suites that ship with attnbench, or print one: a start for your own, to run with --suite FILE."""
    from attnbench.run.shipped_suites import shipped_suites

    if name is None:
        from rich.table import Table

        from attnbench.render.console import Console
        from attnbench.run import suite

        table = Table(box=None, pad_edge=False, show_header=False)
        for known in shipped_suites():
            loaded = suite.load_suite(known)
            table.add_row(known, f"{loaded.description} ({suite.describe_suite(loaded)})")
        Console(highlight=False).print(table, markup=False)
        return
    path = shipped_suites().get(name)
    if path is None:
        raise UserError(f"no suite {name!r}{did_you_mean(name, shipped_suites())}")
    print(path.read_text(encoding="utf-8"), end="")
