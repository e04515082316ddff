"""`attnbench run`: measure, show the results, and say how to go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnbench.commands import options, output
from attnbench.commands.shared import jobs_left, live, results_line
from attnbench.core.errors import EXIT_BY_SIGNAL, EXIT_WRONG_RESULT

if TYPE_CHECKING:
    from attnbench.render.console import Console
    from attnbench.run.run_suite import Outcome

instruments = options.Panel("Instruments", 3)


@dataclass(frozen=True, kw_only=True)
class Options(output.Output, options.WholeRun, options.WhichModel, options.WhatToMeasure):
    """The options of `attnbench run`."""

    time_limit: str | None = options.how(
        "TIME",
        "Stop after this time, as in 90s, 10m or 1h30m. Cases that do not fit are left out whole: the most costly, "
        "which --resume measures later; on a CPU the longest sequences.",
    )
    rounds: int = options.how(
        "N",
        "Measure everything N times, each time in new processes. With --resume: N times in all, so that a finished run "
        "gets more rounds.",
        1,
    )
    timeout: str | None = options.how(
        "TIME", "Stop a job after this time or after 5 times its forecast, whichever is longer. Default: 2m."
    )
    max_seconds: str | None = options.how(
        "TIME", "Most time spent sampling a cell, once it has --min-samples. Default: 0.2s, or the suite's."
    )
    min_samples: int | None = options.how(
        "N",
        "Fewest samples of a cell. Default: 10. Slow calls need fewer: 60 % of N for calls of 5 to 15 ms if the "
        "samples agree, at most 6 above 15 ms, at most 3 above 50 ms.",
    )
    warmup: str | None = options.how("TIME", "Least time of calls before the first sample. Default: 0.015s.")
    fresh_caches: bool = options.how.flag(
        "Measure each cell in a new process with empty compile caches, so that each first call compiles."
    )
    seed: int | None = options.seed()
    peak: list[str] | None = options.how(
        "DTYPE=TFLOPS", "The datasheet peak of a GPU that attnbench does not know, as in bf16=989."
    )
    trust: bool = options.trust()
    timer: str | None = instruments(
        "NAME",
        "events (default): CUDA events around each call. graph: replays of a CUDA graph. cupti: the time in which "
        "kernels ran.",
    )
    l2: str | None = instruments("STATE", "The L2 cache before each sample: cold (default, flushed) or warm.")
    cross_check: bool = instruments.flag("Measure a quarter of the cells with all three timers, and compare these.")
    sustained: str | None = instruments(
        "TIME", "Measure each cell also without pauses, for example for 10s, until power and clock are steady."
    )
    bitwise: bool = options.how.flag(
        "Compare each cell's results also bit by bit: over 8 launches, with another process, and of one sequence with "
        "and without its batch. Takes one more process of each backend."
    )
    untrusted: bool = options.untrusted()
    isolate_power: bool = instruments.flag("Wait before each cell until clock and power have recovered.")
    resume: Path | None = options.files(
        "FILE",
        "Measure what this run file lacks, with its options except the time limit. --rounds N adds rounds.",
    )
    again: list[int] | None = options.files(
        "ROUND", "With --resume: measure this round anew, when gate says that it was disturbed. Repeatable."
    )

    @property
    def policy(self) -> dict[str, Any]:
        """The fields of a policy that these options replace, for run.suite.parse_options."""
        return {
            "seed": self.seed,
            "timer": self.timer,
            "l2": self.l2,
            "cross_check": 0.25 if self.cross_check else None,
            "sustained_s": self.sustained,
            "timeout_s": self.timeout,
            "max_seconds": self.max_seconds,
            "min_samples": self.min_samples,
            "warmup_s": self.warmup,
            "isolate_power": self.isolate_power or None,
            "bitwise": self.bitwise or None,
            "untrusted": self.untrusted or None,
            "caches": "fresh" if self.fresh_caches else None,
        }


@options.command
def run(given: Options) -> None:
    """Measure every attention implementation that works here, over your shapes; save the figures and show them.

    attnbench run --seqlen 1k-64k
    attnbench run -b 'sdpa-*' -b '!sdpa-math' --headdim 128 --causal --pass fwd
    attnbench run -b ./mine.py:my_attention,sdpa-flash --nheads 8 --nheads-k 2
    attnbench run --causal --window none,1k --softcap none,30 --seqlen 8k
    attnbench run --model llama-3.1-8b,gemma-2-9b --tp 2 --phase decode --batch 32 --seqlen 4k
    attnbench run --suite flash-paper --time-limit 5m --dry-run
    attnbench run --suite quick --cross-check --sustained 10s

    Exit code 0: done; 1: nothing could be measured; 2: bad input, or output that cannot be written; 5: a wrong result,
    unless --allow-wrong is given; 129, 130, 143: hung up, interrupted, terminated (--resume goes on).
    """
    wanted = given.wanted()
    from attnbench.render.progress.run_progress import RunProgress
    from attnbench.run import run_suite as runs

    settings = options.settings(given, policy=given.policy)
    request = options.request(runs.Request, given, settings=settings)
    with live(RunProgress, "anything was measured") as progress:
        outcome = runs.run_suite(request, progress)
    if given.dry_run:
        from attnbench.analysis.report import planned

        raise typer.Exit(output.write(planned.document(outcome.run), wanted))
    from attnbench.analysis.report.document import complete, document
    from attnbench.render.console import Console
    from attnbench.results.cells import cells as cells_of

    cells, formats = cells_of([outcome.run]), {name for name, _ in wanted}
    printed = next(name for name, file in wanted if not file)
    console = Console(stderr=printed != "table", highlight=False)
    if printed == "table":
        console.print()
    measured, paths = [outcome.run], [outcome.path or Path("run.jsonl")]
    shown = complete(document(cells, measured, files=paths), formats, cells, measured, paths)
    code = output.write(replace(shown, exit_code=outcome.exit_code), wanted)
    _epilogue(console, outcome)
    raise typer.Exit(code)


def _epilogue(console: Console, outcome: Outcome) -> None:
    """Print the forecast's error, where the results are, how to measure the jobs left, and the wrong results."""
    from attnbench.analysis.report.planned import forecast_line
    from attnbench.core.text import count, printable, some
    from attnbench.results.case_names import case_name
    from attnbench.results.exit_codes import given_up, wrong_records
    from attnbench.results.run_file import resume_command

    console.print()
    if line := forecast_line(outcome.run):
        console.print(printable(line), markup=False, style="dim")
    console.print(printable(results_line(outcome.path)), markup=False, soft_wrap=True)
    if left := jobs_left(outcome.run):
        if outcome.exit_code in EXIT_BY_SIGNAL:
            console.print(f"Interrupted; what was measured is kept. Go on with the {left}:")
        else:
            console.print(f"{left}, beyond the time limit. To measure them:")
        console.print(printable(f"  {resume_command(outcome.run, outcome.path)}"), markup=False, soft_wrap=True)
    if untried := given_up(outcome.run):
        what = f"GIVEN UP: {some(untried)}, whose processes died again and again while they started; "
        what += f"{count(sum(untried.values()), 'job')} not tried."
        console.print(printable(what), markup=False, soft_wrap=True, style="red")
    if wrong := wrong_records(outcome.run):
        several = len({record.case.dtype for record in outcome.run.records}) > 1
        names = dict.fromkeys(case_name(record.backend, record.case, several) for record in wrong)
        what = f"WRONG: {count(len(wrong), 'result')}, {some(names)}."
        if outcome.exit_code == EXIT_WRONG_RESULT:
            what += f" Exit code {EXIT_WRONG_RESULT}; --allow-wrong gives 0."
        console.print(printable(what), markup=False, soft_wrap=True, style="red")
