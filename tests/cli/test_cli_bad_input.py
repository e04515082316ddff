"""Every wrong input gives one line that starts with "attnbench: ", exit code 2, and no written file."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from tool import FAKE, Tool
from typer.main import get_command

from attnbench.commands.command_line import command_line

BAD_OPTIONS = {
    # sizes
    "--seqlen=64k-1k": "--seqlen: the range 64k-1k descends; write 1k-64k",
    "--seqlen=0": "--seqlen: 0 is not at least 1",
    "--seqlen=-5": "--seqlen: -5 is not at least 1",
    "--seqlen=1000000m": "--seqlen: 1000000m is beyond anything that can be measured",
    f"--seqlen={'9' * 5000}": f"--seqlen: {'9' * 40}... is beyond anything that can be measured",
    "--seqlen=junk": "--seqlen: 'junk' is not a size; write 4096, 4k or 1m",
    "--seqlen=": "--seqlen: the value is empty; give one (is a variable of the shell empty?)",
    "--backend=,": "--backend: the value is empty",
    "--seqlen=1k-8k:0": "--seqlen: 0 is not at least 1",
    "--seqlen=3000-4000": "there is no power of two in 3000-4000; give a step",
    "--seqlen-q=0": "--seqlen-q: 0 is not at least 1",
    "--headdim=0": "--headdim: 0 is not at least 1",
    "--headdim=9999": "--headdim: 9999 is beyond anything that can be measured",
    "--nheads=0": "--nheads: 0 is not at least 1",
    "--nheads=8 --nheads-k=3": "8 query heads (headdim 64) are not a multiple of 3 key heads",
    "--batch=0": "--batch: 0 is not at least 1",
    "--tokens=lots": "--tokens: 'lots' is not a size",
    "--softcap=hot": "--softcap: 'hot' is not a number; write 30, or none",
    "--dtype=fp64": "--dtype: unknown dtype 'fp64'; known: bf16, fp16, fp32, fp8",
    "--min-samples=0": "--min-samples: 0 is not a whole number of at least 1",
    "--min-samples=5000": "--min-samples: 5000 is more than max_samples, 1000",
    "--time-limit=soon": "--time-limit: 'soon' is not a duration; write 90s, 10m or 1h30m",
    "--max-seconds=-1": "--max-seconds: '-1' is not a duration; write 90s, 10m or 1h30m",
    "--data=zero": "--data: unknown data 'zero'; did you mean \"zeros\"?",
    "--layout=sbhd": '--layout: unknown layout \'sbhd\'; did you mean "bshd" or "bhsd"?',
    "--dropout=lots": "--dropout: 'lots' is not a number; write 0.1, or none",
    "--tokens=4k --batch=2": "--batch and --tokens both set the batch size",
    # options without effect, or that contradict others
    "--seqlen=1k --seqlen=4k": "--seqlen is given twice, and one value would win silently; give it once, with commas",
    "--peak=bf16=1 --peak=bf16=2": "--peak bf16= is given twice",
    "--peak=bf16=1,bf16=2": "--peak: bf16 is given twice",
    "--backend=./own.py:f --backend=own.py:f": "--backend: own.py:f is named twice",
    "--full --window=128/0": "--window: with 0 to the right no later key is seen, which is causal; leave out --full",
    "--lengths=4k+1k --batch=3 --tokens=4k": "--lengths: a list has all lengths of the batch; leave out --batch and ",
    "--model=llama-3.1-8b --phase=decode --tokens=4k": "--tokens: --phase decode has a number of sequences",
    "--out=x.jsonl --html=x.jsonl": "--html x.jsonl: the command line names that file already",
    "--html=x.jsonl": "--format html=x.jsonl: that is the name of a run file",
    "--timer=event": "--timer: unknown 'event'; did you mean \"events\"?",
    # words
    "--time_limit=3s": "no such option: --time_limit (did you mean --time-limit?); ",
    "--dtype=bf15": "--dtype: unknown dtype 'bf15'; did you mean \"bf16\"?",
    "--pass=foward": "--pass: unknown pass 'foward'; did you mean \"fwd\"?",
    "--suite=quik": "no suite 'quik'; did you mean \"quick\"?",
    "--suite=nope.yaml": "no suite 'nope.yaml'",
    "--suite=packed.jsonl.gz": "packed.jsonl.gz is a run file, not a suite; --resume packed.jsonl.gz continues",
    "--backend=sdpa-flush": "no backend 'sdpa-flush'; did you mean \"sdpa-flash\"?",
    "--backend=!fake": "'fake,!fake' leaves no backend",
    # options that would win or lose silently
    "--device=cpu": "--device is given twice, and one value would win silently; give it once",
    "--causal --full": "--causal and --full say the opposite; give one of them",
    "--no-sink --sink": "--no-sink and --sink say the opposite",
    "--tp=0": "--tp: 0 is not at least 1",
    "--softmax-scale=0": "--softmax-scale: 0 is out of range; a number above 0, or none",
    # the rest
    "--rounds=0": "--rounds: 0 is not from 1 to",
    "--suite=default --rounds=1000 --seqlen=1-64:1": "that is 512000 jobs (cases x backends x rounds), more than the",
    "--rounds=1000000": "--rounds: 1000000 is not from 1 to",
    "--seed=-1": "seed: -1 is not",
    "--time-limit=-5m": "'-5m' is not a duration",
    "--peak=fast": "--peak: 'fast' is not TFLOP/s by dtype, as in bf16=989",
    "--peak=nan": "--peak: 'nan' is not",
    "--peak=inf": "--peak: 'inf' is not",
    "--python=python3": "--python: 'python3' is not NAME=PATH",
    "--python=fake=/no/such/python": "--python: /no/such/python is not an executable file",
    "--python=flash=python3": "--python: 'flash' is not among the backends of this run",
    "--out=.": "--out: . is a folder; give a file in it",
    "--out=run.jsonl.gz": "--out: run.jsonl.gz: a run is written plain; name it run.jsonl, and gzip it when it is done",
    "--out=occupied": "occupied is there already and is not overwritten; choose another --out",
    "--out=occupied/run.jsonl": "/occupied is not a folder",
    # own code
    "--backend=./nope.py:f": "no such file: ./nope.py",
    "--backend=./own.py": "which function of it? Write ./own.py:my_attention",
    "--backend=./own.py:": "'./own.py:' is not pkg.mod:object or file.py:function",
    "--backend=./own.py:nope": "--backend nope: cannot be imported: AttributeError: ",
    "--backend=./own.py:number": "is neither a function of (q, k, v) nor a class with a prepare method",
    "--backend=./syntax.py:f": "--backend f: cannot be imported: SyntaxError: ",
    "--backend=./needs.py:f": "--backend f: cannot be imported: ModuleNotFoundError: No module named 'no_such_lib'",
    "--backend=./leaves.py:f": "--backend f: cannot be imported: SystemExit: 3 (leaves.py:1)",
    "--backend=no_such_package.mod:f": "No module named 'no_such_package'",
    # resume
    "--resume=nope.jsonl": "cannot read nope.jsonl: No such file or directory",
    "--resume=occupied": "occupied is not an attnbench run file",
    "--resume=packed.jsonl.gz": "packed.jsonl.gz is a damaged gzip file",
    "--resume=.": ". is a folder; give its run files",
}


@pytest.fixture
def littered(tool: Tool) -> Tool:
    tool.write("occupied", "not a run file\n")
    (tool.folder / "packed.jsonl.gz").write_bytes(b"\x1f\x8b damaged")
    (tool.folder / "gzipped").write_bytes(b"\x1f\x8b damaged")
    tool.write("spaced", '\ufeff{"schema": 2, "type": "run"}\n')
    (tool.folder / "link.html").symlink_to(tool.write("other.yaml", "axes: {}\n"))
    (tool.folder / "named.html").symlink_to("later.jsonl")
    tool.write("own.py", "number = 5\n")
    tool.write("python", "#!/bin/sh\n")
    tool.write("syntax.py", "def f(:\n")
    tool.write("needs.py", "import no_such_lib\n")
    tool.write("leaves.py", "raise SystemExit(3)\n")
    return tool


def check(tool: Tool, *args: str, says: str) -> None:
    before = sorted(tool.folder.rglob("*"))
    result = tool(*args, code=2)
    assert result.err.startswith("attnbench: ")
    assert result.err.count("\n") == 1, result.err
    assert says in result.err
    assert result.out == ""
    assert [p for p in sorted(tool.folder.rglob("*")) if "__pycache__" not in p.parts] == before


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS.items())
def test_bad_options(littered: Tool, options: str, says: str) -> None:
    check(littered, *FAKE, *options.split(" "), says=says)


def test_an_unknown_device(littered: Tool) -> None:
    check(littered, "run", "--device=gpu", says="--device: 'gpu' is not")


BAD_SUITES = {
    "backend: [fake]": 'backend: unknown key; did you mean "backends"?',
    "axes: {seqlens: 1k}": 'axes.seqlens: unknown key; did you mean "seqlen"?',
    "axes: {seqlen: 1k}\nexclude: [{seqln: 1k}]": 'exclude.0.seqln: unknown key; did you mean "seqlen"?',
    "axes: {seqlen: 1k}\non_cpu: {axis: {}}": 'on_cpu.axis: unknown key; did you mean "axes"?',
    "axes: {seqlen: 1k}\nmin-samples: 5": "min-samples: not a key here; it stands under policy, as in policy: {min_s",
    "axes: {seqlen: 1k}\npolicy: {seqlen: 2k}": "policy: unknown key 'seqlen'; it stands under axes, as in axes: {seq",
    "axes: {seqlen: 1k}\npolicy: {time-limit: 2m}": "policy: unknown key 'time-limit'; it stands at the top of the",
    "axes: {seqlen: 1k}\npolicy: {min_samples: 5000}": "policy: min_samples: 5000 is more than max_samples, 1000",
    "axes: {seqlen: 1k}\nmax_seconds: 1": "max_seconds: not a key here; it stands under policy, as in policy: {max_s",
    "axes: {seqlen: 1k, tokens: 2k}": "axes.tokens: not a key here; it stands at the top of the file",
    "axes: {seqlen: 1k}\npolicy: {timeout: 5}": "policy: unknown key 'timeout'; did you mean \"timeout_s\"?",
    "axes: {seqlen: 1k}\npolicy: {timeout_s: soon}": "policy: timeout_s: 'soon' is not",
    "axes: {seqlen: 1k}\npolicy: {max_seconds: -1}": "policy: max_seconds: -1 is not",
    "axes: {seqlen: 1k}\nbackends: 5": "backends: 5 is not a list",
    "axes: {seqlen: 1k, causal: maybe}": "axes.causal: 'maybe' is not true or false or a list",
    "axes: [1k]": "axes: ['1k'] is not a mapping (name: value)",
    "axes: {seqlen: 1k}\npolicy: {seed: [1]}": "policy.seed: [1] is not true or false or a whole number or",
    "axes: {seqlen: 1k}\ncases: [5]": "cases.0: 5 is not a mapping (name: value)",
    "axes: {seqlen: 1k}\ntokens: [1]": "tokens: [1] is not text or a whole number",
    "axes: {seqlen: 1k}\ninterpreters: {1: 2}": "interpreters.1: 1 is not text; put it in quotes",
    "axes: {seqlen: 12:30}": "seqlen: '12:30' is not a size; write 4k",
    "axes: {seqlen: 0x10}": "seqlen: '0x10' is not a size; write 4",
    "axes: {seqlen: 1k}\npolicy: {timeout_s: 1:30}": "policy: timeout_s: '1:30' is not a number",
    "axes: " + "[" * 100_000: "not readable as YAML: it is nested too deeply",
    "axes: " + "{a: " * 20_000: "not readable as YAML: it is nested too deeply",
    "axes: {seqlen: 1k}\n" + "- " * 20_000: "not readable as YAML: ",
    "axes: {seqlen: 1k}\ncases:\n" + "- {seqlen: 8k}\n" * 20_000: "larger than 256 KiB; write lists and ranges",
    "axes: {seqlen: [1k": "not readable as YAML: ",
    "\x07": "not readable as YAML: ",
    "just words": "a suite is a mapping with axes",
    "": "a suite is a mapping with axes",
    "axes: {headdim: 64}": "seqlen is missing",
    "axes: {seqlen: tall}": "seqlen: 'tall' is not a size",
    "axes: {seqlen: 1k}\ncases: [{seqlen: -4}]": "seqlen: -4 is not at least 1",
    "axes: {seqlen: 1k}\nexclude: [{seqlen: 1k}]": "nothing to measure: no case is left",
    "axes: {seqlen: 1k}\ntime_limit: soon": "mine.yaml: time_limit: 'soon' is not a duration",
    "axes: {seqlen: 1k}\ntp: 2": "--tp needs a model",
}


@pytest.mark.parametrize(("text", "says"), BAD_SUITES.items(), ids=[text[:40] for text in BAD_SUITES])
def test_bad_suites(tool: Tool, text: str, says: str) -> None:
    tool.write("mine.yaml", text)
    check(tool, *FAKE, "--suite", "mine.yaml", says=says)


BAD_REPORTS = {
    "": "give run files to report on",
    "nope.jsonl": "cannot read nope.jsonl: No such file or directory",
    "occupied": "occupied is not an attnbench run file",
    "/dev/zero": "/dev/zero is not an attnbench run file (it is a device)",
    ".": ". has no run file; attnbench run --out ./NAME.jsonl writes one",
    "run.jsonl --format=pdf": "--format: unknown 'pdf'; known: table, md, html, json, csv",
    "run.jsonl --metric=tflop": "--metric: unknown 'tflop'; did you mean \"tflops\"?",
    "run.jsonl --metric=latency,nix": "--metric: unknown 'nix'; known: ",
    "run.jsonl --by=bakend": "--by: unknown 'bakend'; did you mean \"backend\"?",
    "run.jsonl --by=nix --format=csv": "--by: unknown 'nix'",
    "occupied --html=packed.jsonl.gz": "packed.jsonl.gz: that is a run file, which would be overwritten",
    "occupied --svg=packed.jsonl.gz": "--svg packed.jsonl.gz: that is a run file, which would be overwritten",
    "packed.jsonl.gz --html=python": "--format html=python: that is a program, which would be overwritten",
    "packed.jsonl.gz --html=own.py": "--format html=own.py: that is Python code, which would be overwritten",
    "occupied --html=gzipped": "--format html=gzipped: that is a run file",
    "occupied --html=spaced": "--format html=spaced: that is a run file",
    "occupied --html=link.html": "--format html=link.html: that is YAML, which would be overwritten",
    "occupied --html=named.html": "--format html=named.html: that is the name of a run file",
    "occupied --html=x.svg --svg=x.svg": "--svg: x.svg is given twice; one would overwrite the other",
    "occupied --tp=2": "--tp needs a model; name one with --model",
    "occupied --by=": "--by: the value is empty",
    "run.jsonl --format=csv,md": "--format: csv,md are several; give -f csv -f md, all but one with a file: -f FORMAT=",
    "run.jsonl --format=csv --format=md": "--format: csv and md cannot both be printed; write one to a file: -f",
    "run.jsonl --panel=d128": "--panel: only --png and --svg draw a single figure; add --svg FILE or --png FILE",
    "run.jsonl --figure=speedup --panel=d64 --html=page.html": "--figure and --panel: only --png and --svg draw a",
    "run.jsonl --all --by=dtype --format=json": "--by and --all: for tables only (--format table, md)",
    "run.jsonl --metric=latency --svg=x.svg": "--metric: for tables only (--format table, md); everything else has",
    "run.jsonl --flops-convention=half": "--flops-convention: unknown 'half'; known: exact, fa",
}


@pytest.mark.parametrize(("options", "says"), BAD_REPORTS.items())
def test_bad_reports(littered: Tool, options: str, says: str) -> None:
    check(littered, "report", *filter(None, options.split(" ")), says=says)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["suites", "defalt"], "no suite 'defalt'; did you mean \"default\"?"),
        (["suites", "../secret"], "no suite '../secret'; known: "),
        (["gate", "a", "b", "--margins", "/dev/zero"], "/dev/zero: not readable as YAML: it is a device"),
        (["backends", "--python", "x"], "--python: 'x' is not NAME=PATH"),
        (["backends", "-f", "tabel"], "--format: unknown 'tabel'; did you mean \"table\"?"),
        (["backends", "--matrix", "--python", "fa4=python3"], "--python: the matrix asks no library"),
        (["backends", "--into", "x.md", "--gpu", "h100"], "--into rewrites the matrix of a file"),
        *(
            (
                [command, "--device", "cpu", "-b", "eager", "--ranks", "2"],
                "ranks: eager computes on one device, not on 2",
            )
            for command in ("run", "capacity", "profile")
        ),
        (["run", "--device", "cpu", "--ranks", "2"], "ranks: each of these backends computes on one device, not on 2"),
        (["check", f"{__file__}:f", "-b", f"{__file__}:f"], ":f is named twice, and would be measured once"),
        (["check", "eager", "--ranks", "2"], "no such option: --ranks; "),
        (["gate", "a", "b", "--margin", "3%", "--margin", "5%"], "--margin is given twice"),
        (["compare", "a", "b", "--name", "a=x", "--name", "a=y"], "--name a= is given twice"),
        (["compare", "a", "b", "--workload="], "--workload: the value is empty"),
        (["recommend", "a", "--backend="], "--backend: the value is empty"),
        (["report", "a", "--metric="], "--metric: the value is empty"),
        (["gate", "a", "b", "-m", " "], "--metric: the value is empty"),
        (["history", "a", "--branch="], "--branch: the value is empty"),
        (["capacity", "x.jsonl", "--memory", "2g"], "with files of earlier searches nothing is run"),
        (["claims", "x.jsonl", "--list"], "--list shows claims, and run files judge them"),
        (["step", "x.jsonl", "--allow-wrong"], "--allow-wrong: for measuring; with run files nothing is measured"),
        (["step", "tiny", "--batch", "0"], "--batch: 0 is not at least 1"),
        (["baseline", "list", "--dir", __file__], "is no folder of baselines"),
    ],
)
def test_bad_words_for_the_other_commands(tool: Tool, args: list[str], says: str) -> None:
    check(tool, *args, says=says)


def paths_of_commands() -> dict[str, list[str]]:
    """Return for each parameter of paths a command line with an empty path; other arguments are "x"."""
    found = {}
    todo: list[tuple[list[str], Any]] = [([], get_command(command_line()))]
    while todo:
        words, command = todo.pop()
        todo += [([*words, name], of) for name, of in getattr(command, "commands", {}).items()]
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        for param in command.params:
            if words and "Path" in str(inspect.get_annotations(command.callback, eval_str=True).get(param.name)):
                given = [] if param in arguments else [f"{param.opts[0]}="]
                rest = ["" if other is param else "x" for other in arguments if other is param or other.required]
                found[" ".join([*words, param.name])] = [*words, *given, *rest]
    return found


@pytest.mark.parametrize("args", [*paths_of_commands().values(), ["step", ""]], ids=" ".join)
def test_an_empty_path_is_not_the_working_directory(littered: Tool, args: list[str]) -> None:
    check(littered, *args, says=": the path is empty; give one (is a variable of the shell empty?)")


def test_a_gpu_that_is_not_there(tool: Tool) -> None:
    check(tool, "run", "-b", "fake", "--device", "cuda:97", says="torch")


def test_a_command_that_is_not_there(tool: Tool) -> None:
    check(tool, "reprot", says="""attnbench: no command 'reprot'; did you mean "report"?""")
    check(tool, "bench", says="no command 'bench'; known: run, report, check,")


def test_a_newer_run_file(tool: Tool) -> None:
    tool.write("run.jsonl", '{"type": "run", "schema": 99}\n')
    check(tool, "report", "run.jsonl", says="written by a newer attnbench (schema 99, this one reads 2); upgrade")


def test_a_read_only_folder(tool: Tool) -> None:
    """A read-only folder is an error. Root may write anywhere, so for root the test uses /proc."""
    check(tool, *FAKE, "--out", "/proc/run.jsonl", says="cannot write /proc/run.jsonl: ")


@pytest.mark.parametrize(
    "args",
    [
        ["run", "--bogus"],
        ["run", "stray"],
        ["bogus"],
        ["run", "--rounds", "many"],
        ["run", "--seed", "x"],
        ["run", "-b"],
    ],
)
def test_what_typer_refuses_is_exit_code_2_too(tool: Tool, args: list[str]) -> None:
    result = tool(*args, code=2)
    assert result.err
    assert result.out == ""
    assert list(tool.folder.iterdir()) == []
