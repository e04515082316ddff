"""`attnbench claims`: measure published figures again, or judge them by run files. Heavy imports stay inside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import measured, read_runs, words
from attnbench.core.errors import UserError
from attnbench.render.document import with_damage

which = options.Panel("Which claims")


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.WholeRun):
    """The options of `attnbench claims`."""

    results: list[Path] | None = options.argument(
        "RUN|DIR", "Run files to judge by, of one GPU or several; without any it measures.", None
    )
    paper: list[str] | None = which(
        "NAMES",
        "Sources: names or patterns (--list shows them), or YAML files of your own. Default: all.",
        autocompletion=complete.several(complete.papers),
    )
    gpu: list[str] | None = which("NAMES", "Only claims about GPUs with one of these in their names: h100.")
    backend: list[str] | None = options.backend("Only claims about these backends: names or patterns.", which)
    listed: bool = which.flag("List the claims; measure nothing.", "--list")
    sustained: str = options.how(
        "TIME", "Measure each cell this long without pauses too, as papers may have done; 0: do not.", "1s"
    )


@options.command
def claims(given: Options) -> None:
    """Measure what papers and vendors print: reproduced, not reproduced (by how much), or cannot be tried here (why).

    An absolute figure is judged only on the GPU model for which it was printed, a ratio of two backends on any GPU; a
    claim that cannot be judged on this GPU is not measured. Settings are as printed: batch, heads, dtype, FLOPs
    convention. A claim is a few lines of YAML: docs/claims.md.

    attnbench claims
    attnbench claims --list
    attnbench claims --paper fa3,cudnn
    attnbench claims --gpu h100 -b fa3,sdpa-cudnn --time-limit 5m
    attnbench claims h100.jsonl h200.jsonl --html claims.html

    Exit code 0: done, whatever the verdicts; 1: nothing could be tried; 2: bad input, or output that cannot be written;
    5: a wrong result, unless --allow-wrong is given; 129, 130, 143: hung up, interrupted, terminated.
    """
    wanted = given.wanted()
    if given.results and given.listed:
        raise UserError("--list shows claims, and run files judge them; leave out one of the two")
    if given.results or given.listed:
        given.refuse_measuring("sustained", where="with run files or --list")

    from attnbench.analysis.claims.claim_file import load, selected, suite_of
    from attnbench.analysis.claims.document import document, listing
    from attnbench.analysis.claims.findings import gpu_of

    claimed = selected(load(words(given.paper)), words(given.gpu), words(given.backend))
    if given.listed:
        raise typer.Exit(output.write(listing(claimed), wanted))
    if given.results:
        read, damage = read_runs(given.results)
        shown = with_damage(document(claimed, [run for _, run in read]), damage)
        raise typer.Exit(output.write(shown, wanted))

    from attnbench.analysis.report import planned
    from attnbench.core.sizes import parse_duration
    from attnbench.run.run_suite import Request

    seconds = 0.0 if given.sustained == "0" else parse_duration(given.sustained, "--sustained")
    settings = options.settings(given, backends=None)
    request = options.request(
        Request,
        given,
        suite=suite_of(claimed, seconds),
        suite_for=lambda device: suite_of(claimed, seconds, gpu_of(device)),
        settings=settings,
    )
    outcome = measured(request, "claims")
    shown = planned.document(outcome.run) if given.dry_run else document(claimed, [outcome.run])
    code = output.write(shown, wanted)
    raise typer.Exit(outcome.gravest or code)
