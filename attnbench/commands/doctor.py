"""`attnbench doctor`: is this machine fit to measure?"""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.commands import output
from attnbench.commands.shared import live


def doctor(
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="auto, cuda:N, cpu, or fake (simulated, for a try).")
    ] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="A test of 20 s in place of two minutes, and a coarser figure.")
    ] = False,
    format: output.Format = None,
    html: output.Html = None,
    json: output.Json = False,
) -> None:
    """Say whether this machine is fit to measure, and the smallest difference that can be told apart on it.

    Changes nothing and needs no root. Exit code 0: fit, with or without warnings; 3: unfit.
    """
    wanted = output.outputs(format, html, json)
    from attnbench.analysis.doctor.diagnose import diagnose
    from attnbench.analysis.doctor.document import document
    from attnbench.report.progress.progress_line import ProgressLine

    with live(ProgressLine, "the diagnosis was complete") as line:
        diagnosis = diagnose(device, line.say, quick=quick)
    unwritten = output.write(document(diagnosis), wanted)
    raise typer.Exit(diagnosis.exit_code or unwritten)
