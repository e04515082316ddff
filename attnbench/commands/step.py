"""`attnbench step`: a step of a whole model, by implementation of its attention. Heavy imports stay inside."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import measured, read_runs, words
from attnbench.core.errors import UserError, one_of
from attnbench.core.files import RUN_FILES
from attnbench.core.step import PHASES
from attnbench.render.document import with_damage

which = options.Panel("Which step")


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.WholeRun):
    """The options of `attnbench step`."""

    models: list[str] = options.argument(
        "MODEL|RUN|DIR",
        "Models to build: llama-3.1-8b, llama-3.1-70b, mistral-7b, qwen3-8b, gemma-2-9b, gpt-oss-20b, deepseek-v3, "
        "tiny. Or run files of steps, or folders of them, to show them again.",
        autocompletion=complete.one(complete.step_models),
    )
    phase: str = which(
        "NAMES",
        "prefill (all tokens, logits of the last), decode (one token after the others), train (forward, loss, "
        "backward; no optimiser).",
        "prefill",
        autocompletion=complete.several(PHASES),
    )
    seqlen: str = which("SIZES", "Tokens of a sequence: 4k or 1k,8k; in decode the tokens seen.", "4k")
    batch: str = which("SIZES", "Sequences.", "1")
    layers: int | None = which(
        "N", "Layers to keep. Default: as many as 8 GB of weights have, at least one of each kind."
    )
    dtype: str = which("NAMES", "bf16,fp16,fp32.", "bf16", autocompletion=complete.several(("bf16", "fp16", "fp32")))
    backend: list[str] | None = which(
        "NAMES",
        "Implementations: eager, sdpa, sdpa-math, sdpa-efficient, sdpa-flash, sdpa-cudnn, flash_attention_2, "
        "flash_attention_3, flash_attention_4, flex_attention, or patterns. Default: all that work here.",
        None,
        "--backend",
        "-b",
        autocompletion=complete.several(complete.step_backends),
    )


@options.command
def step(given: Options) -> None:
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
    wanted = given.wanted()
    runs = [Path(name) for name in given.models if _is_of_runs(name)]
    if runs:
        if len(runs) < len(given.models):
            raise UserError("models: for measuring; with run files nothing is measured")
        given.refuse_measuring("phase", "seqlen", "batch", "layers", "dtype", "backend")

    from attnbench.analysis.step.document import document

    if runs:
        read, damage = read_runs(runs)
        raise typer.Exit(output.write(with_damage(document([run for _, run in read]), damage), wanted))

    from attnbench.analysis.report import planned
    from attnbench.backends import STEPS
    from attnbench.run.run_suite import Request
    from attnbench.run.step_axes import step_blocks
    from attnbench.run.suite import Suite

    phases = [one_of("--phase", name, PHASES) for name in dict.fromkeys(words([given.phase]))]
    models = [name.lower() for name in given.models]
    blocks = step_blocks(models, phases, given.seqlen, given.batch, given.dtype, given.layers)
    backends = _backends(given.backend) if given.backend else None
    settings = options.settings(given, backends=backends, phase=None)
    suite = Suite(name="step", backends=[*STEPS], cases=blocks)
    outcome = measured(options.request(Request, given, suite=suite, settings=settings), "step")
    code = output.write(planned.document(outcome.run) if given.dry_run else document([outcome.run]), wanted)
    raise typer.Exit(outcome.gravest or code)


def _is_of_runs(name: str) -> bool:
    """Return whether an argument is a run file or a folder, not a model."""
    from attnbench.core.models import MODELS, TINY

    return name.endswith(RUN_FILES) or (Path(name).is_dir() and name.lower() not in (*MODELS, TINY.name))


def _backends(given: Sequence[str]) -> list[str]:
    """Return the backends of names and patterns of implementations; own code and `fake` stay as they are."""
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
