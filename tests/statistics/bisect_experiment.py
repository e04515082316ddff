"""Test on a GPU whether `attnbench bisect` finds a known slowdown of a real backend, and measure the time.

    python tests/statistics/bisect_experiment.py DIR [--share 0.03]

It makes three repositories of eight commits each. One commit, at another place in each repository, slows the backend by
the share (planted.py: a spin after each call), and one commit does not build. The script bisects each, and prints the
result and the minutes. DIR keeps the run files.

To try it without a GPU: --device fake --base fake.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from attnbench.analysis.gate.rounds import round_values
from attnbench.core import stats
from attnbench.results import run_file
from attnbench.results.cells import cells

COMMITS = 8
PLACES = {2: 4, 5: 2, 8: 4}  # slow commit -> commit that does not build
KERNEL = """
import os
from pathlib import Path

os.environ["ATTNBENCH_PLANTED"] = str(Path(__file__).with_name("planted.json"))
from planted import Planted  # noqa: E402, F401
"""


def attnbench(*words: str, folder: Path, log: Path) -> int:
    with log.open("a") as out:
        print("$ attnbench", *words, file=out, flush=True)
        return subprocess.run(
            [sys.executable, "-m", "attnbench", *words], cwd=folder, stdout=out, stderr=out
        ).returncode


def plant(folder: Path, base: str, share: float, cycles: dict[str, int]) -> None:
    """Write the code of a backend that is slowed by a share; see planted.py."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("planted.py"), folder)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "planted.json").write_text(json.dumps({"base": base, "share": share, "cycles": cycles if share else {}}))


def commit_each(repository: Path, base: str, slow: int, share: float, cycles: dict[str, int]) -> None:
    """Make a repository whose commit `slow` slows the backend by a share; its first commit has the tag "good"."""
    shutil.rmtree(repository, ignore_errors=True)
    git = ("git", "-C", str(repository), "-c", "user.name=planted", "-c", "user.email=planted@example.org")
    for place in range(COMMITS + 1):
        plant(repository, base, share if place >= slow else 0.0, cycles)
        (repository / "build.sh").write_text(f"# commit {place}\nexit {int(place == PLACES[slow])}\n")
        first = place == 0
        for words in (["init", "--quiet"] * first, ["add", "."], ["commit", "--quiet", "-m", f"commit {place}"]):
            subprocess.run([*git, *words], check=True) if words else None
        if first:
            subprocess.run([*git, "tag", "good"], check=True)


def spins(file: Path, base: str, share: float) -> dict[str, int]:
    """Return case key -> SM cycles of the share of each cell's time in a run, without cells of the backend `base`."""
    slowed = [cell for cell in cells([run_file.read(file)[0]]) if cell.backend != base]
    found = {cell.case.key: round_values("cycles", cell) for cell in slowed}
    return {key: round(share * stats.median([*values.values()])) for key, values in found.items() if values}


def options(doc: str | None) -> argparse.Namespace:
    """Return the common options of experiments with a planted backend, and let workers find planted.py."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--base", default="sdpa-flash")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    return parser.parse_args()


def main() -> None:
    asked = options(__doc__)
    folder = asked.folder
    cell = ("--device", asked.device, "--seqlen", "4k", "--headdim", "128", "--causal", "--pass", "fwd")
    plain, first = folder / "plain", folder / "plain.jsonl"
    plant(plain, asked.base, 0.0, {})
    words = ("run", "--backend", "./kernel.py:Planted", *cell, "--rounds", "3", "--out", str(first))
    if not first.exists() and attnbench(*words, folder=plain, log=folder / "plain.log"):
        raise SystemExit(f"the cell could not be measured; see {folder / 'plain.log'}")
    cycles = spins(first, asked.base, asked.share)
    print("| slow commit | found | its slowdown | A/Bs | minutes |\n| ---: | ---: | ---: | ---: | ---: |", flush=True)
    for slow in PLACES:
        repository, result = folder / f"repository-{slow}", folder / f"found-{slow}.json"
        commit_each(repository, asked.base, slow, asked.share, cycles)
        began = time.monotonic()
        words = ("bisect", "good..", "--code", "kernel.py:Planted", "--build", "sh build.sh", *cell)
        words += ("--time-limit", "20m", "--out", str(folder / f"ab-{slow}"), "-f", f"json={result}")
        code = attnbench(*words, folder=repository, log=folder / f"bisect-{slow}.log")
        said = json.loads(result.read_text()) if result.exists() else {"found": None, "steps": []}
        named = next((step for step in said["steps"] if step["commit"] == said["found"]), None)
        what = f"{named['subject']} | {100 * named['change']:.2f} %" if named else f"none (exit code {code}) |"
        measured = sum(step["change"] is not None for step in said["steps"])
        print(f"| {slow} | {what} | {measured} | {(time.monotonic() - began) / 60:.1f} |", flush=True)


if __name__ == "__main__":
    main()
