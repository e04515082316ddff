"""Random command lines: real options with plausible and hostile values, sometimes disturbed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from attnbench.commands import command_line as program
from attnbench.core.axes import AXES
from attnbench.run.suite import shipped_suites
from hostile.hostile_values import TEXTS
from hostile.template import SMALL

FILES = (  # files of template.py, and some that do not exist
    *("run.jsonl", "rounds.jsonl", "sustained.jsonl", "fp8.jsonl", "ci-experiment.jsonl", "ünï 🙂.jsonl"),
    *("empty.jsonl", "text.txt", "mine.yaml", "workload.yaml", "margins.yaml", "own.py", "folder", "missing.jsonl"),
    *("folder/new.jsonl", "new.jsonl", "new.html", "missing/new.html", "*.jsonl", ".", "", "/dev/null", "/dev/full"),
    *("baselines", "baselines/main", "/proc/self/nope", "\udcff.jsonl", "run.jsonl/x", "folder/", "~", "run.jsonl "),
)
VALUES: Mapping[str, Sequence[str]] = {
    **{f"--{a.option}": (*a.examples, ",".join(a.examples)) for a in AXES.values() if not a.switch},
    "--suite": ("quick", "default", "ci", "features", "mine.yaml", "nope"),
    "--backend": (
        "fake",
        "fake,fake",
        "sdpa-*",
        "!sdpa-math",
        "eager,triton",
        "./own.py:Mine",
        "own.py:number",
        "hf-*",
    ),
    "--tokens": ("16k", "1"),
    "--device": ("fake", "fake", "fake", "cpu", "auto", "cuda:0"),
    "--time-limit": ("10m", "1s", "0.001"),
    "--sustained": ("10s", "0.1"),
    "--rounds": ("2", "3", "5"),
    "--seed": ("0", "7", "99999999999999999999"),
    "--python": ("fake=python3", "fake=/bin/true", "*=python3"),
    "--peak": ("bf16=989", "fp8=1", "=5"),
    "--timer": ("events", "graph", "cupti"),
    "--l2": ("cold", "warm"),
    "--format": (
        "table",
        "md",
        "html",
        "json",
        "csv",
        "md=new.md",
        "html=new.html",
        "parquet=new.parquet",
        "bmf",
        "junit",
    ),
    "--metric": ("latency", "tflops,latency", "memory_peak", "help", "relative_error,first_call", "cycles", "joules"),
    "--by": ("backend", "seqlen", "headdim", "dtype", "pass", "mask"),
    "--flops-convention": ("exact", "fa"),
    "--figure": ("throughput", "speedup", "latency", "memory", "utilization"),
    "--panel": ("d64", "causal", "d64 full"),
    "--expect": ("torch", "driver", "gpu", "fake", "triton,fa2"),
    "--margin": ("3%", "0.03", "relative_error=20%", "latency=1%"),
    "--inconclusive": ("pass", "fail"),
    "--missing": ("pass", "fail"),
    "--to": ("Simulated GPU", "NVIDIA H200", "h200"),
    "--name": ("main", "v2", "run.jsonl=A", "rounds.jsonl=A"),
    "--price": ("h200=3.40/h", "simulated=32000", "gpu=0"),
    "--workload": ("workload.yaml",),
    "--margins": ("margins.yaml",),
    "--gpu": ("h100", "a100,hopper", "sm_90", "cpu", "rtx-4090"),
    "--a": ("fake", "./own.py:Mine", "python3"),
    "--b": ("fake", "./own.py:Mine", "python3"),
    "--resume": ("run.jsonl", "sustained.jsonl"),
}
BEGIN: Mapping[str, Sequence[str]] = {  # arguments with which most command lines get past the checks
    "run": (*SMALL, "--seqlen", "512"),
    "ab": ("--a", "fake", "--b", "own.py:Mine", "--device", "fake", "--headdim", "64", "--full", "--pass", "fwd"),
    "doctor": ("--device", "fake", "--quick"),
    "profile": ("-b", "fake", "--device", "fake"),
    "capacity": ("-b", "fake", "--device", "fake"),
    "check": ("fake", "--device", "fake"),
    "recommend": ("--headdim", "64,128", "--pass", "fwd"),
}


def commands() -> dict[tuple[str, ...], Any]:
    """Return words -> command of the program, such as ("baseline", "save")."""
    found: dict[tuple[str, ...], Any] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        inner = getattr(command, "commands", None)
        if inner is None:
            found[words] = command
        for name, one in (inner or {}).items():
            walk((*words, name), one)

    walk((), typer.main.get_command(program.command_line()))
    return found


COMMANDS = commands()


def command_line(rng: random.Random, _: Path) -> Iterator[list[str]]:
    """Yield the arguments of one command line."""
    words = rng.choice([*COMMANDS, *([("run",), ("report",), ("gate",), ("compare",)] * 3)])
    params = COMMANDS[words].params
    args = list(BEGIN.get(words[0], ())) if rng.random() < 0.8 else []
    options = [p for p in params if p.param_type_name == "option"]
    several = min(rng.choice((0, 1, 1, 2, 2, 3, 4, 6)), len(options))
    chosen = [option for option in rng.sample(options, several) if option.multiple or not {*option.opts} & {*args}]
    for option in chosen:  # an option given twice would be refused at once
        args += _option(rng, option)
    for argument in (p for p in params if p.param_type_name == "argument"):
        count = rng.choice((0, 1, 1, 2, 2, 2, 2, 3)) if argument.nargs == -1 else rng.choice((*[1] * 20, 0, 2))
        for _ in range(count):
            place = rng.randint(0, len(args)) if rng.random() < 0.1 else len(args)
            args.insert(place, _argument(rng, words))
    line = [*words, *args]
    while rng.random() < 0.15:
        _disturb(rng, line)
    yield line


def _option(rng: random.Random, option: Any) -> list[str]:
    name = rng.choice([*option.opts, *option.secondary_opts])
    if option.is_flag and rng.random() < 0.98:
        return [name]
    value = _value(rng, [*VALUES.get(option.opts[0], ())] or [*FILES])
    return [f"{name}={value}"] if name.startswith("--") and rng.random() < 0.5 else [name, value]


def _argument(rng: random.Random, words: tuple[str, ...]) -> str:
    known = {"suites": [*shipped_suites()], "show": ["main"], "create": ["nope"], "remove": ["fa4"]}.get(words[-1])
    return _value(rng, known or [*FILES[:6]] * 8 + [*FILES])


def _value(rng: random.Random, plausible: Sequence[str]) -> str:
    value = rng.choice((*plausible, *plausible)) if rng.random() < 0.85 else rng.choice((*TEXTS, *FILES))
    if rng.random() < 0.05:
        value = f"{value}{rng.choice((',', '=', ':', ' ', '-'))}{rng.choice((*TEXTS, *plausible))}"
    return value


def _disturb(rng: random.Random, line: list[str]) -> None:
    """Drop, double, swap or change a word of a command line."""
    at = rng.randrange(len(line)) if line else 0
    match rng.randrange(5):
        case 0 if line:
            del line[at]
        case 1 if line:
            line.insert(at, line[at])
        case 2 if line:
            other = rng.randrange(len(line))
            line[at], line[other] = line[other], line[at]
        case 3 if line:
            line[at] = line[at][: rng.randint(0, len(line[at]))]
        case _:
            line.insert(at, rng.choice(TEXTS))
