"""The command line: parse, call one function, print. All the tool at a glance; no logic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import __version__
from attnbench.errors import EXIT_BAD_INPUT, EXIT_TERMINATED, Terminated, UserError

app = typer.Typer(
    name="attnbench",
    help="Measures attention kernels: speed, memory, and how close they come to the hardware's limit.",
    epilog="First steps: attnbench run --suite quick; attnbench backends; attnbench report results/*.jsonl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Text = str | None


def _version(asked: bool) -> None:
    if asked:
        print(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    suite: Annotated[str, typer.Option(help="A shipped suite (see `attnbench suites`) or a YAML file.")] = "default",
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            help="Names, globs (sdpa-*), !name to leave one out, or your own code: pkg.mod:obj, ./file.py:function.",
        ),
    ] = None,
    seqlen: Annotated[
        Text, typer.Option(help="1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); k = 1024.")
    ] = None,
    headdim: Annotated[Text, typer.Option(help="64,128,192-128 (qk-v where they differ).")] = None,
    dtype: Annotated[Text, typer.Option(help="bf16,fp16,fp32.")] = None,
    causal: Annotated[bool | None, typer.Option("--causal/--full", help="One mask only; default both.")] = None,
    direction: Annotated[Text, typer.Option("--pass", help="fwd,bwd,fwd_bwd.")] = None,
    batch: Annotated[Text, typer.Option(help="Batch sizes.")] = None,
    tokens: Annotated[Text, typer.Option(help="Batch = tokens / seqlen (default 16k).")] = None,
    nheads: Annotated[Text, typer.Option(help="Query heads (default 2048 / headdim).")] = None,
    nheads_k: Annotated[Text, typer.Option(help="Key and value heads: fewer is GQA, 1 is MQA.")] = None,
    seqlen_q: Annotated[Text, typer.Option(help="Query length where it differs: cross attention, decode.")] = None,
    device: Annotated[str, typer.Option(help="auto, cuda:N, cpu (or fake, a simulated one).")] = "auto",
    time_limit: Annotated[
        Text, typer.Option(help="Leave out the dearest jobs so that the run ends within it: 90s, 10m, 1h.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="The whole plan again in fresh processes.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of inputs and order.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run file (default: a new one in results/).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Measure what this run file lacks.")] = None,
    python: Annotated[
        list[str] | None, typer.Option("--python", help="NAME=PATH: the interpreter of a backend's worker.")
    ] = None,
    peak: Annotated[
        list[str] | None, typer.Option("--peak", help="bf16=989: peak TFLOP/s of a GPU that is not known.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The plan and its forecast; nothing is measured.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The results (or the plan) as JSON on stdout.")] = False,
) -> None:
    """Measure. One command gives every attention implementation that works here, over your shapes.

    Examples: attnbench run --seqlen 1k-64k; attnbench run -b triton,sdpa-* --headdim 128 --causal --pass fwd;
    attnbench run -b ./my_kernel.py:my_attention -b sdpa-flash --nheads 32 --nheads-k 8; attnbench run --dry-run
    """
    from attnbench import commands

    options = {
        "axes": {
            "seqlen": seqlen,
            "seqlen_q": seqlen_q,
            "headdim": headdim,
            "dtype": dtype,
            "causal": causal,
            "pass": direction,
            "batch": batch,
            "nheads": nheads,
            "nheads_k": nheads_k,
        },
        "tokens": tokens,
        "backends": backend,
        "time_limit": time_limit,
        "policy": {} if seed is None else {"seed": seed},
    }
    rest: dict[str, Any] = {"device": device, "rounds": rounds, "out": out, "resume": resume, "dry_run": dry_run}
    raise typer.Exit(
        commands.run(suite, options, pythons=tuple(python or ()), peak=tuple(peak or ()), json=json, **rest)
    )


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Run files (results/*.jsonl).")],
    format: Annotated[str, typer.Option("--format", "-f", help="table, md, csv or json.")] = "table",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="tflops, latency, memory_peak, ...; see --metric help."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="The columns: backend, headdim, dtype, causal, direction, batch, ...")
    ] = "backend",
    flops_convention: Annotated[
        str, typer.Option(help="exact (unmasked pairs) or fa (papers: flat half for causal).")
    ] = "exact",
) -> None:
    """Show results that were measured before, anywhere; needs no GPU.

    Examples: attnbench report results/*.jsonl; attnbench report -m latency -m memory_peak run.jsonl;
    attnbench report -f csv run.jsonl > run.csv
    """
    from attnbench import commands

    raise typer.Exit(commands.report(results, format, metric or ["tflops"], by, flops_convention))


@app.command()
def backends(
    python: Annotated[
        list[str] | None, typer.Option("--python", help="NAME=PATH: the interpreter of a backend's worker.")
    ] = None,
) -> None:
    """List the attention implementations: version, or why one cannot be used here and what would install it."""
    from attnbench import commands

    raise typer.Exit(commands.backends(python or []))


@app.command()
def suites(name: Annotated[str | None, typer.Argument(help="Show this suite's YAML.")] = None) -> None:
    """List the suites that ship with attnbench, or show one: copy it, change it, run it with --suite FILE."""
    from attnbench import commands

    raise typer.Exit(commands.suites(name))


def main() -> None:
    """The entry point: errors a person can cause are one line and exit code 2."""
    try:
        app()
    except UserError as error:
        print(f"attnbench: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Terminated:
        sys.exit(EXIT_TERMINATED)


if __name__ == "__main__":
    main()
