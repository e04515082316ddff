"""`attnbench doctor`: is this machine fit to measure?"""

from __future__ import annotations

from typing import Annotated

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live


@options.grouped
def doctor(
    *,
    device: options.Device = "auto",
    quick: Annotated[
        bool, options.how("--quick", metavar="", help="A test of 20 s in place of two minutes, and a coarser figure.")
    ] = False,
    output_to: output.Output,
) -> None:
    """Say whether this machine is fit to measure, and the smallest difference that can be told apart on it.

    Changes nothing and needs no root. Exit code 0: fit, with or without warnings; 3: unfit.
    """
    wanted = output_to.wanted()
    from attnbench.analysis.doctor.document import diagnose, document
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.doctor import examine

    with live(ProgressLine, "the diagnosis was complete") as line:
        found = examine(device, line.say, quick=quick)
    raise typer.Exit(output.write(document(diagnose(found)), wanted))
