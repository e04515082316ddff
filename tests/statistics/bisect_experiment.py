"""An experiment on a real GPU: does `attnbench bisect` find a known slowdown of a real backend, and in what time?

    python tests/statistics/bisect_experiment.py DIR [--share 0.03] [--only 5]

It makes three repositories of eight commits each. One commit slows the backend by the share (planted.py: a spin after
each call), at another place in each repository, and one commit does not build. Then it bisects each, and prints what
was found and the minutes. DIR keeps the run files: called again, it goes on. --only bisects the repository whose slow
commit has that number.

To try it without a GPU: --device fake --base fake, or --device cpu --base sdpa-flash --seqlen 512.
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
PLACES = {2: 4, 5: 2, 8: 4}  # the slow commit -> the one that does not build
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


def make(repository: Path, base: str, slow: int, broken: int, share: float, cycles: dict[str, int]) -> None:
    """Make a repository whose commit `slow` slows the backend by a share; its first commit has the tag "good"."""
    shutil.rmtree(repository, ignore_errors=True)
    repository.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("planted.py"), repository)
    (repository / "kernel.py").write_text(KERNEL)
    git = ("git", "-C", str(repository), "-c", "user.name=planted", "-c", "user.email=planted@example.org")
    subprocess.run([*git, "init", "--quiet"], check=True)
    for place in range(COMMITS + 1):
        planted = {"base": base, "share": share, "cycles": cycles} if place >= slow else {"share": 0.0, "cycles": {}}
        (repository / "planted.json").write_text(json.dumps({"base": base, **planted}))
        (repository / "build.sh").write_text(f"# commit {place}\nexit {int(place == broken)}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", f"commit {place}"], check=True)
        if not place:
            subprocess.run([*git, "tag", "good"], check=True)


def spins(file: Path, base: str, share: float) -> dict[str, int]:
    """Return the cycles of the share of what each cell took in a run, by case key; not of the backend `base`."""
    slowed = [cell for cell in cells([run_file.read(file)[0]]) if cell.backend != base]
    found = {cell.case.key: round_values("cycles", cell) for cell in slowed}
    return {key: round(share * stats.median([*values.values()])) for key, values in found.items() if values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--only", type=int, choices=[*PLACES])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--base", default="sdpa-flash")
    parser.add_argument("--seqlen", default="4k")
    asked = parser.parse_args()
    folder: Path = asked.folder.resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    cell = ("--device", asked.device, "--seqlen", asked.seqlen, "--headdim", "128", "--causal", "--pass", "fwd")
    cycles: dict[str, int] = {}
    if asked.device.startswith("cuda"):
        first, plain = folder / "plain.jsonl", folder / "plain"
        if not first.exists():
            make(plain, asked.base, 1, 0, 0.0, {})
            words = ("run", "--backend", "./kernel.py:Planted", *cell, "--rounds", "3", "--out", str(first))
            if attnbench(*words, folder=plain, log=folder / "plain.log"):
                raise SystemExit(f"the cell could not be measured; see {folder / 'plain.log'}")
        cycles = spins(first, asked.base, asked.share)
    print("| slow commit | found | its slowdown | A/Bs | minutes |\n| ---: | ---: | ---: | ---: | ---: |", flush=True)
    for slow, broken in PLACES.items():
        if asked.only not in (None, slow):
            continue
        repository, result = folder / f"repository-{slow}", folder / f"found-{slow}.json"
        if not repository.exists():
            make(repository, asked.base, slow, broken, asked.share, cycles)
        began = time.monotonic()
        words = ("bisect", "good..", "--code", "kernel.py:Planted", "--build", "sh build.sh", *cell)
        words += ("--time-limit", "20m", "--out", str(folder / f"ab-{slow}"), "-f", f"json={result}")
        code = attnbench(*words, folder=repository, log=folder / f"bisect-{slow}.log")
        minutes = (time.monotonic() - began) / 60
        said = json.loads(result.read_text()) if result.exists() else {"found": None, "steps": []}
        named = next((s for s in reversed(said["steps"]) if s["commit"] == said["found"]), None)
        what = f"{named['subject']}" if named else f"none (exit code {code})"
        change = (
            f"{100 * named['change']:.2f} % ({100 * named['low']:.2f} to {100 * named['high']:.2f} %)" if named else ""
        )
        measured = sum(step["change"] is not None for step in said["steps"])
        print(f"| {slow} | {what} | {change} | {measured} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
