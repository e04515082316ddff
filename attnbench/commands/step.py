"""`attnbench step`: a step of a whole model, by implementation of its attention. Heavy imports stay inside."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import (
    command_line,
    measured,
    one_of,
    read_runs,
    words,
)
from attnbench.core.errors import UserError
from attnbench.core.files import RUN_FILES
from attnbench.core.step import PHASES
from attnbench.core.text import listed

if TYPE_CHECKING:
    from attnbench.run.run_suite import Outcome
    from attnbench.run.suite import Suite

what = partial(typer.Option, rich_help_panel="Which step")


@options.grouped
def step(
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|RUN|DIR",
            help="Models to build: llama-3.1-8b, mistral-7b, qwen3-8b, gemma-2-9b, gpt-oss-20b, deepseek-v3, tiny. Or "
            "run files of steps, or folders of them, to show them again.",
            autocompletion=complete.one(complete.step_models),
        ),
    ],
    phase: Annotated[
        str,
        what(
            metavar="NAMES",
            help="prefill (all tokens, logits of the last), decode (one token after the others), train (forward, loss, "
            "backward; no optimiser).",
            autocompletion=complete.several(PHASES),
        ),
    ] = "prefill",
    seqlen: Annotated[
        str, what(metavar="SIZES", help="Tokens of a sequence: 4k or 1k,8k; in decode those seen.")
    ] = "4k",
    batch: Annotated[str, what(metavar="SIZES", help="Sequences.")] = "1",
    layers: Annotated[
        int | None,
        what(metavar="N", help="Layers to keep. Default: as many as 8 GB of weights have, at least one of each kind."),
    ] = None,
    dtype: Annotated[
        str, what(metavar="NAMES", help="bf16,fp16,fp32.", autocompletion=complete.several(("bf16", "fp16", "fp32")))
    ] = "bf16",
    backend: Annotated[
        list[str] | None,
        what(
            "--backend",
            "-b",
            metavar="NAMES",
            help="Implementations: eager, sdpa, sdpa-math, sdpa-efficient, sdpa-flash, sdpa-cudnn, flash_attention_2, "
            "flash_attention_3, flash_attention_4, flex_attention, or patterns. Default: all that work here.",
            autocompletion=complete.several(complete.step_backends),
        ),
    ] = None,
    device: options.Device = "auto",
    time_limit: options.TimeLimit = None,
    rounds: options.Rounds = 1,
    python: options.Python = None,
    allow_wrong: options.AllowWrong = False,
    allow_busy: options.AllowBusy = False,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    output_to: output.Output,
) -> None:
    """Measure a step of a whole model with each attention of Hugging Face transformers: what a faster kernel is worth.

    The model is built from published sizes with random weights; nothing is downloaded. Shown are the step, tokens/s,
    model FLOP/s utilisation, memory, the share of attention by a trace, and the gain that it predicts: docs/step.md.

    attnbench step llama-3.1-8b
    attnbench step llama-3.1-8b mistral-7b --phase prefill,train --seqlen 8k
    attnbench step deepseek-v3 --layers 3 -b eager,sdpa,flash_attention_2 --dry-run
    attnbench step tiny --seqlen 512 --device cpu --json

    Exit code 0: done; 1: nothing was measured; 2: bad input, or output that cannot be written; 5: a wrong result,
    unless --allow-wrong is given; 129, 130, 143: hung up, interrupted, terminated.
    """
    wanted = output_to.wanted()
    runs = [Path(name) for name in models if _is_of_runs(name)]
    given = {"--out": out, "--python": python, "--time-limit": time_limit, "--dry-run": dry_run, "--layers": layers}
    given |= {
        "--rounds": rounds != 1,
        "--device": device != "auto",
        "--backend": backend,
        "--phase": phase != "prefill",
        "--allow-busy": allow_busy,
    }
    given |= {"--seqlen": seqlen != "4k", "--batch": batch != "1", "--dtype": dtype != "bf16"}
    given |= {"--allow-wrong": allow_wrong}
    if runs and (len(runs) < len(models) or (measuring := [option for option, value in given.items() if value])):
        also = "models" if len(runs) < len(models) else listed(measuring)
        raise UserError(f"{also}: of measuring; with run files nothing is measured")

    from attnbench.analysis.step.document import document

    outcome = None
    if not runs:
        suite = _suite(models, phase, seqlen, batch, dtype, layers)
        names = _backends(backend) if backend else None
        outcome = _measured(suite, names, time_limit, device, rounds, python, out, dry_run, allow_wrong, allow_busy)
        if dry_run:
            from attnbench.analysis.report import planned

            raise typer.Exit(output.write(planned.document(outcome.run), wanted))
    found = [outcome.run] if outcome else [run for _, run in read_runs(runs)]
    code = output.write(document(found), wanted)
    raise typer.Exit((outcome and outcome.gravest) or code)


def _is_of_runs(name: str) -> bool:
    """Return whether an argument is a run file or a folder, and no model."""
    from attnbench.core.models import MODELS, TINY

    return name.endswith(RUN_FILES) or (Path(name).is_dir() and name.lower() not in (*MODELS, TINY.name))


def _suite(models: Sequence[str], phase: str, seqlen: str, batch: str, dtype: str, layers: int | None) -> Suite:
    """Return the suite of some steps. Raises UserError."""
    from attnbench.backends import STEPS
    from attnbench.run.step_axes import step_blocks
    from attnbench.run.suite import Suite

    phases = [one_of("--phase", name, PHASES) for name in dict.fromkeys(words([phase]))]
    blocks = step_blocks([name.lower() for name in models], phases, seqlen, batch, dtype, layers)
    return Suite(name="step", backends=[*STEPS], cases=blocks)


def _backends(given: Sequence[str]) -> list[str]:
    """Return the backends of some names and patterns of implementations; own code and `fake` as they are."""
    from attnbench.backends import STEPS

    found: list[str] = []
    for word in words(given):
        bare = word.removeprefix("!")
        named = [] if ":" in word or word == "fake" else fnmatch.filter(STEPS, f"step-{bare.removeprefix('step-')}")
        if not named and bare != "fake" and ":" not in word:
            one_of("--backend", bare, [name.removeprefix("step-") for name in STEPS])
        if word.startswith("!"):
            found = [name for name in found or STEPS if name not in named]
        else:
            found += named or [word]
    return list(dict.fromkeys(found))


def _measured(
    suite: Suite,
    backends: Sequence[str] | None,
    time_limit: str | None,
    device: str,
    rounds: int,
    python: Sequence[str] | None,
    out: Path | None,
    dry_run: bool,
    allow_wrong: bool,
    allow_busy: bool,
) -> Outcome:
    """Measure steps; stderr says what goes on, which file it wrote, and what is left."""
    from attnbench.core.sizes import parse_duration
    from attnbench.run.run_suite import Request
    from attnbench.run.suite import parse_options

    if time_limit:
        parse_duration(time_limit, "--time-limit")
    request = Request(
        suite,
        parse_options({"time_limit": time_limit, "backends": ",".join(backends) if backends else None}),
        device,
        rounds,
        out,
        dry_run=dry_run,
        pythons=tuple(python or ()),
        allow_wrong=allow_wrong,
        allow_busy=allow_busy,
        argv=command_line(),
    )
    return measured(request, "step")
