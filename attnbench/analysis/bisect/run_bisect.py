"""A bisection from the request to its outcome."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from attnbench.analysis.ab import run_ab
from attnbench.analysis.bisect import search
from attnbench.analysis.bisect.search import Step
from attnbench.analysis.gate import findings as gate_findings
from attnbench.analysis.gate.margins import Margins
from attnbench.analysis.gate.verdicts import interval, signed
from attnbench.core.errors import EXIT_DONE, EXIT_INCONCLUSIVE, Interrupted, UserError, nearest
from attnbench.core.sizes import format_duration
from attnbench.core.text import count, fits
from attnbench.results import run_file
from attnbench.results.case_names import full_name
from attnbench.run.ab import in_turns
from attnbench.run.commit_builds import Builds, NotBuiltError
from attnbench.run.commits import Commit, commits
from attnbench.run.select import available_backends, parse_device, select_backends
from attnbench.run.suite import Settings, load_suite, resolve_suite_for

if TYPE_CHECKING:
    from attnbench.render.progress.ab_progress import BisectProgress

SIGNALLED = 128  # plus the number of a signal: the exit code
MOST = 200  # cells among which a close name is looked for


@dataclass(frozen=True)
class Request:
    """The options of `attnbench bisect`."""

    commits: str  # "GOOD..BAD"
    cell: str = "*"  # its full name, or a glob that fits one cell alone
    code: str = ""  # "FILE.py:function" in the worktree of a commit; or else `python`
    python: str = ""  # the interpreter that the build makes in the worktree
    build: str = ""  # a command for a shell, run in the worktree
    build_limit: float = 3600.0  # seconds of one build
    metric: str = "latency"
    margin: float = 0.01  # relative: BAD must be slower than GOOD by more than this
    expect: tuple[str, ...] = ()  # names of differences between commits that are meant
    suite: str = "default"
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    time_limit: float = 3600.0  # seconds of all A/Bs together; builds do not count
    out: Path | None = None  # folder; A/Bs that an earlier bisect left there are not measured again
    argv: tuple[str, ...] = ()
    allow_busy: bool = False


@dataclass
class Outcome:
    """The state of a bisection. `low`: index of the last commit that is not slow; `high`: of the first slow commit."""

    request: Request
    commits: list[Commit]
    folder: Path  # with the run files of the A/Bs
    cells: Sequence[str] = ()  # the name of the cell, for each kind of device that may be found
    low: int = 0
    high: int = 0
    whole: Step | None = None  # the A/B of BAD against GOOD
    threshold: float | None = None  # relative change from which a commit is slow; None where BAD is not
    steps: list[Step] = field(default_factory=list)  # the A/Bs of commits between GOOD and BAD, as measured
    last: Step | None = None  # the A/B of the first slow commit against the last one that is not
    ended: str = ""  # "time" or "interrupted", where more could have been measured
    interrupt: int = 0  # the exit code of the signal

    @property
    def every(self) -> list[Step]:
        """All A/Bs, in the order in which they were measured."""
        return [step for step in (self.whole, *self.steps, self.last) if step]

    @property
    def skipped(self) -> set[int]:
        """The indices of the commits that could not be measured, or whose A/B decided nothing."""
        return {self.commits.index(step.commit) for step in self.steps if step.verdict in ("undecided", "skipped")}

    @property
    def confirmed(self) -> bool:
        """Whether the last A/B shows the slowdown between the two commits to which the search led."""
        return self.last is not None and self.last.verdict == "slow"

    @property
    def found(self) -> bool:
        """Whether there is one commit that is the answer."""
        return self.confirmed and self.high - self.low == 1

    @property
    def exit_code(self) -> int:
        """0: found; 3: not found; a gate's exit code where GOOD and BAD cannot be compared; or a signal's."""
        if self.found or self.interrupt:
            return EXIT_DONE if self.found else self.interrupt
        return (self.whole.exit_code if self.whole and not self.whole.finding else 0) or EXIT_INCONCLUSIVE


class _TimeUpError(Exception):
    """Raised where there is no time for another A/B."""


def bisect(request: Request, watcher: BisectProgress, clock: Callable[[], float] = time.monotonic) -> Outcome:
    """Find the commit that made a cell slower. However that ends, the folder of the outcome holds the run files.

    Raises UserError for options that are wrong, and where GOOD or BAD cannot be built or measured.
    """
    cells = _check(request)
    found = commits(request.commits)
    folder = request.out or Path("results") / f"{datetime.now():%Y%m%d-%H%M%S}-bisect"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out: {folder} is a file; give a folder, for the run files of the A/Bs")
    outcome = Outcome(request, found, folder, cells, high=len(found) - 1)
    watcher.tell(f"attnbench bisect  {count(len(found) - 1, 'commit')}, {found[0].short}..{found[-1].short}")
    watcher.tell(f"writing {folder}")
    builds = Builds(request.build, request.build_limit, request.code, request.python, folder, watcher.tell)
    try:
        Bisection(outcome, builds, watcher, clock).run()
    except Interrupted as end:
        outcome.ended, outcome.interrupt = "interrupted", end.exit_code
    except _TimeUpError:
        if not outcome.whole:
            limit, many = format_duration(request.time_limit), search.steps_ahead(0, len(found) - 1) + 1
            raise UserError(f"--time-limit: {limit} is too short for {many} A/Bs, the most needed; give more") from None
        outcome.ended = "time"
    finally:
        watcher.say("removing the worktrees")
        builds.close()
    return outcome


@dataclass
class Bisection:
    """Measures the A/Bs of a bisection, and keeps its outcome up to date."""

    outcome: Outcome
    builds: Builds
    watcher: BisectProgress
    clock: Callable[[], float]
    spent: float = 0.0  # seconds of A/Bs
    interrupt: int = 0  # the number of the signal that interrupted the A/B

    def run(self) -> None:
        """Measure until the answer is known. Raises UserError, Interrupted, and _TimeUpError."""
        found, request = self.outcome, self.outcome.request
        all_commits = len(found.commits) - 1
        ahead = 1 + search.steps_ahead(0, all_commits)
        found.whole = whole = self._step(found.commits[0], found.commits[-1], request.margin, ahead)
        self._stop_if_interrupted()
        if whole.verdict == "skipped" and not whole.exit_code:
            raise UserError(f"{whole.commit.short} cannot be compared with {whole.against.short}: {whole.reason}")
        if whole.verdict != "slow" or whole.decision is None:
            return
        found.threshold = search.threshold(whole.decision)
        while (place := search.next_commit(found.low, found.high, found.skipped)) is not None:
            ahead = search.steps_ahead(found.low, found.high)
            step = self._step(found.commits[0], found.commits[place], found.threshold, ahead)
            found.steps.append(step)
            if step.verdict == "slow":
                found.high = place
            elif step.verdict == "not slow":
                found.low = place
            self._stop_if_interrupted()
        if found.high - found.low < all_commits or all_commits == 1:
            pair = found.commits[found.low], found.commits[found.high]
            found.last = self._step(*pair, found.threshold, 1, "-last")
            self._stop_if_interrupted()

    def _stop_if_interrupted(self) -> None:
        if self.interrupt:
            raise Interrupted(self.interrupt)

    def _step(self, a: Commit, b: Commit, margin: float, ahead: int, ending: str = "") -> Step:
        """Return the result of one A/B of commits.

        It is read from the run files of an earlier bisect where these decide it. `ahead`: the number of A/Bs still
        expected, this one included. Raises UserError where `a` cannot be built, Interrupted, and _TimeUpError.
        """
        request, name = self.outcome.request, f"{a.short}-{b.short}{ending}"
        judged_by = gate_findings.Request((request.metric,), Margins({request.metric: margin}), request.expect)
        attempt = 1
        while (folder := self.outcome.folder / (f"{name}-{attempt}" if attempt > 1 else name)).exists():
            if judgement := self._kept(folder, judged_by):
                step = self._of(judgement, a, b, margin, attempt)
                if step.verdict in ("slow", "not slow"):
                    self.watcher.tell(f"{sentence(step)}; from {folder}")
                    return step
            attempt += 1
        step = self._measured(folder, judged_by, a, b, margin, ahead, attempt)
        self.watcher.tell(sentence(step))
        return step

    def _kept(self, folder: Path, judged_by: gate_findings.Request) -> gate_findings.Judgement | None:
        """Return the judgement of the run files that an earlier bisect left in a folder; None where they have none."""
        try:
            (a, _), (b, _) = (run_file.read(folder / name) for name in in_turns.FILES)
            judgement = gate_findings.judge(a, b, judged_by)
        except UserError:
            return None
        if other := next((one.name for one in judgement.findings if one.name not in self.outcome.cells), None):
            raise UserError(f"{folder} has an A/B of {other}; choose another --out")
        return judgement

    def _measured(
        self,
        folder: Path,
        judged_by: gate_findings.Request,
        a: Commit,
        b: Commit,
        margin: float,
        ahead: int,
        attempt: int,
    ) -> Step:
        request = self.outcome.request
        try:
            good = self.builds.build(a)
        except NotBuiltError as error:
            raise UserError(f"{a.short} cannot be measured: {error}") from None
        try:
            bad = self.builds.build(b)
        except NotBuiltError as error:
            return Step(a, b, margin, reason=str(error))
        began, limit = self.clock(), (request.time_limit - self.spent) / ahead
        self.watcher.tell(f"A/B of {b.title} against {a.short}, with a margin of {signed(margin)[1:]}")
        try:
            ended = run_ab.ab(
                run_ab.Request(
                    a=good,
                    b=bad,
                    judged_by=judged_by,
                    suite=request.suite,
                    settings=request.settings,
                    device=request.device,
                    time_limit=limit,
                    out=folder,
                    argv=request.argv,
                    allow_busy=request.allow_busy,
                    cell=request.cell,
                ),
                self.watcher,
                self.clock,
            )
        except in_turns.TooShortError:
            raise _TimeUpError from None
        except UserError as error:
            said = str(error)
            if said.startswith(of_good := f"--a {good}: "):
                raise UserError(f"{a.short} cannot be measured: {said.removeprefix(of_good)}") from None
            return Step(a, b, margin, reason=said.removeprefix(f"--b {bad}: "))
        finally:
            self.spent += self.clock() - began
        self.interrupt = ended.interrupt and ended.interrupt - SIGNALLED
        if ended.judgement is None:
            raise Interrupted(self.interrupt)
        return self._of(ended.judgement, a, b, margin, attempt)

    def _of(self, judgement: gate_findings.Judgement, a: Commit, b: Commit, margin: float, attempt: int) -> Step:
        """Return the step of a commit from its judgement.

        Raises UserError where the judgement is of another device than the earlier ones.
        """
        run, metric = judgement.current, self.outcome.request.metric
        device = run.environment.device.name
        if any(step.run.environment.device.name != device for step in self.outcome.every if step.run):
            raise UserError(f"{self.outcome.folder} has A/Bs of another device than {device}; choose another --out")
        finding = next((one for one in judgement.findings if one.metric == metric and one.decision), None)
        why = [f"{difference.what} ({difference.remedy})" for difference in judgement.refused]
        why += [f"{one.verdict}: {one.reason}" for one in judgement.findings if not one.decision]
        reason = "" if finding else "; ".join(why)
        return Step(a, b, margin, finding, reason, attempt, run, judgement.exit_code)


def _check(request: Request) -> list[str]:
    """Return the name of the cell to measure, for each kind of device that may be found and has one.

    Raises UserError for options that contradict each other, and where not one cell is left to measure.
    """
    if bool(request.code) == bool(request.python):
        raise UserError("say what to measure in each commit: give either --code FILE.py:function or --python PATH")
    if request.python and not request.settings.backends:
        raise UserError("--python: which backend does the interpreter run? Give -b NAME")
    if request.code and request.settings.backends:
        raise UserError("--backend: leave it out, as --code names what is measured")
    file, _, function = request.code.rpartition(":")
    for option, path in (("--code", file), ("--python", request.python)):
        if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            raise UserError(f"{option}: {path} is not in the worktree of a commit; give its path in the repository")
    if request.code and not (file.endswith(".py") and function):
        raise UserError(f"--code: {request.code!r} is not FILE.py:function")
    if function in available_backends():
        raise UserError(f"--code: {function} is also the name of a backend of attnbench; rename the function")
    device, measurable, errors = parse_device(request.device), [], []
    possible = resolve_suite_for(load_suite(request.suite), device, request.settings)
    # A suite has different cases on a GPU and on a CPU.
    places = ("on a GPU ", "on a CPU ") if len(possible) > 1 else ("",)
    for place, resolved in zip(places, possible, strict=True):
        names = [function] if function else [*select_backends(resolved.backends)]
        cells = [full_name(name, case) for case in resolved.cases for name in names]
        fitting = [cell for cell in cells if fits(cell, request.cell)]
        if len(fitting) == 1:
            measurable += fitting
        elif fitting:
            some = f"{request.cell} is {count(len(fitting), 'cell')}" if request.cell != "*" else "there are several"
            errors.append(f"{place}{some}; give one, as in --cell {shlex.quote(fitting[0])}")
        else:
            close = nearest(request.cell, cells[:MOST])
            more = f"did you mean {shlex.quote(close[0])}?" if close else f"there is {shlex.quote(cells[0])}, for one"
            errors.append(f"{place}none is called {request.cell!r}; {more}")
    if not measurable:
        raise UserError(f"--cell: {'; '.join(errors)}")
    return measurable


def sentence(step: Step) -> str:
    """Return the result of an A/B on a commit, in one line."""
    if step.decision is None:
        return f"{step.commit.short}: skipped: {step.reason}"
    return f"{step.commit.short}: {step.verdict}, {signed(step.decision.change)} ({interval(step.decision)})"
