"""What reports, gates, comparisons and the like print for some of the run files in results/, kept in expected/.

Tables, markdown, XML and the text of a page are kept as they are. CSV, JSON and the data of a page are large, so a
digest is kept for each column or field; numbers are rounded to nine digits first, since libraries differ in the last
ones.

After an intended change, write all expected outputs again, or those with some names, and read the difference:

    python tests/golden/golden.py
    python tests/golden/golden.py 'report-*.txt' compare.md
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attnbench.results import run_file

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "expected"
WIDTH = "140"  # characters of the terminal
FILES = {run_file.name(path): path.relative_to(ROOT).as_posix() for path in (ROOT / "results").glob("*.jsonl*")}
# One of each kind, and of each GPU where that shows: what a report may hold. The rest are read by test_golden.py too.
REPORTED = (
    "20261121-055556-instruments-nvidia-h200",
    "20261121-060508-sustained-nvidia-h200",
    "20261121-065713-short-nvidia-h200",
    "20261121-114304-triton-nvidia-h200",
    "20261121-141028-default-nvidia-h200",
    "20261121-174520-libraries-nvidia-h200",
    "20261121-175359-first-call-nvidia-h200",
    "20261121-203134-fp8-nvidia-h200",
    "20261121-211235-features-nvidia-h200",
    "20261123-140542-default-nvidia-h100",
    "20261123-141048-sustained-nvidia-h100",
    "20261123-141253-default-nvidia-h200",
    "20261123-142318-masks-nvidia-h200",
    "20261123-165707-approximate-nvidia-h100",
    "20261124-020208-claims-nvidia-h100",
    "20261124-025920-step-nvidia-h100",
    "20261124-120111-capacity-nvidia-h200",
    "20261125-082457-several-gpus-nvidia-h100",
    "20261125-095433-own-kernels-nvidia-h200",
    "20261125-194926-libraries-nvidia-h200",
    "20261125-195215-serving-nvidia-h200",
    "20261125-195746-training-packed-nvidia-h100",
    "20261125-223921-paged-decode-nvidia-h100",
    "20261125-225412-layouts-nvidia-h100",
    "20261126-012407-several-gpus-nvidia-h100",
    "20261126-014716-fp8-nvidia-h100",
)
DEFAULT, AGAIN, LIBRARIES = (
    "20261121-141028-default-nvidia-h200",
    "20261121-141425-default-nvidia-h200",
    "20261121-174520-libraries-nvidia-h200",
)


def _file(name: str) -> str:
    return FILES[name]


def _commands() -> dict[str, tuple[str, ...]]:
    """Return name of an expected output -> arguments of attnbench. The ending of the name tells how it is kept."""
    found: dict[str, tuple[str, ...]] = {}
    for run in REPORTED:
        short = re.sub(r"^(\d+)-(\d+)-(.+)-nvidia-h200$", r"\3-\2", run)
        for ending in ("txt", "md", "csv", "json"):
            kind = {"txt": "table"}.get(ending, ending)
            found[f"report-{short}.{ending}"] = ("report", _file(run), "-f", kind)
        found[f"report-{short}.html"] = ("report", _file(run), "--html", "{tmp}/page.html")
    metrics = "latency,ci,utilization_clock,roofline,speedup,memory_peak,clock_held,error,launch_gap,enqueue"
    found |= {
        "report-metrics.txt": ("report", _file(LIBRARIES), "-m", metrics),
        "report-by-headdim.txt": ("report", _file(DEFAULT), "--by", "headdim", "--flops-convention", "fa"),
        "report-two-runs.txt": ("report", _file(DEFAULT), _file(AGAIN)),
        "report-two-runs.csv": ("report", _file(DEFAULT), _file(AGAIN), "-f", "csv"),
        "report-bmf.json": ("report", _file(DEFAULT), "-f", "bmf"),
        "report-github.json": ("report", _file(DEFAULT), "-f", "github-action-benchmark"),
        "compare-name.txt": ("compare", _file(DEFAULT), _file(LIBRARIES), "--price", "h200=3.40/h"),
    }
    for ending in ("txt", "md", "csv", "json", "html"):
        kind = {"txt": "table"}.get(ending, ending)
        found[f"compare.{ending}"] = ("compare", _file(DEFAULT), _file(AGAIN), "-f", kind)
    cards = [f"results/spreads/{name}-1.jsonl.gz" for name in ("h100-ff241cb2", "h200-7f3cc288")]
    for ending in ("txt", "md", "csv", "json", "html"):
        kind = {"txt": "table"}.get(ending, ending)
        found[f"recommend-libraries.{ending}"] = ("recommend", _file(LIBRARIES), "-f", kind)
    found["recommend-libraries-all.txt"] = ("recommend", _file(LIBRARIES), "--all")
    found["recommend-two-cards.txt"] = ("recommend", *cards, "--seqlen", "8k")
    found["recommend-two-cards.csv"] = ("recommend", *cards, "-f", "csv")
    experiment = "results/ci-experiment"
    for ending in ("txt", "md", "json", "xml"):
        kind = {"txt": "table", "xml": "junit"}.get(ending, ending)
        found[f"gate-runs.{ending}"] = ("gate", _file(DEFAULT), _file(AGAIN), "-f", kind, "--all")
        found[f"gate-slow-10.{ending}"] = (
            "gate",
            f"{experiment}/alike-00.jsonl",
            f"{experiment}/slow-10.jsonl",
            "-f",
            kind,
        )
    found["gate-slow-10-github.txt"] = (*found["gate-slow-10.txt"][:-1], "github")
    for other in range(1, 20, 3):
        pair = f"{experiment}/alike-00.jsonl", f"{experiment}/alike-{other:02}.jsonl"
        found[f"gate-alike-{other:02}.txt"] = ("gate", *pair, "--all")
        found[f"gate-alike-{other:02}.json"] = ("gate", *pair, "-f", "json")
    found["history.json"] = ("history", experiment, "-f", "json")
    found["history-join-units.txt"] = ("history", experiment, "--join-units", "--all")
    pair = _file(DEFAULT), _file(LIBRARIES)
    found["gate-not-comparable.txt"] = ("gate", *pair)
    found["gate-cycles.txt"] = ("gate", _file(DEFAULT), _file(AGAIN), "-m", "cycles,latency,enqueue")
    saving = ("baseline", "save", f"{experiment}/alike-00.jsonl", "--dir", "{tmp}/baselines")
    found["baseline-save.txt"] = saving
    found["baseline-list.txt"] = (*saving, ";", "baseline", "list", "--dir", "{tmp}/baselines")
    found["baseline-show.txt"] = (*saving, ";", "baseline", "show", "--dir", "{tmp}/baselines")
    found["baseline-report.csv"] = (*saving, ";", "report", "{tmp}/baselines/main/nvidia-h200.jsonl", "-f", "csv")
    found["baseline-gate.json"] = (
        *(*saving, ";", "gate", "{tmp}/baselines", f"{experiment}/slow-5.jsonl", "-f", "json"),
    )
    return found


COMMANDS = _commands()


def output(name: str) -> str:
    """Return what attnbench prints, or writes to a page, for COMMANDS[name], as it is kept in expected/.

    " ; " stands between commands that run one after the other; the last one's output counts.
    """
    with tempfile.TemporaryDirectory() as folder, in_the_root():
        printed = ""
        for arguments in " ".join(COMMANDS[name]).split(" ; "):
            printed = run([word.replace("{tmp}", folder) for word in arguments.split()])
        printed = printed.replace(folder, "TMP")
        page = Path(folder) / "page.html"
        if page.is_file():
            printed = page.read_text(encoding="utf-8")
    return kept(printed, Path(name).suffix)


def kept(text: str, ending: str) -> str:
    """Return the text, or for a format that is large the digests of its columns or fields."""
    if ending == ".csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        return _digests({column: [row[column] for row in rows] for column in rows[0]})
    if ending == ".json":
        return _digests(_fields(json.loads(text)))
    if ending == ".html":
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
        prose = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        return (_digests(_fields(json.loads(data[1]))) if data else "") + prose
    return text


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a mapping by name, or for a list of mappings the values of each key."""
    if isinstance(value, list):
        keys = dict.fromkeys(key for row in value for key in row)
        return {key: [row.get(key) for row in value] for key in keys}
    found: dict[str, Any] = {}
    for key, one in value.items():
        rows = isinstance(one, list) and one and all(isinstance(row, dict) for row in one)
        parts = _fields(one) if rows else one if isinstance(one, dict) else None
        found |= {f"{key}.{name}": of for name, of in parts.items()} if parts else {key: one}
    return found


def _digests(fields: Mapping[str, Any]) -> str:
    """Return a line for each field: its name, and 16 hexadecimal digits of the SHA-256 of its values."""
    lines = (
        f"{name}: {hashlib.sha256(json.dumps(_rounded(of)).encode()).hexdigest()[:16]}" for name, of in fields.items()
    )
    return "\n".join(lines) + "\n"


def _rounded(value: Any) -> Any:
    """Return a JSON value whose numbers, also those in text, have nine significant digits."""
    if isinstance(value, str):
        return re.sub(r"-?\d+\.\d+(e[+-]?\d+)?", lambda number: f"{float(number[0]):.9g}", value)
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value


def run(arguments: list[str]) -> str:
    """Return what attnbench prints to stdout. Raises AssertionError with its stderr for an exit code of an error."""
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
    """Work in the root of the project, so that no path of a machine is printed, with a terminal of WIDTH."""
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
    """Write the expected outputs whose names fit a pattern, or all; files that belong to no command are removed."""
    names = [name for name in COMMANDS if any(fnmatch(name, pattern) for pattern in patterns or ["*"])]
    found = {name: output(name) for name in names}  # all of them first, so that an error loses none
    EXPECTED.mkdir(exist_ok=True)
    for path in EXPECTED.iterdir():
        if path.name not in COMMANDS:
            path.unlink()
    for name, text in found.items():
        (EXPECTED / name).write_text(text, encoding="utf-8")
    print(f"{len(found)} of {len(COMMANDS)} expected outputs written")


if __name__ == "__main__":
    main(sys.argv[1:])
