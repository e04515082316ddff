"""Each example of the documents and docstrings, and the scripts of examples/, work as a person copies them.

An example that shows results runs on run files of results/. An example that measures is resolved for a GPU: the file
examples_measure.txt has the measurements that it would make there, to be read beside the example's comment. Then it
runs shortened on a CPU or the simulated device. After a change of an example, a suite or a default write the file again
and read it:

    python tests/test_examples.py
"""

from __future__ import annotations

import contextlib
import functools
import glob
import gzip
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
import typer
from typer.testing import CliRunner

import worker_here
from attnbench.analysis.ab import run_ab
from attnbench.commands.command_line import COMMANDS, command_line
from attnbench.core import masks
from attnbench.core.axes import AXES
from attnbench.core.sizes import format_duration
from attnbench.results.case_names import EXTRAS
from attnbench.run import device_probe, run_suite, workers
from attnbench.run.profile import profile as profiles
from attnbench.run.suite import load_suite, resolve
from examples import Example, examples, mentions, quoted

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
RUN = "results/20261121-055556-instruments-nvidia-h200.jsonl.gz"
MEASURES = Path(__file__).parent / "examples_measure.txt"
MEASURING = ("run", "ab", "profile")
PARSED_ONLY = (
    "bisect",
    "doctor",
    "env",
    "check",
    "capacity",
    "cluster",
    "site",  # takes all of results/; tests/by_hand/test_site.py has a site of a few files
)  # need minutes, a repository, a network or Ray; tests/cli tests the last two
ALIKE = ROOT / "results" / "ci-experiment"
KERNEL = """
import torch

def attention(q, k, v, *, causal, softmax_scale):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=softmax_scale, enable_gqa=True)
    return out.transpose(1, 2)

my_attention = attention
"""
WORKLOAD = "name: chat\nparts: [{weight: 100%, seqlen: 4k, headdim: 128, causal: true, pass: fwd}]\n"
ALL = examples()
ONCE = {one.arguments: one for one in reversed(ALL)}.values()


def _measures(one: Example) -> bool:
    """Return whether an example measures; some commands do without run files, `claims` also without its list."""
    name, *words = one.arguments
    given = any(".jsonl" in word or word == "--list" or (name == "tune" and word == "--suite") for word in words)
    return name in MEASURING or (name in ("recommend", "claims", "step", "tune") and not given)


SHOWING = [
    one
    for one in ONCE
    if not _measures(one)
    and one.arguments[0] not in PARSED_ONLY
    and not {"--settle", "--resume", "--suite"} & {*one.arguments}  # test_settle.py, test_cli_tune.py
    and one.arguments not in quoted()  # test_tables.py
]
RUNS = [one for one in ONCE if one.arguments[0] in ("run", "recommend") and _measures(one)]


class Asked(Exception):
    """Raised in place of a measurement, with the request."""


def invoke(arguments: tuple[str, ...]) -> Any:
    return CliRunner().invoke(command_line(arguments[0]), arguments)


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Return a context in which workers run in this process."""
    with contextlib.ExitStack() as stack:
        for module in (workers, device_probe):
            stack.enter_context(patch.object(module, "WorkerProcess", worker_here.Here))
        yield


@functools.cache
def measures(example: Example) -> str:
    """Return the measurements of an example on a GPU, as text."""

    def asked(request: Any, *_: Any, **__: Any) -> None:
        raise Asked(request)

    with contextlib.ExitStack() as stack:
        for module, name in ((run_suite, "run_suite"), (run_ab, "ab"), (profiles, "profile")):
            stack.enter_context(patch.object(module, name, asked))
        found = invoke(example.arguments).exception
    assert isinstance(found, Asked), f"{example.id}: {found!r}"
    (request,) = found.args
    if example.arguments[0] == "profile":
        cases, backends, more = (profiles.one_case(request, "cuda")[0],), request.backends, []
    else:
        suite = load_suite(request.suite) if isinstance(request.suite, str) else request.suite
        resolved = resolve(suite, "cuda", request.settings)
        cases, backends = resolved.cases, resolved.backends
        more = [f"{rounds} rounds"] if (rounds := getattr(request, "rounds", 1)) > 1 else []
        more += [f"at most {format_duration(resolved.time_limit)}"] if resolved.time_limit else []
    axes = {name: list(dict.fromkeys(map(axis.text, map(axis.of, cases)))) for name, axis in AXES.items()}
    axes["mask"] = [*map(masks.without_folder, axes["mask"])]
    if axes["seqlen_q"] == axes["seqlen"]:
        del axes["seqlen_q"]
    if axes["nheads_k"] == axes["nheads"]:
        del axes["nheads_k"]
    usual = {name: [AXES[name].text(AXES[name].usual)] for name in EXTRAS}
    words = [f"{name} {' '.join(v)}" for name, v in axes.items() if v != usual.get(name, ["none"])]
    return "; ".join([f"{len(cases)} cases", *words, f"backends {' '.join(backends or ['all'])}", *more])


def measured() -> str:
    """Return the expected content of examples_measure.txt."""
    said = {" ".join(one.arguments): measures(one) for one in ONCE if _measures(one)}
    return "".join(f"attnbench {example}\n    {what}\n" for example, what in sorted(said.items()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the examples name."""
    made = tmp_path_factory.mktemp("examples")
    (made / "results").mkdir()
    (made / "nightly").symlink_to(ALIKE)
    for path in (ROOT / "results").glob("*.jsonl*"):
        (made / "results" / path.name).symlink_to(path)
    (made / "examples").symlink_to(ROOT / "examples")
    (made / "docs").mkdir()
    (made / "docs" / "backends.md").write_bytes((ROOT / "docs" / "backends.md").read_bytes())
    for name in ("mine.py", "my_kernel.py", "old.py", "new.py"):
        (made / name).write_text(KERNEL)
    (made / "chat.yaml").write_text(WORKLOAD)
    (made / "history-acknowledged.yml").write_text('- {cells: "triton *", at: 3f2a1b9c, reason: meant}\n')
    names = {"alike-00": ("baseline", "old", "main", "v2"), "alike-01": ("current", "new", "results/now")}
    names |= {"alike-02": ("again",), "alike-03": ("third",)}
    for run, copies in names.items():
        content = (ALIKE / f"{run}.jsonl").read_bytes().replace(b"Planted", b"attention")  # the name in docs/ci.md
        for name in copies:
            (made / f"{name}.jsonl").write_bytes(content)
    h200 = gzip.decompress((ROOT / "results" / "20261121-141425-default-nvidia-h200.jsonl.gz").read_bytes())
    for name in ("h200", "lab-1", "run"):
        (made / f"{name}.jsonl").write_bytes(h200)
    (made / "mine.jsonl").write_bytes(h200.replace(b'"triton"', b'"attention"'))
    for name in ("h100", "lab-2"):
        (made / f"{name}.jsonl").write_bytes(h200.replace(b"NVIDIA H200", b"NVIDIA H100 80GB HBM3"))
    sustained = (ROOT / "results" / "20261121-060508-sustained-nvidia-h200.jsonl").read_bytes()
    (made / "h200-sustained.jsonl").write_bytes(sustained)
    (made / "h100-sustained.jsonl").write_bytes(sustained.replace(b"NVIDIA H200", b"NVIDIA H100 80GB HBM3"))
    (made / "first.jsonl").symlink_to(ROOT / "results" / "20261121-175359-first-call-nvidia-h200.jsonl")
    with inside(made), simulated():
        assert invoke(("baseline", "save", "main.jsonl")).exit_code == 0
        of_model = ("run", "--model", "llama-3.1-8b", "--seqlen", "4k", "--out", "llama.jsonl")
        assert invoke((*of_model, "--device", "fake", "-b", "fake")).exit_code == 0
        for phase in ("prefill", "decode"):
            of_phase = ("--phase", phase, "--batch", "32", "--seqlen", "2k", "--out", f"{phase}.jsonl")
            assert invoke((*of_model[:3], *of_phase, "--device", "fake", "-b", "fake")).exit_code == 0
            for gpu in ("H200", "H100"):
                text = (made / f"{phase}.jsonl").read_text().replace("Simulated GPU", f"NVIDIA {gpu}")
                (made / f"llama-{gpu.lower()}-{phase}.jsonl").write_text(text)
    return made


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def expanded(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return arguments with patterns of files replaced by the files, as in a shell, but by the first of many."""
    return tuple(word for argument in arguments for word in (sorted(glob.glob(argument))[:30] or [argument]))


def test_there_are_examples_everywhere() -> None:
    files = {one.file for one in ALL}
    assert {"README.md", "CONTRIBUTING.md", "docs/ci.md", "attnbench/commands/run.py"} <= files
    assert len(ALL) > 60


def test_what_examples_measure_is_what_was_read() -> None:
    """Measurements of examples are as in the file; after a change a person reads whether comments still hold."""
    assert measured() == MEASURES.read_text(), "python tests/test_examples.py writes it; read the difference"


def test_an_example_of_decoding_is_a_decode_step() -> None:
    decode = [one for one in RUNS if "--seqlen-q 1" in " ".join(one.arguments)]
    assert decode
    for one in decode:
        said = measures(one)
        headdim = "576-512" if "--latent" in one.arguments else "128"
        assert f"; seqlen_q 1; headdim {headdim};" in said
        assert "; direction fwd; causal true;" in said


@pytest.mark.parametrize("example", SHOWING, ids=lambda one: one.id)
def test_an_example_that_shows_something_runs(folder: Path, example: Example) -> None:
    with inside(folder):
        done = invoke(expanded(example.arguments))
    assert done.exit_code in ((0, 3) if example.arguments[0] == "gate" else (0,)), f"{done.output}\n{done.exception!r}"
    assert done.output.strip()


@pytest.mark.parametrize("example", RUNS, ids=lambda one: one.id)
def test_an_example_that_measures_runs_in_short(folder: Path, example: Example, tmp_path: Path) -> None:
    """Each example runs on the simulated device; examples with the README's own code run on a CPU."""
    options = _options(example.arguments)
    own_code = example.file == "README.md" and any(".py:" in word for word in example.arguments)
    if own_code:
        short = ["--device", "cpu", "--dtype", "fp32", "--headdim", "16", "--batch", "1", "--pass", "fwd"]
        short += ["--seqlen", "64", "--l2", "warm", "--max-seconds", "0.01s", "--warmup", "0.001s"]
    else:
        left_out = ("-b", "--backend", "--untrusted")  # the simulated device has no kernels to judge
        options = [option for option in options if option[0] not in left_out]
        chunk = any(word == ["--seqlen-q", "2k"] for word in options)
        short = ["--device", "fake", "-b", "fake"]
        if not any(word[0] == "--lengths" and re.search(r"\d", word[1]) for word in options):  # all of a list
            short += ["--seqlen", "4k" if chunk else "256"]
    if "--dry-run" not in example.arguments:
        short += ["--out", str(tmp_path / "run.jsonl")]
    options = [option for option in options if option[0] not in short or option[0] == "-b"] + _options(tuple(short))
    with inside(folder), simulated():
        done = invoke(tuple(word for option in options for word in option))
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"


def test_what_is_read_from_python_runs(folder: Path) -> None:
    blocks = (ROOT / "docs/run-files.md").read_text().split("```python\n")[1:]
    (code,) = (block.partition("```")[0] for block in blocks if block.startswith("import attnbench"))
    with inside(folder):
        exec(code, {})


def _options(arguments: tuple[str, ...]) -> list[list[str]]:
    """Return the command, and its options with their values."""
    found: list[list[str]] = []
    for word in arguments:
        if found and not word.startswith("-") and found[-1][0].startswith("-"):
            found[-1].append(word)
        else:
            found.append([word])
    return found


def test_every_option_of_an_example_is_known() -> None:
    """Options in running text, where words may be placeholders, are known too."""
    for example in (*ALL, *mentions()):
        try:
            read_options(example)
        except (typer.Exit, click.ClickException, AssertionError) as error:
            pytest.fail(f"{example.id}: {error!r}")


def read_options(example: Example) -> None:
    name, *words = example.arguments
    assert name in COMMANDS
    command: Any = typer.main.get_command(command_line(name))
    context = typer.Context(command, info_name="attnbench")
    command = command.commands[name]
    if hasattr(command, "commands") and words:
        command = command.commands[words.pop(0)]
    parser = command.make_parser(typer.Context(command, parent=context, info_name=name, **command.context_settings))
    _, left, _ = parser.parse_args(words)
    if command.context_settings.get("ignore_unknown_options"):  # `cluster run` takes the options of `run`
        of_run = typer.main.get_command(command_line("run")).commands["run"]  # type: ignore[attr-defined]
        of_run.make_context("run", left)


def run_script(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path.relative_to(ROOT)), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_the_figures_of_a_run_file(path: Path) -> None:
    lines = run_script(path, RUN).splitlines()
    assert lines[0].startswith("1 runs, ")
    assert lines[1] == "latency is in s, tflops in TFLOP/s"
    assert all("TFLOP/s" in line for line in lines[2:])
    assert len(lines) > 2


if __name__ == "__main__":
    MEASURES.write_text(measured())
