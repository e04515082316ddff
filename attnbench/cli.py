"""The command line: parse, call one function, print. All the tool at a glance; no logic."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import __version__
from attnbench.ab.command import ab, with_axes_of
from attnbench.baseline.command import app as baseline
from attnbench.compare.command import compare
from attnbench.errors import EXIT_BAD_INPUT, EXIT_TERMINATED, Terminated, UserError
from attnbench.gate.command import gate

app = typer.Typer(
    name="attnbench",
    help="Measures attention kernels: speed, memory, and how close they come to the hardware's limit.",
    epilog="First steps: `attnbench run --suite quick`, then `attnbench report` on the file it names. "
    "Without a GPU too; `attnbench run --device fake` only tries the tool out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Text = str | None
shape = partial(typer.Option, rich_help_panel="What to measure (lists multiply; each replaces the suite's)")
how = partial(typer.Option, rich_help_panel="How")
instruments = partial(typer.Option, rich_help_panel="Instruments")
one = partial(typer.Option, rich_help_panel="The case (one value each)")
files = partial(typer.Option, rich_help_panel="Files and output")
supports = partial(typer.Option, rich_help_panel="The support matrix")


AXES = (
    "seqlen",
    "seqlen_q",
    "headdim",
    "dtype",
    "causal",
    "pass",
    "batch",
    "nheads",
    "nheads_k",
    "window",
    "softcap",
    "dropout",
)


def _axes(*given: Any) -> dict[str, Any]:
    """The options that choose cases, by the names that a suite's YAML gives them; None where not given."""
    return dict(zip(AXES, given, strict=True))


def _version(asked: bool) -> None:
    if asked:
        print(f"attnbench {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    suite: Annotated[
        str, shape(metavar="NAME|FILE", help="A shipped suite (attnbench suites lists them) or a YAML file.")
    ] = "default",
    backend: Annotated[
        list[str] | None,
        shape(
            "--backend",
            "-b",
            metavar="NAMES",
            help="Names, globs (sdpa-*), !name to leave one out; your own code: ./file.py:function, pkg.mod:object.",
        ),
    ] = None,
    seqlen: Annotated[
        Text,
        shape(metavar="SIZES", help="1k-64k (powers of two), 1k,3000,8k (a list), 1k-8k:1k (with a step); k = 1024."),
    ] = None,
    seqlen_q: Annotated[
        Text, shape(metavar="SIZES", help="Query length where it differs: 1 for decode, others for cross attention.")
    ] = None,
    headdim: Annotated[
        Text, shape(metavar="SIZES", help="64,128 or 192-128 (queries and keys 192, values 128).")
    ] = None,
    dtype: Annotated[Text, shape(metavar="NAMES", help="bf16,fp16,fp32,fp8 (forward only).")] = None,
    causal: Annotated[bool | None, shape("--causal/--full", metavar="", help="One mask only; both by default.")] = None,
    direction: Annotated[Text, shape("--pass", metavar="NAMES", help="fwd,bwd,fwd_bwd.")] = None,
    batch: Annotated[Text, shape(metavar="SIZES", help="Batch sizes, in place of --tokens.")] = None,
    tokens: Annotated[Text, shape(metavar="SIZE", help="Batch = tokens / seqlen. 16k by default.")] = None,
    nheads: Annotated[Text, shape(metavar="SIZES", help="Query heads. 2048 / headdim by default.")] = None,
    nheads_k: Annotated[
        Text, shape(metavar="SIZES", help="Key and value heads: fewer than --nheads is GQA, 1 is MQA.")
    ] = None,
    window: Annotated[
        Text,
        shape(metavar="SIZES", help="Sliding window: 1k (keys to the left; both sides if not causal), 512/0, 512/512."),
    ] = None,
    softcap: Annotated[Text, shape(metavar="NUMBERS", help="Scores become 30 tanh(score / 30): none,30.")] = None,
    dropout: Annotated[Text, shape(metavar="NUMBERS", help="Of the probabilities, as in training: none,0.1.")] = None,
    device: Annotated[str, how(metavar="DEVICE", help="auto, cuda:N, cpu, or fake (simulated, for a try).")] = "auto",
    time_limit: Annotated[
        Text, how(metavar="TIME", help="90s, 10m, 1h: leaves out the dearest jobs; --resume measures them later.")
    ] = None,
    rounds: Annotated[int, how(metavar="N", help="The whole plan N times, each in fresh processes.")] = 1,
    timer: Annotated[
        Text, instruments(metavar="NAME", help="events (default), graph (CUDA graph replay) or cupti (kernel spans).")
    ] = None,
    l2: Annotated[
        Text, instruments("--l2", metavar="STATE", help="Of the cache, before each sample: cold (default) or warm.")
    ] = None,
    cross_check: Annotated[
        bool,
        instruments("--cross-check", metavar="", help="A quarter of the cells by all three, in turns: do they agree?"),
    ] = False,
    sustained: Annotated[
        Text,
        instruments(metavar="TIME", help="10s: also each cell without pauses, until power and clock are steady."),
    ] = None,
    isolate_power: Annotated[
        bool, instruments("--isolate-power", metavar="", help="Wait before each cell until clock and power are back.")
    ] = False,
    fresh_caches: Annotated[
        bool,
        how(
            "--fresh-caches", metavar="", help="Each cell in a new process without compiled kernels: cold first calls."
        ),
    ] = False,
    seed: Annotated[int | None, how(metavar="N", help="Of the inputs and the order of the jobs.")] = None,
    python: Annotated[
        list[str] | None,
        how("--python", metavar="NAME=PATH", help="The interpreter of a backend's worker: each may have its own."),
    ] = None,
    peak: Annotated[
        list[str] | None,
        how("--peak", metavar="DTYPE=TFLOPS", help="bf16=989: the datasheet peak of a GPU that is not on file."),
    ] = None,
    out: Annotated[Path | None, files(metavar="FILE", help="The run file. A new one in results/ by default.")] = None,
    resume: Annotated[
        Path | None, files(metavar="FILE", help="Measure what this run file lacks, with the options it was begun with.")
    ] = None,
    dry_run: Annotated[
        bool, files("--dry-run", metavar="", help="Show the plan and its forecast; measure and write nothing.")
    ] = False,
    json: Annotated[bool, files("--json", metavar="", help="The results (or the plan) as JSON on stdout.")] = False,
) -> None:
    """Measure every attention implementation that works here, over your shapes; save the figures and show them.

    attnbench run --seqlen 1k-64k
    attnbench run -b 'sdpa-*' -b '!sdpa-math' --headdim 128 --causal --pass fwd
    attnbench run -b ./mine.py:my_attention,sdpa-flash --nheads 8 --nheads-k 2
    attnbench run --causal --window none,1k --softcap none,30 --seqlen 8k
    attnbench run --suite flash-paper --time-limit 5m --dry-run
    attnbench run --suite quick --cross-check --sustained 10s
    """
    from attnbench import commands

    options = {
        "axes": _axes(
            *(seqlen, seqlen_q, headdim, dtype, causal, direction, batch, nheads, nheads_k, window, softcap, dropout)
        ),
        "tokens": tokens,
        "backends": backend,
        "time_limit": time_limit,
        "policy": {
            "seed": seed,
            "timer": timer,
            "l2": l2,
            "cross_check": 0.25 if cross_check else None,
            "sustained_s": sustained,
            "isolate_power": isolate_power or None,
            "caches": "fresh" if fresh_caches else None,
        },
    }
    rest: dict[str, Any] = {"device": device, "rounds": rounds, "out": out, "resume": resume, "dry_run": dry_run}
    raise typer.Exit(
        commands.run(suite, options, pythons=tuple(python or ()), peak=tuple(peak or ()), json=json, **rest)
    )


@app.command()
def report(
    results: Annotated[list[Path] | None, typer.Argument(metavar="RESULTS", help="Run files.")] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="table, md; csv, json, parquet (one row a cell and round); pytest-benchmark, bmf (Bencher), "
            "github-action-benchmark.",
        ),
    ] = "table",
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAMES", help="tflops, latency, ...; -m help lists them all."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="AXIS", help="What the columns are: backend, headdim, dtype, mask, dropout, pass, ..."),
    ] = "backend",
    flops_convention: Annotated[
        str, typer.Option(metavar="NAME", help="exact (unmasked pairs) or fa (as papers print: half for causal).")
    ] = "exact",
    every: Annotated[bool, typer.Option("--all", metavar="", help="Every table, however many there are.")] = False,
    html: Annotated[
        Path | None, files("--html", metavar="FILE", help="Figures, a table to filter and every warning on one page.")
    ] = None,
    png: Annotated[Path | None, files("--png", metavar="FILE", help="One figure, for slides.")] = None,
    svg: Annotated[Path | None, files("--svg", metavar="FILE", help="One figure, for papers.")] = None,
    figure: Annotated[
        str, files(metavar="NAME", help="Of --png and --svg: throughput, utilization, speedup, latency, memory, ...")
    ] = "throughput",
    panel: Annotated[
        str, files(metavar="WORDS", show_default=False, help='Of --png and --svg: "d128 causal", those panels alone.')
    ] = "",
) -> None:
    """Show results that were measured before, here or elsewhere, one run or several side by side; needs no GPU.

    attnbench report results/*.jsonl
    attnbench report -m latency,memory_peak --by dtype run.jsonl
    attnbench report -f csv run.jsonl > run.csv
    attnbench report --html run.html run.jsonl
    attnbench report --svg speedup.svg --figure speedup --panel 'd128 causal' run.jsonl
    """
    from attnbench import commands

    pictures = {"html": html, "png": png, "svg": svg}
    rest: dict[str, Any] = {"convention": flops_convention, "pictures": pictures, "figure": figure, "panel": panel}
    raise typer.Exit(commands.report(results or [], format, metric or ["tflops"], by, every=every, **rest))


@app.command()
def profile(
    backend: Annotated[
        list[str] | None, one("--backend", "-b", metavar="NAMES", help="One, or several side by side: eager,triton.")
    ] = None,
    seqlen: Annotated[Text, one(metavar="SIZE", help="8k by default; k = 1024.")] = None,
    seqlen_q: Annotated[Text, one(metavar="SIZE", help="Query length where it differs.")] = None,
    headdim: Annotated[Text, one(metavar="SIZE", help="128 by default.")] = None,
    dtype: Annotated[Text, one(metavar="NAME", help="bf16 (default), fp16, fp32 or fp8.")] = None,
    causal: Annotated[bool | None, one("--causal/--full", metavar="", help="The mask; full by default.")] = None,
    direction: Annotated[Text, one("--pass", metavar="NAME", help="fwd (default), bwd or fwd_bwd.")] = None,
    batch: Annotated[Text, one(metavar="SIZE", help="16k / seqlen by default.")] = None,
    nheads: Annotated[Text, one(metavar="SIZE", help="Query heads. 2048 / headdim by default.")] = None,
    nheads_k: Annotated[Text, one(metavar="SIZE", help="Key and value heads: fewer than --nheads is GQA.")] = None,
    window: Annotated[Text, one(metavar="SIZE", help="Sliding window: 1k, or left/right: 512/0.")] = None,
    softcap: Annotated[Text, one(metavar="NUMBER", help="Scores become 30 tanh(score / 30): 30.")] = None,
    dropout: Annotated[Text, one(metavar="NUMBER", help="Of the probabilities, as in training: 0.1.")] = None,
    device: Annotated[str, how(metavar="DEVICE", help="auto, cuda:N or cpu.")] = "auto",
    ncu: Annotated[
        bool,
        how("--ncu/--no-ncu", metavar="", show_default=False, help="HBM traffic by Nsight Compute (where on PATH)."),
    ] = True,
    python: Annotated[
        list[str] | None, how("--python", metavar="NAME=PATH", help="The interpreter of a backend's worker.")
    ] = None,
    trace: Annotated[
        Path | None, files(metavar="FILE", help="Also a Chrome trace of one call, for https://ui.perfetto.dev.")
    ] = None,
    json: Annotated[bool, files("--json", metavar="", help="The profile as JSON on stdout.")] = False,
) -> None:
    """Look into one call: its kernels on a timeline, its memory, how close to the roofline, what it moves through HBM.

    attnbench profile -b triton --seqlen 8k --causal --trace trace.json
    attnbench profile -b eager,sdpa-flash,triton --seqlen 4k --pass bwd
    """
    from attnbench import commands

    axes = _axes(
        *(seqlen, seqlen_q, headdim, dtype, causal, direction, batch, nheads, nheads_k, window, softcap, dropout)
    )
    rest: dict[str, Any] = {"device": device, "trace": trace, "counters": ncu, "pythons": tuple(python or ())}
    raise typer.Exit(commands.profile({"axes": axes, "backends": backend}, json=json, **rest))


@app.command()
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
    device: Annotated[str | None, supports(metavar="DEVICE", help="The same for a device here: auto, cuda:N.")] = None,
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
    from attnbench import commands

    if matrix or gpu or device or into:
        raise typer.Exit(commands.matrix(gpu or [], device, format, into))
    raise typer.Exit(commands.backends(python or [], format))


@app.command()
def doctor(
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="auto, cuda:N, cpu, or fake (simulated, for a try).")
    ] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="A test of 20 s in place of two minutes, and a coarser figure.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", metavar="", help="All facts and figures as JSON on stdout.")] = False,
) -> None:
    """Say whether this machine is fit to measure, and the smallest difference that can be told apart on it.

    Changes nothing and needs no root. Exit code 0: fit; 1: fit, with warnings; 3: unfit.
    """
    from attnbench import commands

    raise typer.Exit(commands.doctor(device, quick=quick, json=json))


@app.command()
def suites(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this suite's YAML.")] = None,
) -> None:
    """List the suites that ship with attnbench, or show one: copy it, change it, run it with --suite FILE."""
    from attnbench import commands

    raise typer.Exit(commands.suites(name))


app.command()(gate)
app.command()(with_axes_of(run)(ab))
app.add_typer(baseline, name="baseline")
app.command()(compare)

env = typer.Typer(help="Environments of their own for libraries that clash: made once, used by every later run.")
app.add_typer(env, name="env", no_args_is_help=True)


@env.command("create")
def env_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="fa4, xformers, flashinfer, cudnn, hf, fa2, fa1, ...")],
    pip: Annotated[
        list[str] | None, typer.Argument(metavar="[-- PIP OPTIONS]", help="As they go to pip install.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where; ~/.local/share/attnbench/envs/NAME by default.")
    ] = None,
) -> None:
    """Make a virtual environment with a library's packages, which sees the present torch, and remember it.

    From then on the backends of that library run in it; --python and a suite's interpreters go before.

    attnbench env create fa4
    attnbench env create flashinfer --path /opt/envs/flashinfer
    attnbench env create fa4 -- --no-index --find-links wheels/
    """
    from attnbench import commands

    raise typer.Exit(commands.env_create(name, path, pip or []))


@env.command("list")
def env_list() -> None:
    """List the environments that were made, and the backends that run in them."""
    from attnbench import commands

    raise typer.Exit(commands.env_list())


@env.command("remove")
def env_remove(name: Annotated[str, typer.Argument(metavar="NAME", help="As env list shows it.")]) -> None:
    """Delete an environment that was made, and forget it."""
    from attnbench import commands

    raise typer.Exit(commands.env_remove(name))


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
