"""Random command lines, and mutated suites and run files, for the command line in this process.

Input number N of a kind and seed is always the same: attempt("suite", seed=7, number=12). What must hold for each:
it ends with an exit code that core/errors.py documents for the command, without a traceback, in SECONDS of CPU time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import typer
import yaml

import worker_here
from attnbench import cli
from attnbench.backends import BACKENDS
from attnbench.commands import command_line as program
from attnbench.core.json import to_json
from attnbench.core.machine import Device, Environment
from attnbench.run import device_probe, venvs, workers
from attnbench.run.suite import shipped_suites
from hostile import live

SECONDS = 5.0
MEMORY = 2**31  # bytes that a command may take
KINDS = ("command-line", "suite", "run-file", "names")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
ENVIRONMENT = {"COLUMNS": "120", "TERM": "dumb"}  # of each attempt; what is not named here is taken away
UNSET = ("NO_COLOR", "FORCE_COLOR", "CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "ATTNBENCH_FAKE", "LINES")

# Exit codes of each command beside 0 and 2, by core/errors.py.
CODES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("run", "profile", "env"), (1, 5)),
    **dict.fromkeys(("gate", "ab"), (1, 3, 4, 5)),
    "doctor": (3,),
    "check": (1, 5),
}

SMALL = ("--device", "fake", "-b", "fake", "--headdim", "64", "--full", "--pass", "fwd")
OWN = """
from attnbench.backends.fake import Fake

class Mine(Fake):
    pass

number = 5
"""
WORKLOAD = """
name: chat
weights: time
parts:
  - {name: prefill, weight: 70%, seqlen: 1k, pass: fwd, headdim: 64}
  - {name: rest, weight: 30%, seqlen: 512, backend: "fa*"}
"""
MARGINS = """
latency: 4%
memory_peak: 0.02
cells:
  "fake 1k *": {latency: 6%, error: 20%}
  "*": {first_call: 100%}
"""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    command: tuple[str, ...]
    code: Any
    out: str
    err: str
    seconds: float  # of CPU time
    problem: str = ""  # what must not be, or nothing


class TooLong(BaseException):
    """Raised in a command that takes more than SECONDS of CPU time."""


# --- one attempt ---------------------------------------------------------------------------------------------------


def attempt(kind: str, seed: int, number: int, template: Path, folder: Path) -> list[Ending]:
    """Make input `number` of a kind in `folder`, a copy of `template`, and return how each command on it ended."""
    shutil.copytree(template, folder)
    rng = random.Random(f"{kind} {seed} {number}")
    with sandbox(folder):
        return [call(args, rng.choice(ENCODINGS)) for args in GENERATORS[kind](rng, folder)]


ENCODINGS = ("utf-8",) * 6 + ("ascii", "cp1252", "latin-1")


def call(args: Sequence[str], encoding: str = "utf-8") -> Ending:
    """Run the command line with these arguments in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2))
    err.reconfigure(errors="backslashreplace")  # as Python does
    code, trouble = None, ""
    began = time.process_time()
    with mock.patch.multiple(sys, argv=["attnbench", *args], stdout=out, stderr=err), limits():
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except TooLong:
            trouble = f"takes more than {SECONDS:.0f} s of CPU time: {traceback.format_exc(-4)}"
        except BaseException:
            trouble = traceback.format_exc(-4)
    seconds = time.process_time() - began
    texts = [stream.buffer.getvalue().decode(encoding, "replace") for stream in (out, err)]  # type: ignore[attr-defined]
    return Ending(tuple(args), code, *texts, seconds, trouble or problem(args, code, *texts))


LEAKS = ("Traceback (most", "Input should be", "validation error", "pydantic", "msgspec", " object at 0x", "<class '")


def problem(args: Sequence[str], code: Any, out: str, err: str) -> str:
    """Return what is wrong with how a command ended; "" if nothing is."""
    command = next((word for word in args if word in CODES), "")
    if code not in (0, 2, *CODES.get(command, ())):
        return f"exit code {code!r} is not documented for {command or 'this command'}"
    if code == 2 and not (err.strip() or out.startswith("Usage:") or "Usage: attnbench" in out):
        return "exit code 2 without a word"
    ours = err.split("Usage: ")[0]  # below a usage line are the words of typer, which takes pydantic's for numbers
    if leaked := [word for word in LEAKS if word in ours]:
        return f"stderr has {leaked[0]!r}, which is not for people"
    said = err.split("\n\nResults: ")[0]  # where a run kept what it measured, which it says after what went wrong
    if code == 2 and "\nattnbench: " in f"\n{said}" and not said.splitlines()[-1].startswith("attnbench: "):
        return "an error is not one line"
    found = live.in_log(ours)
    if code != 2 and command not in ("", "suites"):  # which prints a file that a person names
        found += _live(args, out)
    return "; ".join(found[:3])


def _live(args: Sequence[str], out: str) -> list[str]:
    """Return what is live in the standard output of a command, by its format."""
    formats = [word for before, word in itertools.pairwise(args) if before == "-f"]
    match next((name for name in formats if "=" not in name), "table"):
        case "md":
            return live.in_markdown(out) + live.in_log(out)
        case "html":
            return live.in_html(out)
        case "junit":
            return live.in_xml(out) + live.in_log(out)
        case "github":
            return live.in_log(out, annotations=True)
        case _:
            return live.in_log(out) + [f"a control character: {c!r}" for c in set(live.CONTROLS.findall(out))]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Raise TooLong after SECONDS of CPU time, which other processes do not change, and MemoryError beyond MEMORY."""

    def late(_: int, __: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)  # again each second, where code swallowed it
    own, most = resource.getrlimit(resource.RLIMIT_DATA)
    in_use = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + MEMORY, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (own, most))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def sandbox(folder: Path) -> Iterator[None]:
    """In the block work in `folder`, with workers of this process; then all that a command may change is as before."""
    names = [name for name in ("SIGPIPE", "SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name)]
    signals = {name: signal.getsignal(getattr(signal, name)) for name in names}
    cwd, path, modules = os.getcwd(), list(sys.path), set(sys.modules)
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    environment = {**kept, **ENVIRONMENT, "XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        for module in (workers, device_probe):
            stack.enter_context(mock.patch.object(module, "WorkerProcess", NoTorch))
        stack.enter_context(mock.patch.object(venvs.venv.EnvBuilder, "create", side_effect=OSError(28, "No space")))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(cwd)
            sys.path[:] = path
            for name in {*sys.modules} - modules:
                if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
            for name, handler in signals.items():
                signal.signal(getattr(signal, name), handler)


class NoTorch(worker_here.Here):
    """A worker of this process on a machine without a GPU, in which no library can be used."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        op, device = request["op"], request.get("device")
        if op == "environment" and device != "fake":
            if str(device).startswith("cuda"):
                return {"refused": "torch sees no CUDA device here; use --device cpu"}
            return {"environment": to_json(Environment(CPU, "3.12.0", "Linux", "2.9.0", "a CPU"))}
        if op == "rates" and device != "fake" and device["kind"] == "cpu":  # type: ignore[index]
            return {"device": {**device, "matmul": {"fp32": 1e11, "bf16": 1e10}, "copy": 1e10}}  # type: ignore[dict-item]
        if op == "load" and request["spec"] in LIBRARIES:
            return {"probe": {"reason": "not in this test"}, "compiler": False}
        if op not in ("environment", "rates", "load", "import", "survey", "ready", "run"):
            raise RuntimeError("not in this test")
        return super().answer(request)


LIBRARIES = {spec for name, spec in BACKENDS.items() if name != "fake"}
CPU = Device("cpu", 0, "a CPU", memory=2**34, free=2**33, threads=4)


def make_template(folder: Path) -> Path:
    """Fill a new folder with the files that inputs are made from, and return it."""
    folder.mkdir(parents=True)
    texts = {"own.py": OWN, "mine.yaml": SUITE, "workload.yaml": WORKLOAD, "margins.yaml": MARGINS, "text.txt": "hi\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "empty.jsonl").touch()
    (folder / "folder").mkdir()
    for source in ("*-sustained-*", "*-first-call-*", "*-fp8-*", "ci-experiment/alike-00*"):
        path = next(p for p in RESULTS.glob(source) if ".jsonl" in p.name)
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        head, *records = content.splitlines(keepends=True)
        plan = json.loads(head)
        plan["plan"] = plan["plan"][:40]
        name = f"{source.split('/')[0].strip('*-')}.jsonl"
        (folder / name).write_bytes(b"".join([json.dumps(plan).encode() + b"\n", *records[:8]]))
    with sandbox(folder):
        for name, more in {"run.jsonl": [], "rounds.jsonl": ["--rounds", "5"], "ünï 🙂.jsonl": ["--causal"]}.items():
            ended = call(["run", *SMALL, *more, "--seqlen", "512,1k", "--out", name])
            assert ended.code == 0, ended
        assert call(["baseline", "save", "rounds.jsonl"]).code == 0
    return folder


SUITE = """
axes: {seqlen: [512, 1k], headdim: 64, causal: true, pass: [fwd, bwd]}
policy: {max_seconds: 0.1}
backends: [fake]
"""


# --- command lines -------------------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return text.split(" ")


FILES = (
    *("run.jsonl", "rounds.jsonl", "sustained.jsonl", "fp8.jsonl", "ci-experiment.jsonl", "ünï 🙂.jsonl"),
    *("empty.jsonl", "text.txt", "mine.yaml", "workload.yaml", "margins.yaml", "own.py", "folder", "missing.jsonl"),
    *("folder/new.jsonl", "new.jsonl", "new.html", "missing/new.html", "*.jsonl", ".", "", "/dev/null", "/dev/full"),
    *("baselines", "baselines/main", "/proc/self/nope", "\udcff.jsonl", "run.jsonl/x", "folder/", "~", "run.jsonl "),
)
HOSTILE = (
    *_words(
        "0 -1 -0 +5 1e308 1e999 nan inf -inf NaN% 1_000 0x10 1.5 007 ٣ １２ ½ ² 🙂 \udcff \x1b[31m [red] [/red] %s"
    ),
    *_words("* ? [ [!] ! !* , ,, = == =x x= : :: - -- none None true 1,1 1k- -1k 1k-1k 8k-1k 1-128m:1 1k-64k:0"),
    *_words("1-128m 12:30 64-128 1/1 0/0 auto cpu cuda cuda:0 cuda:99 fake \u202e a,b,c ' \" \\ bf16=1e308 fake=x"),
    *("", " ", "\t", "a\nb", "9" * 25, "9" * 5000, "a" * 3000),
)
VALUES: Mapping[str, Sequence[str]] = {
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
    "--seqlen": ("1k", "512,1k", "1k-64k", "1k-8k:1k", "3000", "1"),
    "--seqlen-q": ("1", "1k", "1,512"),
    "--headdim": ("64", "64,128", "192-128", "576-512"),
    "--dtype": ("bf16", "fp16,fp32", "fp8", "bf16,fp8"),
    "--pass": ("fwd", "bwd", "fwd,bwd", "fwd_bwd"),
    "--batch": ("1", "1,32"),
    "--tokens": ("16k", "1"),
    "--nheads": ("8", "8,16"),
    "--nheads-k": ("1", "8", "3"),
    "--window": ("none,1k", "512/0", "512/open", "open/0"),
    "--softcap": ("none,30", "30", "0.5"),
    "--dropout": ("none,0.1", "0.1", "0.999999"),
    "--data": ("normal", "normal,outliers", "uniform,zeros"),
    "--layout": ("native", "bshd,bhsd", "packed"),
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
    "--metric": ("latency", "tflops,latency", "memory_peak", "help", "error,first_call", "cycles", "joules"),
    "--by": ("backend", "seqlen", "headdim", "dtype", "pass", "mask"),
    "--flops-convention": ("exact", "fa"),
    "--figure": ("throughput", "speedup", "latency", "memory", "utilization"),
    "--panel": ("d64", "causal", "d64 full"),
    "--expect": ("torch", "driver", "gpu", "fake", "triton,fa2"),
    "--margin": ("3%", "0.03", "error=20%", "latency=1%"),
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
BEGIN: Mapping[str, Sequence[str]] = {  # so that most command lines come far
    "run": (*SMALL, "--seqlen", "512"),
    "ab": ("--a", "fake", "--b", "own.py:Mine", "--device", "fake", "--headdim", "64", "--full", "--pass", "fwd"),
    "doctor": ("--device", "fake", "--quick"),
    "profile": ("-b", "fake", "--device", "fake"),
    "check": ("fake", "--device", "fake"),
}


def commands() -> dict[tuple[str, ...], Any]:
    """Return the commands by their words, as the program has them: ("baseline", "save"): ..."""
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
    for option in rng.choices(options, k=rng.choice((0, 1, 1, 2, 2, 3, 4, 6))) if options else ():
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
    value = rng.choice((*plausible, *plausible)) if rng.random() < 0.85 else rng.choice((*HOSTILE, *FILES))
    if rng.random() < 0.05:
        value = f"{value}{rng.choice((',', '=', ':', ' ', '-'))}{rng.choice((*HOSTILE, *plausible))}"
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
            line.insert(at, rng.choice(HOSTILE))


# --- values of files ------------------------------------------------------------------------------------------------

SCALARS: Sequence[Any] = (
    *(None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, -1e308, 5e-324, 1e-300, 2**31, 2**63, 2**64, 10**30),
    *(10**400, float("nan"), float("inf"), float("-inf"), "", " ", "a\nb", "9" * 5000, "x" * 5000),
    *_words("x nan inf 1k 🙂 \x1b[31m [red] \ud800 none null 1e999 -1 <b>& %s * !* 12:30 bf16 fwd \u202e|`"),
)
NAMES = _words("seqlen name type schema 🙂 case values runs round backend status axes on_cpu")


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Return plain values of which one place is deleted, doubled, renamed, swapped, wrapped or replaced."""
    places = list(_places(tree))
    if not places:
        return rng.choice(SCALARS)
    holder, key = rng.choice(places)
    match rng.randrange(12):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 1, 2, 50))
        case 1:
            holder[rng.choice(NAMES)] = holder[key]
        case 2:
            other, at = rng.choice(places)
            with contextlib.suppress(LookupError):  # a place that is inside the other
                holder[key], other[at] = json.loads(json.dumps([other[at], holder[key]]))
        case 3:
            holder[key] = rng.choice(([holder[key]], {rng.choice(NAMES): holder[key]}, [], {}, [[]], [None], [{}]))
        case 4:
            nested: Any = holder[key]
            for _ in range(rng.choice((3, 20, 150))):
                nested = [nested] if rng.random() < 0.5 else {"a": nested}
            holder[key] = nested
        case 5 | 6 if type(holder[key]) is int:
            holder[key] = rng.choice((-holder[key], 0, 1, 2, holder[key] * 1000, 2**31, 2**62, 2**63, 10**30, 10**400))
        case 5 | 6 if type(holder[key]) is float:
            holder[key] *= rng.choice((-1, 0, 2, 0.5, 1e3, 1e-9, 1e15, 1e300, float("inf"), float("nan")))
        case _:  # mostly of the same type, so that it is read
            alike = [value for value in SCALARS if type(value) is type(holder[key])]
            holder[key] = rng.choice(alike if alike and rng.random() < 0.7 else SCALARS)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (list or dict, its key) for everything in a tree; of long lists of numbers the first few."""
    keys = tree.keys() if isinstance(tree, dict) else range(min(len(tree), 5)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


def mutate_bytes(rng: random.Random, content: bytes, tokens: Sequence[bytes]) -> bytes:
    """Return bytes that are cut, flipped, or have a token or a part of themselves put in; or lines that are moved."""
    data = bytearray(content)
    at = rng.randint(0, len(data))
    lines = content.splitlines(keepends=True)
    match rng.randrange(8):
        case 0:
            return bytes(data[:at])
        case 1:
            return bytes(data[at:])
        case 2 if data:
            for _ in range(rng.choice((1, 1, 5, 50))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3 if lines:
            rng.shuffle(lines) if rng.random() < 0.3 else lines.insert(rng.randrange(len(lines)), rng.choice(lines))
            return b"".join(lines)
        case 4 if lines:
            del lines[rng.randrange(len(lines))]
            return b"".join(lines)
        case 5:
            end = min(len(data), at + rng.choice((1, 5, 40)))
            data[at:end] = data[at:end] * rng.choice((0, 2, 100))
        case 6:
            encoding = rng.choice(("utf-16", "utf-8-sig", "utf-32-be", "latin-1"))
            return content.decode("utf-8", "replace").encode(encoding, "replace")
        case _:
            data[at:at] = rng.choice(tokens)
    return bytes(data)


# --- suites, workloads and margins ------------------------------------------------------------------------------------

YAML_TOKENS = (
    *(b"!!python/object/apply:os.system [true]", b"!!binary x", b"!!timestamp 1", b"!!int x", b"!!set {a, b}", b"!x "),
    *(b"!!omap [a: 1]", b"!!pairs [a: 1]", b"&a ", b"*a", b"&a [*a]", b"&a {a: *a}", b"<<: *a", b"{[a]: b}"),
    *b"--- ... 12:30 0x1F 0b1 1e999 .nan -.inf ~ 2001-01-01 2001-99-99 1_000 1k-128m:1 yes ' [ { ] } #".split(b" "),
    *(b"\xff", b"\x85", b"\x00", b"\xef\xbb\xbf", b"? ", b": ", b"- ", b"|\n", b">\n", b"\t", b"\r", b"\n", b'"\\x"'),
    *(b"%YAML 9\n", b"[" * 300, b"{a: " * 300, b"- " * 300, b"9" * 5000),
)


def suite(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield the command line of a suite that ships (or a workload, or margins) after one to four mutations."""
    suites = {path.stem: path.read_text() for path in shipped_suites().values()} | {"mine": SUITE}
    name = rng.choice([*[*suites] * 2, "workload", "margins"])
    text = {**suites, "workload": WORKLOAD, "margins": MARGINS}[name]
    file = Path("mutated.yaml")
    if rng.random() < 0.6:
        tree = yaml.safe_load(text)
        for _ in range(rng.choice((1, 1, 2, 4))):
            tree = mutate_tree(rng, tree)
        style = rng.choice((True, False, None))
        try:
            text = yaml.dump(tree, allow_unicode=rng.random() < 0.5, default_flow_style=style)
        except RecursionError:  # too deep for yaml.dump; JSON is YAML
            text = json.dumps(tree)
    content = text.encode("utf-8", "surrogatepass")
    for _ in range(rng.choice((0, 1, 2)) if rng.random() < 0.6 else 0):
        content = mutate_bytes(rng, content, YAML_TOKENS)
    (folder / file).write_bytes(content)
    if name == "workload":
        yield ["compare", "run.jsonl", "rounds.jsonl", "--name", "run.jsonl=A", "--workload", str(file)]
    elif name == "margins":
        yield ["gate", "rounds.jsonl", "rounds.jsonl", "--margins", str(file)]
    else:
        device = rng.choice((["--device", "fake"], ["--device", "fake", "-b", "fake"], ["--device", "cpu"], []))
        yield ["run", "--suite", str(file), *device, "--dry-run"]


# --- run files --------------------------------------------------------------------------------------------------------

JSON_TOKENS = (
    *b'NaN Infinity -Infinity 1e999 -0 1E400 null true {} [] "" , : " \\ \\ud800 \\u0000 \x00 \xff'.split(b" "),
    *(b"\n", b"\x1f\x8b", b"\xef\xbb\xbf", b"[" * 500, b'{"a":' * 500, b"9" * 5000, b'{"type":"record"}\n'),
    *(b'{"type":"run","schema":2}\n', b'"type":"run",', b'"schema":1e400,'),
)


def run_file(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield command lines that read a run file after one to four mutations."""
    names = ["run.jsonl", "rounds.jsonl", "sustained.jsonl", "first-call.jsonl", "fp8.jsonl", "ci-experiment.jsonl"]
    name = rng.choice(names)
    file = "mutated.jsonl"
    content = (folder / name).read_bytes()
    if rng.random() < 0.85:
        lines = [json.loads(line) for line in content.splitlines()]
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = 0 if rng.random() < 0.3 else rng.randrange(len(lines))
            lines[at] = mutate_tree(rng, lines[at])
        if rng.random() < 0.3:  # in each record the same, as another version of attnbench would write it
            again = rng.random()
            lines[1:] = [mutate_tree(random.Random(again), line) for line in lines[1:] if line]
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for _ in range(rng.choice((1, 2, 3)) if rng.random() < 0.25 else 0):
        content = mutate_bytes(rng, content, JSON_TOKENS)
    (folder / file).write_bytes(content)
    reports = [
        ["report", file, "-f", form] for form in ("table", "md", "csv", "json", "html", "bmf", "pytest-benchmark")
    ]
    others = [
        ["report", file, name, "-f", rng.choice(("table", "html")), "-f", "parquet=new.parquet"],
        ["report", file, "--all", "-m", "latency,memory_peak,error,joules,clock_held", "--by", "seqlen"],
        ["gate", file, name],
        ["gate", name, file, "-f", rng.choice(("table", "md", "html", "json", "junit", "github"))],
        [
            "compare",
            file,
            name,
            "--name",
            f"{file}=A",
            "--name",
            f"{name}=B",
            "-f",
            rng.choice(("table", "html", "csv")),
        ],
        ["compare", name, file, "--price", "h200=3.40/h", "--all"],
        [
            "compare",
            name,
            file,
            "--name",
            f"{file}=A",
            "--price",
            "h200=40000/4y",
            "--energy-price",
            "0.2",
            "-f",
            "json",
        ],
        ["run", "--resume", file, "--dry-run"],
    ]
    yield rng.choice(reports)
    yield rng.choice(others)
    if rng.random() < 0.3:
        yield ["baseline", "save", file, "--dir", "kept"]
        yield ["baseline", "show", "--dir", "kept"]


# --- names ------------------------------------------------------------------------------------------------------------

M = live.MARK
NAMED = (
    *(f"x\n::error title={M}::{M}", f"::error::{M}", f" ::set-output name=a::{M}", f"##[error]{M}", "\r\n::error::x"),
    *(f"a ##vso[task]{M}", f"@{M}", f"a @org/{M}", f"{M}@x.example", f"https://{M}.example", f"www.{M}.example", "#1"),
    *(f"<img src=x onerror={M}()>", f"</script><script>{M}()</script>", f"'\" onload={M}() x='", f"<{M}>", "<!--"),
    *(f"[{M}](https://{M}.example)", f"![a]({M})", f"a|b|{M}", "| - | - |", f"`{M}`", "```\n", "\n\n# h\n\n- l\n"),
    *(
        "> q",
        "GH-1",
        f"]]>{M}",
        "&amp;&#64;",
        "\\",
        "$x$",
        "*",
        "__a__",
        "~~~",
        "---",
        "===",
        "1. a",
        "- a",
        "%0A%s{0}",
    ),
    *("\x00", "a\x07b", f"\x1b[31m{M}", f"\x1b]8;;https://{M}.example\x07y", f"\x9b31m{M}", "\x85", "\u2028", "\ufffe"),
    *(f"\u202e{M}", f"\u2067{M}", "\u200b", "\ud800", "\udfff a", "🙂", "a" * 3000, "", " ", "=1+1", "- a"),
)
OPEN = ("versions", "specs", "interpreters", "packages", "kernels", "peak")  # mappings with names of data for keys
FIXED = {"type", "unit", "dtype", "direction", "layout", "data", "status", "kind", "timer", "l2", "caches", "turns"}


def _strings(tree: Any, field: str = "") -> Iterator[str]:
    """Yield the texts in a tree that are no words of the format."""
    if isinstance(tree, dict):
        yield from tree if field in OPEN else ()
        for key, value in tree.items():
            yield from _strings(value, field if field in OPEN else key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value, field)
    elif isinstance(tree, str) and field not in FIXED:
        yield tree


def _renamed(tree: Any, names: Mapping[str, str], field: str = "") -> Any:
    if isinstance(tree, dict):
        inner = {k: _renamed(v, names, field if field in OPEN else k) for k, v in tree.items()}
        return {names.get(k, k): v for k, v in inner.items()} if field in OPEN else inner
    if isinstance(tree, list):
        return [_renamed(value, names, field) for value in tree]
    return names.get(tree, tree) if isinstance(tree, str) and field not in FIXED else tree


def names(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield command lines that show a run in which names, reasons and versions are hostile, against one like it."""
    source = rng.choice(["run.jsonl", "rounds.jsonl", "sustained.jsonl", "fp8.jsonl", "ci-experiment.jsonl"])
    lines = [json.loads(line) for line in (folder / source).read_text().splitlines()]
    for record in lines[1:]:
        if rng.random() < 0.4:
            record |= {"status": rng.choice(("wrong", "wrong-kernel", "oom", "failed", "skipped")), "reason": "why"}
        record |= {"notes": ["a note"], "stderr": "an end"} if rng.random() < 0.3 else {}
    known = sorted({*_strings(lines)})
    new = {old: rng.choice(NAMED) for old in rng.sample(known, min(len(known), rng.choice((1, 3, 10))))}
    often = [record["backend"] for record in lines[1:]] + [lines[0]["environment"]["device"]["name"], "why"]
    new[rng.choice(often)] = " ".join(rng.choices(NAMED, k=2))
    file, other = rng.choice(("mutated.jsonl", f"{M} \n::error::x.jsonl", "@x <b>.jsonl")), "other.jsonl"
    for path, content in ((file, _renamed(lines, new)), (other, lines if rng.random() < 0.3 else _renamed(lines, new))):
        (folder / path).write_text("".join(f"{json.dumps(line)}\n" for line in content))
    pair = [other, file] if rng.random() < 0.7 else [file, other]
    for form in rng.sample(("table", "md", "html", "json", "junit", "github"), 3):
        yield ["gate", *pair, "-f", form, *rng.choice(([], ["--all"], ["--allow-wrong", "--all"]))]
    yield ["report", file, "-f", rng.choice(("table", "md", "html", "csv", "json", "bmf"))]
    yield ["compare", *pair, "--all", "-f", rng.choice(("table", "md", "html", "csv", "json"))]
    yield rng.choice((["run", "--resume", file, "--dry-run"], ["baseline", "save", file, "--dir", "kept"]))
    yield ["baseline", "show", "--dir", "kept", "-f", rng.choice(("table", "md", "html"))]


GENERATORS: Mapping[str, Callable[[random.Random, Path], Iterator[list[str]]]] = {
    "command-line": command_line,
    "suite": suite,
    "run-file": run_file,
    "names": names,
}


def told(ending: Ending) -> str:
    """Return a failed attempt for a person: the command line, what is wrong, and what was printed."""
    line = shlex.join(["attnbench", *ending.command]).encode("utf-8", "backslashreplace").decode()
    return f"{line}\n  exit code {ending.code}, {ending.seconds:.1f} s: {ending.problem}\n{ending.err[-600:]}"
