"""An experiment on a real GPU: the error rates of `attnbench gate` with nothing changed and with known slowdowns.

    python tests/statistics/h200_experiment.py DIR [--device cuda:1]

It measures the suite ci on one backend twenty times as it is, and once for each slowdown that planted.py puts into it.
Then it judges the unchanged runs in disjoint pairs, and each slowed run against the unchanged ones. DIR holds one file
for each run: called again, it measures those that are missing. Only runs of one unit are compared.

To try it without a GPU: --device fake --base fake. On an H200 a run takes 58 to 84 s, so 23 runs take half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bisect_experiment import spins
from planted import VARIABLE

from attnbench.analysis.gate.findings import Judgement, Request, judge
from attnbench.analysis.gate.margins import DEFAULT, Margins
from attnbench.analysis.gate.verdicts import Finding
from attnbench.core import stats
from attnbench.core.errors import EXIT_REGRESSION
from attnbench.core.record import Run
from attnbench.results import run_file

HERE = str(Path(__file__).parent)
WANTED = 10  # disjoint pairs
Runs = Mapping[str, Run]


@dataclass(frozen=True)
class Experiment:
    folder: Path
    device: str
    base: str
    suite: str
    rounds: int
    alike: int  # runs without a slowdown
    slowdowns: tuple[float, ...]  # 0.02 is 2 %
    margins: tuple[float, ...]

    def names(self) -> list[str]:
        """Return the runs in the order of measuring: a slowed one comes after an unchanged one.

        So an early stop leaves runs of all kinds.
        """
        alike = [f"alike-{i:02}" for i in range(self.alike)]
        mixed = itertools.zip_longest(alike, map(slow, self.slowdowns))
        return [name for two in mixed for name in two if name]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def slow(share: float) -> str:
    return f"slow-{100 * share:g}"


def _measure(experiment: Experiment, name: str) -> None:
    """Measure one run, slowed by a share of what the first run took."""
    path, share = experiment.path(name), dict(zip(map(slow, experiment.slowdowns), experiment.slowdowns, strict=True))
    path.unlink(missing_ok=True)  # of a run that was stopped
    plan = experiment.folder / f"{name}.plan.json"
    cycles = spins(experiment.path(experiment.names()[0]), "", share[name]) if name in share else {}
    plan.write_text(json.dumps({"base": experiment.base, "share": share.get(name, 0.0), "cycles": cycles}))
    command = [sys.executable, "-m", "attnbench", "run", "--suite", experiment.suite, "--device", experiment.device]
    command += ["--rounds", str(experiment.rounds), "--out", str(path), "--backend", "planted:Planted"]
    path_of_planted = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path_of_planted, VARIABLE: str(plan)}
    with path.with_suffix(".log").open("w") as log:
        done = subprocess.run(command, env=env, stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit(f"{name}: attnbench run ended with {done.returncode}; see {path.with_suffix('.log')}")


def _whole(path: Path) -> bool:
    run = run_file.read(path)[0] if path.is_file() else None
    return run is not None and not run_file.missing(run) and any(r.status == "ok" for r in run.records)


def tables(experiment: Experiment) -> Iterator[str]:
    """Yield the lines of the tables of the runs that are there, as markdown."""
    runs = {n: run_file.read(p)[0] for n in experiment.names() if _whole(p := experiment.path(n))}
    alike = [name for name in runs if name.startswith("alike")]
    here = runs[alike[0]].environment
    units = [[name for name in alike if _unit(runs[name]) == unit] for unit in dict.fromkeys(map(_unit, runs.values()))]
    said = f"{here.device.name}, {experiment.base}, suite {experiment.suite}, {experiment.rounds} rounds"
    yield said + (f", on {len(units)} units" if len(units) > 1 else "")
    yield from _alike(experiment, runs, units)
    yield from _slowed(experiment, runs, alike)


def _alike(experiment: Experiment, runs: Runs, units: Sequence[Sequence[str]]) -> Iterator[str]:
    disjoint = [pair for of in units for pair in zip(of[::2], of[1::2], strict=False)]
    yield "\n## Nothing changed, all four metrics of the gate\n"
    yield from _row(
        "pairs", "margin", "with a regression", "results", "regressed", "inconclusive", "unchanged", "other"
    )
    yield from _row(*(":---", *("---:",) * 7))
    every = [pair for of in units for pair in itertools.combinations(of, 2)]
    for what, pairs in (("disjoint", disjoint), ("all, not independent", every)):
        for margin in experiment.margins:
            judged = [_judge(runs[a], runs[b], margin, DEFAULT) for a, b in pairs]
            findings = [f for j in judged for f in j.findings]
            bad = sum(j.exit_code == EXIT_REGRESSION for j in judged)
            yield from _row(f"{len(pairs)} {what}", f"{margin:.0%}", bad, len(findings), *_verdicts(findings))


def _slowed(experiment: Experiment, runs: Runs, alike: Sequence[str]) -> Iterator[str]:
    yield "\n## Slowed, latency, cells over gates\n"
    yield "The baseline is the run measured before it, then each run without a slowdown in turn (not independent).\n"
    figures = ("cells", "found", "inconclusive", "missed", "other")
    headings = ("planted", "read: median, range", "margin", "against", *figures)
    yield from _row(*headings)
    yield from _row(*("---:",) * len(headings))
    for share in experiment.slowdowns:
        name = slow(share)
        if name not in runs:
            continue
        here = [other for other in runs if _unit(runs[other]) == _unit(runs[name])]
        here.sort(key=lambda other: runs[other].started)  # in whole seconds: within one, they stay as measured
        fair = [other for other in here if other in alike]
        before = [other for other in here[: here.index(name)] if other in alike][-1:]
        for margin in experiment.margins:
            for what, baselines in (("the one before", before), (f"all {len(fair)}", fair)):
                findings = [f for b in baselines for f in _judge(runs[b], runs[name], margin, ("latency",)).findings]
                read = sorted(f.decision.change for f in findings if f.decision)
                said = f"{stats.median(read):.2%}, {read[0]:.2%} to {read[-1]:.2%}" if read else "-"
                promise = "" if share > margin else " (within)"
                counts = _verdicts(findings)
                yield from _row(f"{share:.0%}", said, f"{margin:.0%}{promise}", what, len(findings), *counts)


def _unit(run: Run) -> str | None:
    return run.environment.device.uuid


def _judge(baseline: Run, current: Run, margin: float, metrics: tuple[str, ...]) -> Judgement:
    return judge(baseline, current, Request(metrics, Margins({"latency": margin})))


def _verdicts(findings: Sequence[Finding]) -> tuple[int, int, int, int]:
    counts = Counter(f.verdict for f in findings)
    told = counts["regressed"], counts["inconclusive"], counts["unchanged"]
    return (*told, len(findings) - sum(told))


def _row(*entries: object) -> Iterator[str]:
    yield f"| {' | '.join(map(str, entries))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--base", default="triton", help="the backend to slow")
    parser.add_argument("--suite", default="ci")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alike", type=int, default=2 * WANTED, help="runs without a slowdown")
    parser.add_argument("--slowdowns", default="2,5,10", help="per cent")
    parser.add_argument("--margins", default="1,3,5", help="per cent")
    given = vars(parser.parse_args())
    for name in ("slowdowns", "margins"):
        given[name] = tuple(float(word) / 100 for word in given[name].split(","))
    experiment = Experiment(**given)
    experiment.folder.mkdir(parents=True, exist_ok=True)
    for name in experiment.names():
        if not _whole(experiment.path(name)):
            _measure(experiment, name)
    print("\n".join(tables(experiment)))


if __name__ == "__main__":
    main()
