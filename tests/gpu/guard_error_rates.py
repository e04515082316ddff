"""Count the verdicts of `assert_not_slower` on a kernel as fast as another, or slower by a known share, on one GPU.

    python tests/gpu/guard_error_rates.py FOLDER [--share 0.05]

Two builds of SDPA's flash kernel are measured in turns as by the fixture, some hundred cells together, and each cell is
judged alone at each look, as by an assertion on it, with the margin of 3 %. The second build is slower by the share
(planted.py: a spin after each call; 0 for none). The script prints the numbers of cells that are slower, not slower and
undecided; with a share of 0 also for the two builds exchanged. FOLDER keeps the run files.

Where FOLDER has the files a.jsonl.gz and b.jsonl.gz of two equal builds, nothing is measured: their rounds are
resampled, slowed by exactly the share, and judged.

    python tests/gpu/guard_error_rates.py results/guard --share 0.05

To try it without a GPU: --device fake --base fake.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "statistics"))

from bisect_experiment import attnbench, options, plant, spins

from attnbench.analysis.gate import findings
from attnbench.analysis.gate.margins import Margins
from attnbench.api.arguments import settings
from attnbench.api.watching import Unwatched
from attnbench.core import stats
from attnbench.core.record import Record, Run
from attnbench.results import run_file
from attnbench.results.cells import Key
from attnbench.run.ab import in_turns
from attnbench.run.ab.turns import Standing

LENGTHS = "512,768,1k,1280,1536,2k,2560,3k,3584,4k,5k,6k,8k"
CELLS = {"seqlen": LENGTHS, "headdim": "64,128", "dtype": "bf16,fp16", "direction": "fwd"}  # with both masks
OPTIONS = {"direction": "pass"}
ASKED = findings.Request(("latency",), Margins({"latency": 0.03}))
WORDS = {0: "not slower", 1: "slower", 3: "undecided"}


def of_cell(run: Run, key: Key) -> Run:
    """Return a run with the records of one cell only."""
    jobs, records = ([one for one in of if (one.case, one.backend) == key] for of in (run.plan, run.records))
    return replace(run, plan=jobs, records=records)


class EachAlone:
    """A gate that judges each cell alone, and keeps the exit code at the first look that decides it."""

    def __init__(self) -> None:
        self.decided: list[dict[Key, int]] = [{}, {}]  # B judged by A, and A by B

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


def slowed(record: Record, by: float, **changes: Any) -> Record:
    """Return a record with its samples multiplied by `by`, and other fields changed."""
    time_ = record.measurements["time"]
    values = tuple(by * value for value in time_.values)
    return replace(record, measurements={**record.measurements, "time": replace(time_, values=values)}, **changes)


def resampled(a: Run, b: Run, share: float) -> Iterator[tuple[Run, Run]]:
    """Yield twelve pairs of turns for each cell, as B and as A: its own first four, and the turns of two other cells.

    The other cells' samples are scaled to the cell's average, and B's samples by 1 + share.
    """
    rounds: dict[Key, list[list[Record]]] = {(job.case, job.backend): [[], []] for job in a.plan}
    for side, run in enumerate((a, b)):
        for record in run.records:
            if record.round < 4:
                rounds[record.case, record.backend][side].append(record)
    middle = {
        key: stats.median([stats.median(record.measurements["time"].values) for record in of_a])
        for key, (of_a, _) in rounds.items()
    }
    keys = sorted(rounds, key=lambda key: (key[0].key, key[1]))
    random.Random(1).shuffle(keys)
    for place, key in enumerate(keys):
        case, backend = key
        plan = [job for job in a.plan if (job.case, job.backend) == key]
        made: list[list[Record]] = [[], []]
        for number, other in enumerate(keys[place - step] for step in (0, 1, 2)):
            for side in (0, 1):
                for record in rounds[other][side]:
                    by, turn = middle[key] / middle[other], record.round + 4 * number
                    made[side].append(slowed(record, by, case=case, backend=backend, round=turn))
        for first, second in (made, made[::-1]):
            yield (
                replace(a, plan=plan, records=first),
                replace(b, plan=plan, records=[slowed(one, 1 + share) for one in second]),
            )


def judge_resampled(folder: Path, share: float) -> None:
    """Print the numbers of pairs of turns at which resampled cells are decided, and the verdicts."""
    a, b = (run_file.read(next(folder.glob(f"{name}.jsonl*")))[0] for name in "ab")
    counted: Counter[tuple[int, str]] = Counter()
    for pair in resampled(a, b, share):
        for look in (4, 6, 8, 12):
            runs = [replace(run, records=[one for one in run.records if one.round < look]) for run in pair]
            code = findings.judge(runs[0], runs[1], ASKED).exit_code
            if code != 3:
                break
        counted[look, WORDS.get(code, f"exit code {code}")] += 1
    for (look, word), number in sorted(counted.items()):
        print(f"slower by {share:.0%}, resampled: after {look} pairs {number} {word}")


def main() -> None:
    asked = options(__doc__)
    if (asked.folder / "a.jsonl.gz").exists():
        judge_resampled(asked.folder, asked.share)
        return
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
