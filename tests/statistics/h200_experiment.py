"""Measure runs without a change and with known slowdowns on a GPU, for the error rates of a gate.

    python tests/statistics/h200_experiment.py DIR [--device cuda:1]

It measures the suite ci on one backend twenty times without a change, and once for each slowdown of planted.py. DIR has
one file for each run; another call measures missing ones. `attnbench gate` judges two files; test_gate_error_rates.py
judges the files of results/ci-experiment, where only runs of one unit are compared.

To try it without a GPU: --device fake --base fake. On an H200 a run takes 58 to 84 s, so 23 runs take half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from bisect_experiment import spins
from planted import VARIABLE

from attnbench.results import run_file

HERE = str(Path(__file__).parent)


def is_whole(path: Path) -> bool:
    run = run_file.read(path)[0] if path.is_file() else None
    return run is not None and not run_file.missing(run) and any(r.status == "ok" for r in run.records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--base", default="triton", help="the backend to slow")
    parser.add_argument("--alike", type=int, default=20, help="runs without a slowdown")
    parser.add_argument("--slowdowns", default="2,5,10", help="per cent")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    alike = [(f"alike-{i:02}", 0.0) for i in range(asked.alike)]
    slowed = [(f"slow-{word}", float(word) / 100) for word in asked.slowdowns.split(",")]
    # Slowed and unchanged runs alternate, so that an early stop leaves runs of both kinds.
    for name, share in filter(None, itertools.chain(*itertools.zip_longest(alike, slowed))):
        path = asked.folder / f"{name}.jsonl"
        if is_whole(path):
            continue
        path.unlink(missing_ok=True)  # the file of a stopped run
        plan = path.with_suffix(".plan.json")
        cycles = spins(asked.folder / "alike-00.jsonl", "", share) if share else {}
        plan.write_text(json.dumps({"base": asked.base, "share": share, "cycles": cycles}))
        words = ("run", "--suite", "ci", "--device", asked.device, "--rounds", "5", "--backend", "planted:Planted")
        command = [sys.executable, "-m", "attnbench", *words, "--out", str(path)]
        path_of_planted = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path_of_planted, VARIABLE: str(plan)}
        with path.with_suffix(".log").open("w") as log:
            done = subprocess.run(command, env=env, stdout=log, stderr=log)
        if done.returncode:
            raise SystemExit(f"{name}: attnbench run ended with {done.returncode}; see {path.with_suffix('.log')}")


if __name__ == "__main__":
    main()
