"""`attnbench doctor`: is this machine fit to measure?"""

from __future__ import annotations

from dataclasses import dataclass

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import live


@dataclass(frozen=True, kw_only=True)
class Options(output.Output):
    """The options of `attnbench doctor`."""

    device: str = options.device()
    quick: bool = options.how.flag("A test of 20 s in place of two minutes, and a coarser result.")


@options.command
def doctor(given: Options) -> None:
    """Say whether this machine is fit to measure, and the smallest difference that can be told apart on it.

    Changes nothing and needs no root. Exit code 0: fit, with or without warnings; 3: unfit.
    """
    wanted = given.wanted()
    from attnbench.analysis.doctor.document import diagnose, document
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.run.doctor import examine

    with live(ProgressLine, "the diagnosis was complete") as line:
        found = examine(given.device, line.say, quick=given.quick)
    raise typer.Exit(output.write(document(diagnose(found)), wanted))
