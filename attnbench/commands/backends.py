"""`attnbench backends`: what runs here, and with --matrix what would run where."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands.shared import live, one_of
from attnbench.core.errors import UserError

if TYPE_CHECKING:
    from attnbench.core.backend import Backend

supports = partial(typer.Option, rich_help_panel="The support matrix")


def backends(
    python: Annotated[
        list[str] | None, typer.Option("--python", metavar="NAME=PATH", help="The interpreter of a backend's worker.")
    ] = None,
    matrix: Annotated[
        bool, supports("--matrix", metavar="", help="What each supports, on GPUs that need not be here.")
    ] = False,
    gpu: Annotated[
        list[str] | None, supports(metavar="NAMES", help="h100, a100, hopper, sm_90, cpu: feature by feature there.")
    ] = None,
    device: Annotated[
        str | None, supports("--device", metavar="DEVICE", help="The same for a device here: auto, cuda:N.")
    ] = None,
    format: Annotated[str, supports("--format", "-f", metavar="FORMAT", help="table, md, csv, json.")] = "table",
    into: Annotated[
        Path | None, supports(metavar="FILE", help="Renew the matrix that a markdown file holds between its marks.")
    ] = None,
) -> None:
    """List the attention implementations: version, or why one cannot be used here and what would install it.

    attnbench backends
    attnbench backends --matrix                         # which runs on which generation of GPUs
    attnbench backends --matrix --gpu h100,rtx-4090     # dtypes, head dims, masks, ... with the reasons
    """
    if matrix or gpu or device or into:
        _matrix(gpu or (), device, format, into)
    elif format != "table":
        raise UserError("--format: the list of backends is a table only; --matrix is md, csv or json too")
    else:
        _here(python or ())


def _here(pythons: Sequence[str]) -> None:
    """On the device of this machine."""
    from rich.console import Console

    from attnbench.analysis.backends import available as shown
    from attnbench.backends import BACKENDS, available
    from attnbench.backends import load as instance
    from attnbench.report.progress.progress_line import ProgressLine
    from attnbench.run.device_probe import DeviceProbe
    from attnbench.run.select import select_interpreters
    from attnbench.run.suite import load_suite, resolve
    from attnbench.run.workers import WorkerPool, closing_workers

    specs = available()
    pool = WorkerPool(specs, select_interpreters(pythons, list(specs)))
    with live(ProgressLine, "the backends were known") as line, closing_workers(pool), DeviceProbe("auto") as device_probe:
        line.say(f"importing {', '.join(specs)}")
        probes = pool.probe()
        device = device_probe.describe().device
        line.say("asking each what it supports here")
        answers = pool.survey(probes, resolve(load_suite("default"), device.kind).cases, device)
    rows = []
    for name, probe in probes.items():
        reasons = {answer.reason for answer in answers[name]}
        reason = probe.reason or (next(iter(reasons)) if len(reasons) == 1 else None)
        where = f", in {pool.interpreters[name]}" if name in pool.interpreters else ""
        tried = _tried(instance(name, specs[name])) if name in BACKENDS else "-"
        rows.append(shown.Row(name, (probe.version or "-") + where, tried, reason, probe.install))
    shown.render(Console(highlight=False), device.name, rows)


def _tried(backend: Backend) -> str:
    """Where one of ours gave right results."""
    if getattr(backend, "simulated", False):
        return "simulated"
    return "; ".join(getattr(backend, "verified", ())) or "not verified on hardware"


def _matrix(gpus: Sequence[str], device: str | None, format: str, into: Path | None) -> None:
    """On GPUs that need not be here."""
    from rich.console import Console

    from attnbench.analysis.backends import support_matrix as shown
    from attnbench.run import support as pure

    one_of("--format", format, shown.FORMATS)
    if into:
        shown.put_into(into)
        print(f"{into}: the support matrix by architecture, and by feature on {shown.DOCUMENTED}")
        return
    devices = [pure.named_device(name) for text in gpus for name in text.split(",")]
    if device is not None:
        from attnbench.run.device_probe import probe_device
        from attnbench.run.select import parse_device

        devices.append(probe_device(parse_device(device)).device)
    found = [pure.support_matrix(d) for d in devices]
    if format == "table":
        shown.render(Console(highlight=False), found)
    else:
        print(shown.WRITERS[format](found), end="")
