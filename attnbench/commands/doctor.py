"""`attnbench doctor`: is this machine fit to measure?"""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.commands.shared import live


def doctor(
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="auto, cuda:N, cpu, or fake (simulated, for a try).")
    ] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="A test of 20 s in place of two minutes, and a coarser figure.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="All facts and figures as JSON on stdout.")] = False,
) -> None:
    """Say whether this machine is fit to measure, and the smallest difference that can be told apart on it.

    Changes nothing and needs no root. Exit code 0: fit; 1: fit, with warnings; 3: unfit.
    """
    from rich.console import Console

    from attnbench.analysis.doctor import write as shown
    from attnbench.analysis.doctor.diagnose import diagnose
    from attnbench.report.progress.run_progress import Line

    with live(Line, "the diagnosis was complete") as line:
        diagnosis = diagnose(device, line.say, quick=quick)
    print(shown.json_text(diagnosis)) if json else shown.render(Console(highlight=False), diagnosis)
    raise typer.Exit(diagnosis.exit_code)
