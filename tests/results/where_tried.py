"""Compute attnbench/results/where_tried.json from results/: the devices on which each backend gave right results.

    python tests/results/where_tried.py                     writes the file
    attnbench backends --matrix --into docs/backends.md     shows it in the document

A trial is a backend on a model of device with a version of its library. Trials come from the run files of results/, and
from results/trials.json, which names the trials of tests on a GPU, which have no run file.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from attnbench.backends import BACKENDS, OF_KIND, SEVERAL
from attnbench.core.axes import AXES
from attnbench.core.errors import UserError
from attnbench.core.record import Record, Run
from attnbench.results import run_file, where_tried
from attnbench.results.where_tried import features

RESULTS = Path(__file__).parents[2] / "results"
TABLE = Path(where_tried.__file__).with_suffix(".json")
Found = tuple[str, str, str, str, str]  # backend, device, version, pass, feature
ORDER = ("dense", "fp8", *OF_KIND, *(axis.kind for axis in AXES.values() if axis.kind))


def version(run: Run, record: Record) -> str:
    """Return the libraries with their version numbers, without the parts that identify a build."""
    said = record.version or run.versions.get(record.backend, "")
    if re.match(r"\d", said):  # only the number
        alone = said.partition(", ")[0]
        said = next((f"{name} {number}" for name, number in run.environment.packages.items() if number == alone), said)
    return ", ".join(part for part in said.split(", ") if re.match(r"(?!code |without )\S+ \d", part))


def of_run(run: Run) -> Iterator[Found]:
    """Yield the right trials of a run. A backend that splits a sequence counts only where it did."""
    model = re.sub(r" \d+GB.*", "", run.environment.device.name)
    for record in run.records:
        case, backend = record.case, record.backend
        ships = backend in BACKENDS and run.specs.get(backend, "").startswith("attnbench.")
        if record.status == "ok" and ships and (case.ranks > 1 or backend not in SEVERAL):
            device = f"{case.ranks} {model}" if case.ranks > 1 else model
            for direction in {"fwd", "bwd"} & {*case.direction.split("_")}:
                for feature in features(case):
                    yield backend, device, version(run, record), direction, feature


def found() -> Iterator[Found]:
    """Yield the right trials of all run files, then the trials that have no run file."""
    for path in sorted(RESULTS.rglob("*.jsonl*")):
        try:
            run, _ = run_file.read(path)
        except UserError:  # ci-experiment has tables of another kind
            continue
        yield from of_run(run)
    for trial in json.loads((RESULTS / "trials.json").read_text(encoding="utf-8")):
        for backend in trial["backends"]:
            for direction in ("fwd", "bwd"):
                for feature in trial[direction]:
                    yield backend, trial["on"], trial["with"], direction, feature


def table() -> str:
    """Return the content of where_tried.json, a line for each trial."""
    seen: Mapping[str, dict[tuple[str, str], dict[str, set[str]]]]
    seen = defaultdict(lambda: defaultdict(lambda: {"fwd": set(), "bwd": set()}))
    for backend, device, libraries, direction, feature in found():
        seen[backend][device, libraries][direction].add(feature)
    parts = []
    for backend in (name for name in BACKENDS if name in seen):
        lines = [
            json.dumps({"on": device, "with": libraries, **{name: in_order(words) for name, words in passes.items()}})
            for (device, libraries), passes in sorted(seen[backend].items())
        ]
        parts.append(f"{json.dumps(backend)}: [\n" + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def in_order(words: set[str]) -> list[str]:
    return sorted(words, key=ORDER.index)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
