"""Tables of shapes that tune had not measured: the module of its choice against every single backend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cog  # of the running cog

from attnbench.analysis.recommend import problem_names
from attnbench.analysis.recommend.findings import Candidate, Problem, answered_once, problems
from attnbench.core.formats import digits, duration
from attnbench.results import run_file
from attnbench.results.cells import cells

ROOT = Path(__file__).parents[2]
MODULE = "attention"  # the module's function, as a backend
SDPA, TRANSFORMERS = "sdpa", "hf-sdpa"


def table(*files: str) -> None:
    """Print a row for each shape of some run files, and a sentence on the shapes where the module is slower."""
    found = [one for file in files for one in _problems(file) if one.right]
    cog.outl("\n| shape | module | fastest other | module's time over its | SDPA's default | transformers' default |")
    cog.outl("| :--- | ---: | :--- | ---: | ---: | ---: |")
    for problem in found:
        cog.outl("| " + " | ".join(_row(problem)) + " |")
    slower = [problem for problem in found if not _is_among_fastest(problem)]
    names = ", ".join(map(problem_names.name, slower))
    what = f"slower than another backend by more than the uncertainty, or wrong, in {len(slower)}: {names}"
    what = what if slower else "among the fastest, within the uncertainty, in all"
    alike = sum(map(_runs_the_fastest, slower))
    same = f" In {alike} of these it ran the same kernels as the fastest." if alike else ""
    cog.outl(f"\nOf {len(found)} shapes the module is {what}.{same}")


def _problems(file: str) -> list[Problem]:
    run, _ = run_file.read(ROOT / file)
    return problem_names.told_apart(answered_once(problems(cells([run], by_machine=True))))


def _row(problem: Problem) -> Iterator[str]:
    own, other = _of(problem, MODULE), next((one for one in problem.candidates if one.backend != MODULE), None)
    yield problem_names.label(problem, with_step=True)
    yield duration(own.latency) if own else "WRONG"
    yield f"{other.name}, {duration(other.latency)}" if other else "-"
    yield digits(own.latency / other.latency) if own and other else "-"
    for name in (SDPA, TRANSFORMERS):
        one = _of(problem, name)
        yield f"{one.ran or 'ran'}, {duration(one.latency)}" if one else "-"


def _of(problem: Problem, name: str) -> Candidate | None:
    return next((one for one in problem.candidates if one.backend == name), None)


def _runs_the_fastest(problem: Problem) -> bool:
    """Return whether the module, where it was right, ran the kernels of the fastest backend."""
    own = _of(problem, MODULE)
    return bool(own and own.kernels and own.kernels == problem.right[0].kernels)


def _is_among_fastest(problem: Problem) -> bool:
    return MODULE in {one.backend for one in (*problem.fastest, *problem.contest.doubtful)}
