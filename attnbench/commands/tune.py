"""`attnbench tune`: measures which backend to use for which shapes, for programs to load. Heavy imports stay inside."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnbench.commands import complete, options, output
from attnbench.commands.shared import command_line, measured, read_runs, with_latencies
from attnbench.core.axes import AXES
from attnbench.core.errors import UserError
from attnbench.core.models import PHASES
from attnbench.render.document import with_damage

if TYPE_CHECKING:
    from attnbench.core.case import Case
    from attnbench.core.record import Run
    from attnbench.render.document import Document
    from attnbench.run.run_suite import Request
    from attnbench.run.suite import Settings


HELPS = {name: "" for name, axis in AXES.items() if axis.has_option} | {
    "seqlen": "Sequence lengths: 1k-64k (powers of two), 1k,3000,8k (a list). Default: four times apart, from 512 on.",
    "causal": "--causal: causal masks (default); --full: full masks.",
    "direction": "fwd,bwd,fwd_bwd: forward (default), backward, or both timed as one.",
    "batch": "Batch sizes. Default: 1, and larger ones at lengths with no more tokens than the grid's longest.",
}
CHOOSING = ("model", "phase", "tp", "suite", "backend", "axes", "tokens", "bits")  # fields of options


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.WholeRun, options.WhichModel, options.WhatToMeasure):
    """The options of `attnbench tune`."""

    results: list[Path] | None = options.argument(
        "RUN|DIR", "Run files of one machine, or one choice file, to show and to write; nothing is measured.", None
    )
    format: list[str] | None = output.formats(
        "table (default), md, html, json, csv; choice=FILE.json: the choice file; module=FILE.py: a module that calls "
        "the backends. Several may be given, all but one to a file."
    )
    suite: str | None = options.shape(  # type: ignore[assignment]
        "NAME|FILE",
        "Shapes in place of the grid: a shipped suite, your own (YAML), or workloads of flashinfer-trace (JSONL).",
        autocompletion=complete.one(complete.suites),
    )
    axes: Mapping[str, Any] = options.axes(helps=HELPS)
    phase: str | None = options.shape(
        "NAMES",
        "With --model: prefill, decode (dense and over pages), mixed, train. Default: prefill, decode and train.",
        autocompletion=complete.several(PHASES),
    )
    tokens: str | None = options.shape("SIZE", "Refused: tune has batches of its own.", hidden=True)
    bits: str | None = options.bits()
    vary_in_training: bool = options.how.flag(
        "Let a training run change its backend with the shape, which changes its rounding.",
        "--vary-in-training/--one-for-training",
    )
    time_limit: str | None = options.how("TIME", "Stop after this time; --resume goes on.", "10m")
    resume: Path | None = options.files("FILE", "Go on with a run of this command: measure what it lacks, and refine.")
    trust: bool = options.trust()


@options.command
def tune(given: Options) -> None:
    """Find which backend to use for which shapes: measure a grid, refine where the winner changes, write the choice.

    Lengths are halved between neighbours of unlike choice, until each border is known to a factor of 1.2. A model has
    its phases prefill, decode and train; other shapes are the product of the options. A program can load the choice: as
    a file (JSON), as a module without attnbench, as the names that engines take. docs/tune.md

    attnbench tune --model llama-3.1-8b -f module=attention_choice.py
    attnbench tune --model wan-2.1-t2v-14b --phase prefill -f choice=choice.json
    attnbench tune --seqlen 512-16k --batch 1,8 --nheads 32 --nheads-k 8 --headdim 128 --causal --pass fwd,bwd
    attnbench tune --suite my_shapes.yaml --time-limit 5m
    attnbench tune --resume results/20261130-113119-tune-nvidia-h200.jsonl
    attnbench tune results/20261130-113119-tune-nvidia-h200.jsonl.gz -f module=attention_choice.py

    Exit code 0: done; 1: nothing can be chosen; 2: bad input, or output that cannot be written; 5: a wrong result,
    unless --allow-wrong is given; 129, 130, 143: hung up, interrupted, terminated.
    """
    wanted = given.wanted((*output.FORMATS, *output.CHOICES))
    from attnbench.analysis.choose.document import Choices
    from attnbench.analysis.recommend.asked_for import competing, parse_bits
    from attnbench.results.cells import cells as cells_of

    bits = parse_bits(given.bits)
    name = module_name(wanted)
    if given.tokens:
        raise UserError("--tokens: tune has batches of its own; give --batch")
    if shown := of_choice_file(given, wanted, "vary_in_training", "resume", "trust"):
        raise typer.Exit(output.write(shown, wanted))
    if given.results:
        given.refuse_measuring("model", "phase", "tp", "suite", "axes", "tokens", "resume", "trust")
        read, damage = read_runs(given.results)
        cells = cells_of(with_latencies([run for _, run in read]), by_machine=True)
        choices = Choices(cells, competing(given.backend, cells), bits, given.vary_in_training, name)
        shown = with_damage(choices.document(), damage)
        raise typer.Exit(output.write(shown, wanted, choices.writers(command_line(outputs=True))))
    if given.dry_run and (named := [name for name, _ in wanted if name in output.CHOICES]):
        raise UserError(f"--format {named[0]}: a dry run measures nothing to choose from; leave it out")
    if given.resume:
        bits = _bits_of(given.resume, bits)
    settings = options.settings(given, **({"policy": {"bitwise": True}} if bits and not given.resume else {}))
    outcome = measured(replace(_request(given, settings, bits), check=plan_check(wanted)))
    if given.dry_run:
        from attnbench.analysis.report import planned

        raise typer.Exit(output.write(planned.document(outcome.run), wanted))
    choices = Choices(cells_of([outcome.run], by_machine=True), bits=bits, vary=given.vary_in_training, name=name)
    shown, writers = choices.document(outcome.path), choices.writers(command_line(outputs=True))
    code = output.write(shown, wanted, writers)
    raise typer.Exit(outcome.exit_code or code)


def module_name(wanted: output.Wanted) -> str:
    """Return the name of the module that is to be written, or the usual one.

    Raises UserError where Python could not import it, and where it would hide a library.
    """
    from attnbench.analysis.choose.module import NAME

    found = NAME
    for form, path in wanted:
        if form == "module" and path:
            from attnbench.run.shipped_backends import modules_to_paste

            if not path.stem.isidentifier() or keyword.iskeyword(path.stem) or path.suffix != ".py":
                raise UserError(
                    f"--format module={path}: Python imports no file of this name; give attention_choice.py"
                )
            if path.stem in sys.stdlib_module_names or path.stem in modules_to_paste():
                raise UserError(
                    f"--format module={path}: it would hide the library {path.stem}; give attention_choice.py"
                )
            found = path.stem
    return found


def plan_check(wanted: output.Wanted) -> Callable[[Run], object] | None:
    """Return a check that refuses a planned run of which a module could call no backend; None without a module."""
    from attnbench.analysis.choose.module import check_plan

    return check_plan if any(name == "module" for name, _ in wanted) else None


def of_choice_file(given: Any, wanted: output.Wanted, *more: str) -> Document | None:
    """Return what the choice file among the given options says; None where that is none.

    Raises UserError for options that choose or measure (`more` are such fields of the command), for formats that need
    run files, and for a damaged file.
    """
    from attnbench.analysis.choose import choice_file

    paths = given.results
    if not paths or len(paths) > 1 or not choice_file.is_choice_file(paths[0]):
        return None
    given.refuse_measuring(*CHOOSING, *more, where="with a choice file")
    if others := [name for name, _ in wanted if name in output.CHOICES]:
        raise UserError(f"--format {others[0]}: {paths[0]} is a choice file; give the run files that it was made from")
    from attnbench.analysis.choose.document import of_file

    return of_file(choice_file.read(paths[0]))


def _bits_of(path: Path, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the bits that a run was measured for. Raises UserError where others are given."""
    from attnbench.analysis.recommend.asked_for import parse_bits
    from attnbench.results import run_file

    stored = ",".join(run_file.head(path).bits).replace("_", "-")
    bits = parse_bits(stored)
    if given and {*given} != {*bits}:
        raise UserError(f"--bits: {path} was measured {f'for {stored}' if stored else 'without it'}; leave it out")
    return bits


def _request(given: Options, settings: Settings, bits: tuple[str, ...]) -> Request:
    from attnbench.analysis.choose.refine import further_cases
    from attnbench.run import run_suite as runs
    from attnbench.run.suite import load_suite
    from attnbench.run.tune import NAME, tune_suite, without_model

    def further(run: Run) -> Mapping[Case, Sequence[str]]:
        return further_cases(run, bits, given.vary_in_training)

    def request(**more: Any) -> Request:
        return options.request(runs.Request, given, **{"settings": settings, "bits": bits, "further": further, **more})

    if given.resume:
        if given.rounds != 1:
            raise UserError(f"--rounds: attnbench run --resume {given.resume} adds rounds")
        return request(suite=None)
    if given.suite:
        suite = load_suite(given.suite).model_copy(update={"name": NAME})
        return request(suite=suite)
    grid = partial(tune_suite, settings, variants="deterministic" in bits)
    return request(settings=without_model(settings), suite=grid("cuda"), suite_for=lambda device: grid(device.kind))
