"""Count what `assert_not_slower` says of a kernel that is as fast as another, or slower by a known share, on one GPU.

    python tests/gpu/guard_error_rates.py FOLDER [--share 0.05]

Two builds of SDPA's flash kernel are measured in turns as the fixture does, some hundred cells at once, and each cell
is judged alone at each look, as an assertion of that cell would be, by the margin of 3 %. The second build is slower by
the share (planted.py: a spin after each call; 0 for none). It prints how many cells were called slower, not slower and
undecided; with a share of 0 also of the two builds exchanged. FOLDER keeps the run files.

To try it without a GPU: --device fake --base fake.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))

from bisect_experiment import attnbench, options, plant, spins

from attnbench.analysis.gate import findings
from attnbench.analysis.gate.margins import Margins
from attnbench.api.arguments import settings
from attnbench.api.watching import Unwatched
from attnbench.core.record import Run
from attnbench.results.cells import Key
from attnbench.run.ab import in_turns
from attnbench.run.ab.turns import Standing

LENGTHS = "512,768,1k,1280,1536,2k,2560,3k,3584,4k,5k,6k,8k"
CELLS = {"seqlen": LENGTHS, "headdim": "64,128", "dtype": "bf16,fp16", "direction": "fwd"}  # and causal or not
OPTIONS = {"direction": "pass"}
ASKED = findings.Request(("latency",), Margins({"latency": 0.03}))
WORDS = {0: "not slower", 1: "slower", 3: "undecided"}


def of_cell(run: Run, key: Key) -> Run:
    """Return a run as it would be had it measured one cell alone."""
    jobs, records = ([one for one in of if (one.case, one.backend) == key] for of in (run.plan, run.records))
    return replace(run, plan=jobs, records=records)


class EachAlone:
    """A gate that judges each cell alone, and keeps the exit code at the first look that decides it."""

    def __init__(self) -> None:
        self.decided: list[dict[Key, int]] = [{}, {}]  # of B by A, and of A by B

    def refuses(self, a: Run, b: Run) -> bool:
        return bool(findings.split_differences(a, b, ())[1])

    def standing(self, a: Run, b: Run) -> Standing:
        still: set[Key] = set()
        for decided, before, after in zip(self.decided, (a, b), (b, a), strict=True):
            for key in {(job.case, job.backend) for job in a.plan}:
                if decided.get(key, 3) == 3:
                    code = decided[key] = findings.judge(of_cell(before, key), of_cell(after, key), ASKED).exit_code
                    still |= {key} if code == 3 else set()
        return Standing(still, 0)


def main() -> None:
    asked = options(__doc__)
    first = asked.folder / "plain.jsonl"
    plant(asked.folder / "a", asked.base, 0.0, {})
    if asked.share and not first.exists():
        axes = [word for name, value in CELLS.items() for word in (f"--{OPTIONS.get(name, name)}", value)]
        words = ("run", "-b", "./kernel.py:Planted", "--device", asked.device, *axes, "--out", str(first))
        attnbench(*words, folder=asked.folder / "a", log=asked.folder / "plain.log")
    plant(asked.folder / "b", asked.base, asked.share, spins(first, "", asked.share) if asked.share else {})
    request = in_turns.Request(
        a=f"{asked.folder}/a/kernel.py:Planted",
        b=f"{asked.folder}/b/kernel.py:Planted",
        settings=settings(CELLS),
        device=asked.device,
        time_limit=3600,
        out=asked.folder / f"share-{asked.share}",
    )
    gate, began = EachAlone(), time.monotonic()
    resolved, both, here = in_turns.prepare(request, False, Unwatched())
    found = in_turns.measure(request, resolved, both, here, gate, began + 3600, Unwatched())
    for decided in gate.decided[: 1 if asked.share else 2]:
        counted = Counter(WORDS.get(code, f"exit code {code}") for code in decided.values())
        print(f"slower by {asked.share:.0%}: of {len(decided)} cells", dict(counted))
    print(f"{found.pairs} pairs of turns, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
