"""`attnbench backends`: what runs here, and with --matrix what would run where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import live
from attnbench.core.errors import UserError

if TYPE_CHECKING:
    from attnbench.render.document import Document

supports = options.Panel("The support matrix", 4)


@dataclass(frozen=True, kw_only=True)
class Options(output.Output):
    """The options of `attnbench backends`."""

    python: list[str] | None = options.python()
    matrix: bool = supports.flag("Show what each supports, also on GPUs that are not here.")
    gpu: list[str] | None = supports(
        "NAMES",
        "Feature by feature on these: h100, a100, hopper, sm_90, cpu.",
        autocompletion=complete.several(complete.gpus),
    )
    device: str | None = supports("DEVICE", "Feature by feature on a device here: auto, cuda:N.")
    into: Path | None = supports("FILE", "Replace the matrix between the marks of a markdown file.")


@options.command
def backends(given: Options) -> None:
    """List the attention implementations: version, or why one cannot be used here and what would install it.

    attnbench backends
    attnbench backends --matrix                         # which runs on which generation of GPUs
    attnbench backends --matrix --gpu h100,rtx-4090     # dtypes, head dims, masks, ... with the reasons
    """
    wanted = given.wanted()
    if given.into and options.changed(given, ("python", "gpu", "device")):
        raise UserError(
            "--into rewrites the matrix of a file for a fixed list of GPUs; leave out --python, --gpu and --device"
        )
    if given.python and options.changed(given, ("matrix", "gpu", "device")):
        raise UserError("--python: the matrix asks no library, so that it needs no interpreter; leave it out")
    if given.into:
        from attnbench.analysis.backends import support_document

        support_document.put_into(given.into)
        print(f"{given.into}: the support matrix by architecture, and by feature on {support_document.DOCUMENTED}")
        return
    asks_matrix = options.changed(given, ("matrix", "gpu", "device"))
    found = _support(given.gpu or (), given.device) if asks_matrix else _here(given.python or ())
    raise typer.Exit(output.write(found, wanted))


def _here(pythons: Sequence[str]) -> Document:
    """Return the document of the backends on the device of this machine."""
    from attnbench.analysis.backends.document import Row, document
    from attnbench.backends import BACKENDS, available
    from attnbench.render.progress.progress_line import ProgressLine
    from attnbench.results import where_tried
    from attnbench.run.select import Chosen, select_interpreters
    from attnbench.run.session import Session
    from attnbench.run.suite import load_suite, resolve
    from attnbench.run.workers import has_nvidia_gpu

    specs = available()
    chosen = Chosen(specs, select_interpreters(pythons, list(specs)))
    with (
        live(ProgressLine, "the backends were known") as line,
        Session("auto", chosen, with_torch=False, allow_busy=True) as session,
    ):
        line.say("looking at the device")
        if has_nvidia_gpu():  # most backends can then be used, and import their libraries meanwhile
            session.pool.start_loading()
        device = session.describe().device
        line.say("asking each backend what it supports here")
        answers = session.first_look(resolve(load_suite("default"), device.kind).cases)
    rows = []
    for name, probe in session.probes.items():
        reasons = {answer.reason for answer in answers[name]}
        reason = probe.reason or (next(iter(reasons)) if len(reasons) == 1 else None)
        verified = "simulated" if name == "fake" else where_tried.text(name) if name in BACKENDS else "-"
        rows.append(Row(name, probe.version, verified, chosen.interpreters.get(name), reason, probe.install))
    return document(device.name, rows)


def _support(gpus: Sequence[str], device: str | None) -> Document:
    """Return the document of what backends support on GPUs by name, here or not, and on a device of this machine."""
    from attnbench.analysis.backends import support_document
    from attnbench.run.support_matrix import named_device, support_matrix

    devices = [named_device(name) for text in gpus for name in text.split(",")]
    if device is not None:
        from attnbench.run.select import parse_device
        from attnbench.run.session import Session

        with Session(parse_device(device), allow_busy=True) as session:
            devices.append(session.describe().device)
    return support_document.document([support_matrix(d) for d in devices])
