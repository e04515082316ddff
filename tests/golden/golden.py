"""The output of reports, gates, comparisons and others for some of the run files in results/, kept in expected/.

Each output is a table or markdown that a person can review; `figures.txt` has a line of figures for every run file. The
other formats hold the same data: tests of the schema look at them (test_formats.py).

After an intended change, write all expected outputs again, or those with some names, and read the difference:

    python tests/golden/golden.py
    python tests/golden/golden.py 'report-*.txt' compare.md
"""

from __future__ import annotations

import io
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from unittest.mock import patch

from attnbench.results import run_file
from attnbench.results.cells import Cell, cells

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "expected"
WIDTH = "140"  # characters of the terminal
FILES = {run_file.name(path): path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("*.jsonl*")}
FIGURES = "figures.txt"
# One of each kind, and of each GPU where that shows: what a report may hold.
REPORTED = {
    "20261121-055556-instruments-nvidia-h200": "txt",
    "20261121-060508-sustained-nvidia-h200": "txt md",
    "20261121-065713-short-nvidia-h200": "txt md",
    "20261121-114304-triton-nvidia-h200": "txt",
    "20261121-141028-default-nvidia-h200": "txt",
    "20261121-175359-first-call-nvidia-h200": "txt md",
    "20261121-203134-fp8-nvidia-h200": "txt md",
    "20261121-211235-features-nvidia-h200": "txt",
    "20261123-140542-default-nvidia-h100": "txt md",
    "20261123-142318-masks-nvidia-h200": "txt",
    "20261123-165707-approximate-nvidia-h100": "txt md",
    "20261124-020208-claims-nvidia-h100": "txt md",
    "20261124-025920-step-nvidia-h100": "txt md",
    "20261124-120111-capacity-nvidia-h200": "txt md",
    "20261125-082457-several-gpus-nvidia-h100": "txt md",
    "20261125-095433-own-kernels-nvidia-h200": "txt",
    "20261125-194926-libraries-nvidia-h200": "txt",
    "20261125-195746-training-packed-nvidia-h100": "txt",
    "20261125-223921-paged-decode-nvidia-h100": "txt md",
    "20261125-225412-layouts-nvidia-h100": "txt md",
    "20261126-014716-fp8-nvidia-h100": "txt",
}
DEFAULT, AGAIN, LIBRARIES = (
    "20261121-141028-default-nvidia-h200",
    "20261121-141425-default-nvidia-h200",
    "20261121-174520-libraries-nvidia-h200",
)
SHORT, SUSTAINED = "20261121-065713-short-nvidia-h200", "20261123-141048-sustained-nvidia-h100"


def _commands() -> dict[str, tuple[str, ...]]:
    """Return name of an expected output -> arguments of attnbench. The ending of the name tells the format."""
    found: dict[str, tuple[str, ...]] = {}

    def add(name: str, endings: str, *arguments: str) -> None:
        for ending in endings.split():
            found[f"{name}.{ending}"] = (*arguments, "-f", {"txt": "table"}.get(ending, ending))

    for run, endings in REPORTED.items():
        short = re.sub(r"^(\d+)-(\d+)-(.+)-nvidia-h200$", r"\3-\2", run)
        add(f"report-{short}", endings, "report", FILES[run])
    metrics = "latency,ci,utilization_clock,roofline,speedup,memory_peak,clock_held,error,launch_gap,enqueue"
    add("report-metrics", "txt", "report", FILES[SHORT], "-m", metrics)
    add("report-by-pass", "txt", "report", FILES[SHORT], "--by", "pass", "--flops-convention", "fa")
    add("report-two-runs", "txt", "report", FILES[SUSTAINED], FILES["20261121-060508-sustained-nvidia-h200"])
    add("compare", "txt md", "compare", FILES[DEFAULT], FILES[AGAIN])
    add("compare-all", "txt", "compare", FILES[DEFAULT], FILES[AGAIN], "--all")
    add("compare-name", "txt", "compare", FILES[DEFAULT], FILES[LIBRARIES], "--price", "h200=3.40/h")
    add("recommend-libraries", "txt md", "recommend", FILES[LIBRARIES])
    add("recommend-libraries-all", "txt", "recommend", FILES[LIBRARIES], "--all")
    cards = [f"results/spreads/{name}-1.jsonl.gz" for name in ("h100-ff241cb2", "h200-7f3cc288")]
    add("recommend-two-cards", "txt", "recommend", *cards, "--seqlen", "8k")
    experiment = "results/ci-experiment"
    slow = f"{experiment}/alike-00.jsonl", f"{experiment}/slow-10.jsonl"
    add("gate-slow-10", "txt md", "gate", *slow)
    add("gate-slow-10-github", "txt", "gate", *slow)
    found["gate-slow-10-github.txt"] = ("gate", *slow, "-f", "github")
    add("gate-cycles", "txt", "gate", *slow, "-m", "cycles,latency,enqueue")
    for other in ("04", "16"):
        add(f"gate-alike-{other}", "txt", "gate", slow[0], f"{experiment}/alike-{other}.jsonl", "--all")
    add("gate-not-comparable", "txt", "gate", FILES[DEFAULT], FILES[LIBRARIES])
    add("history-join-units", "txt", "history", experiment, "--join-units", "--all")
    saving = ("baseline", "save", slow[0], "--dir", "{tmp}/baselines")
    found["baseline-save.txt"] = saving
    for verb in ("list", "show"):
        found[f"baseline-{verb}.txt"] = (*saving, ";", "baseline", verb, "--dir", "{tmp}/baselines")
    gate = ("gate", "{tmp}/baselines", f"{experiment}/slow-5.jsonl")
    found["baseline-gate.txt"] = (*saving, ";", *gate)
    return found


COMMANDS = _commands()


def output(name: str) -> str:
    """Return what attnbench prints for COMMANDS[name], or the figures of all run files.

    " ; " stands between commands that run one after the other; the last one's output counts.
    """
    if name == FIGURES:
        return "".join(f"{run}: {figures_of(ROOT / FILES[run])}\n" for run in sorted(FILES))
    with tempfile.TemporaryDirectory() as folder, in_the_root():
        printed = ""
        for arguments in " ".join(COMMANDS[name]).split(" ; "):
            printed = run([word.replace("{tmp}", folder) for word in arguments.split()])
        return printed.replace(folder, "TMP")


def figures_of(path: Path) -> str:
    """Return how the cells of a run file ended, and geometric means over the cells."""
    found = cells([run_file.read(path)[0]])
    ended = Counter(cell.status for cell in found)
    told = [", ".join(f"{count} {status}" for status, count in sorted(ended.items()))]
    for metric, of, unit in (
        ("latency", 1e-6, "us"),
        ("ci", 1e-2, "%"),
        ("tflops", 1.0, "TFLOP/s"),
        ("gbps", 1.0, "GB/s"),
        ("memory_peak", 2**20, "MiB"),
        ("roofline", 1e-2, "%"),
    ):
        if mean := _mean(found, metric):
            told.append(f"{metric} {mean / of:.5g} {unit}")
    return "; ".join(filter(None, told))


def _mean(found: list[Cell], metric: str) -> float:
    """Return the geometric mean of the values above 0; 0 where there is none."""
    logs = [math.log(value) for cell in found if (value := cell.value(metric) or 0.0) > 0]
    return math.exp(math.fsum(logs) / len(logs)) if logs else 0.0


def run(arguments: list[str]) -> str:
    """Return the stdout of attnbench. Raises AssertionError with its stderr where the exit code is an error's."""
    from attnbench import cli

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        redirect_stdout(out),
        redirect_stderr(io.StringIO()) as err,
        patch.object(sys, "argv", ["attnbench", *arguments]),
    ):
        try:
            cli.main()
        except SystemExit as end:
            if end.code not in (0, 1, 3, 4, None):
                raise AssertionError(err.getvalue()) from None
    out.flush()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


@contextmanager
def in_the_root() -> Iterator[None]:
    """Return a context in the root of the project, so that no path of this machine is printed, with a WIDTH."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with patch.dict(os.environ, {"COLUMNS": WIDTH, "TERM": "dumb"}):
            os.environ.pop("GITHUB_ACTIONS", None)
            os.environ.pop("GITHUB_STEP_SUMMARY", None)
            yield
    finally:
        os.chdir(before)


def main(patterns: list[str]) -> None:
    """Write all expected outputs, or those whose names fit a pattern; remove files that belong to no command."""
    every = [*COMMANDS, FIGURES]
    names = [name for name in every if any(fnmatch(name, pattern) for pattern in patterns or ["*"])]
    found = {name: output(name) for name in names}  # all of them first, so that an error loses none
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.iterdir():
        if path.name not in every:
            path.unlink()
    for name, text in found.items():
        (EXPECTED / name).write_text(text, encoding="utf-8")
    print(f"{len(found)} of {len(every)} expected outputs written")


if __name__ == "__main__":
    main(sys.argv[1:])
