"""`attnbench suites`: those that ship, or the YAML of one."""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.core.errors import UserError, did_you_mean


def suites(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this suite's YAML.")] = None,
) -> None:
    """List the suites that ship with attnbench, or show one: copy it, change it, run it with --suite FILE."""
    from attnbench.run import suite

    if name is None:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        for known in suite.shipped_suites():
            loaded = suite.load_suite(known)
            table.add_row(known, f"{loaded.description} ({suite.describe_suite(loaded)})")
        Console(highlight=False).print(table, markup=False)
        return
    path = suite.shipped_suites().get(name)
    if path is None:
        raise UserError(f"no suite {name!r}{did_you_mean(name, suite.shipped_suites())}")
    print(path.read_text(), end="")
