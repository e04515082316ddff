"""The pytest fixture `attnbench`: assertions that a kernel is right, and not slower than another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from attnbench.api.arguments import Values, margin_of, settings
from attnbench.api.definitions import told
from attnbench.api.measure import CheckResult, WrongResultError, check, measure
from attnbench.api.results import Results, of_runs
from attnbench.api.shown import Verdict
from attnbench.api.subjects import Subjects, What, caller_scope, shown, subjects
from attnbench.api.watching import Unwatched, interruptible
from attnbench.core.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    EXIT_PASS,
    EXIT_WRONG_RESULT,
    UnfitError,
    UserError,
)
from attnbench.core.files import RUN_FILES, write_file
from attnbench.core.record import Run
from attnbench.core.sizes import parse_duration
from attnbench.results.case_names import full_name
from attnbench.results.exit_codes import exit_code
from attnbench.run.venvs import user_folder

FOLDER = Path(".attnbench")  # below pytest's root: NAME/TEST.jsonl of --attnbench-save; runs/ has all other runs
ROUNDS = 5  # rounds of a run that is saved, or compared with a saved one
MOST_SAID = 5  # most findings in the message of a failure
_WORDS = {EXIT_INCONCLUSIVE: "undecided", EXIT_NOT_COMPARABLE: "not comparable", EXIT_WRONG_RESULT: "wrong"}
_FAILURES = {"regressed": "slower", "newly-failing": "failing", "missing": "not measured"}  # verdict -> word


class SlowerError(AssertionError):
    """A kernel is slower than the one that it is compared with, by more than the margin."""


@dataclass(frozen=True)
class Row:
    """A line of the table at the end of a session."""

    test: str
    what: str
    than: str
    verdict: str
    detail: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """The arguments of an assertion."""

    what: str  # its name in the table
    code: str  # its code, as `ab` takes it
    margin: float
    suite: str
    seconds: float  # longest time in seconds
    budget: str  # the longest time as it was given
    device: str
    axes: Mapping[str, Values]


@dataclass
class Guard:
    """The fixture `attnbench` of the pytest plug-in.

    Assertions measure as `attnbench check`, `ab` and `gate` do. A test is skipped, with the reason, where the machine
    cannot decide: the device is missing, used by others or unlike the baseline's, the other kernel failed, or the time
    was too short.
    """

    test: str
    root: Path
    skip: Callable[[str], Any]
    save: str | None = None
    compare: str | None = None
    budget: str = "4m"
    device: str = "auto"
    rows: list[Row] = field(default_factory=list)
    number: int = 0  # number of the current comparison in its test

    def __post_init__(self) -> None:
        for option, name in (("save", self.save), ("compare", self.compare)):
            if name is not None and not re.fullmatch(r"\w[\w.-]*", str(name)):
                raise UserError(f"--attnbench-{option}: {name!r} is no name; use letters, digits, dots and dashes")

    def assert_right(self, what: What, *, device: str | None = None, **axes: Values) -> CheckResult:
        """Assert that a kernel's results are right on small cases that show bugs, as `attnbench.check` does.

        Raises WrongResultError with the verdict and the first reasons.

        >>> def test_attention(attnbench):
        ...     attnbench.assert_right("./mine.py:attention", headdim=[64, 128])
        """
        __tracebackhide__ = True
        own = subjects(what, caller_scope())
        with self._fit():
            found = check(own, device=device or self.device, progress=False, **axes)
        self._note(_said(what), "", "right" if found else "not right")
        return found.raise_if_wrong()

    def assert_not_slower(
        self,
        what: Any,
        *,
        than: Any = None,
        margin: float | str = 0.03,
        suite: str = "quick",
        budget: str | None = None,
        device: str | None = None,
        **axes: Values,
    ) -> Verdict | None:
        """Assert that a kernel is right, and not slower than another by more than `margin`, relative to its latency.

        `margin`: a number between 0 and 1, or a text as --margin takes it ("3%").
        `than`: a function, own code or a backend, which is measured in turns with it (A B B A, fresh processes) until
        the gate's test decides, within `budget` ("4m"; --attnbench-budget by default); or a run file, by which it is
        judged; by default the run that this test saved with --attnbench-save NAME, if --attnbench-compare NAME is
        given. None is returned where nothing is compared. `suite` and the axes say what is measured.

        Raises SlowerError, and WrongResultError where the kernel is wrong, fails or is not measured.

        >>> def test_speed(attnbench):
        ...     attnbench.assert_not_slower("./mine.py:attention", than="sdpa-flash", seqlen="4k", direction="fwd")
        """
        __tracebackhide__ = True
        seconds = parse_duration(budget or self.budget, "budget")
        margin = margin_of(margin)
        self.number += 1
        scope, given = caller_scope(), budget or f"{self.budget} (--attnbench-budget)"
        code = _code("what", what, scope)
        asked = _Asked(_said(what), code, margin, suite, seconds, given, device or self.device, axes)
        with self._fit():
            if than is None or str(than).endswith(RUN_FILES):
                return self._by_baseline(asked, self._saved() if than is None else Path(than))
            verdict, files = self._in_turns(asked, _code("than", than, scope))
        return self._judged(verdict, asked, _said(than), files)

    def _in_turns(self, asked: _Asked, than: str) -> tuple[Verdict, tuple[str, ...]]:
        """Measure a kernel in turns with another; return the verdict and the run files."""
        from attnbench.analysis.ab import run_ab
        from attnbench.analysis.gate.document import document_of
        from attnbench.analysis.gate.findings import Request
        from attnbench.analysis.gate.margins import Margins
        from attnbench.run.ab.in_turns import TooShortError

        request = run_ab.Request(
            a=than,
            b=asked.code,
            suite=asked.suite,
            settings=settings(asked.axes),
            device=asked.device,
            time_limit=asked.seconds,
            out=self._run_file().with_suffix(""),
            judged_by=Request(("latency",), Margins({"latency": asked.margin})),
        )
        watcher: Any = Unwatched()
        try:
            with interruptible():
                outcome = run_ab.ab(request, watcher)
        except TooShortError:
            self.skip(f"undecided; a longer budget than {asked.budget} may decide: no time for one pair of turns")
        except UserError as error:  # its --a and --b are no options of a test
            raise type(error)(re.sub("^--[ab] ", "", str(error))) from None
        if outcome.judgement is None:
            raise KeyboardInterrupt
        shown = document_of(outcome.judgement, command="ab")
        return Verdict(shown, outcome.judgement), tuple(map(str, outcome.paths))

    def _saved(self) -> Path | None:
        """Return the file of this test from the run that --attnbench-compare names; None for a new test.

        Raises UserError where nothing was saved by that name.
        """
        if not self.compare:
            return None
        folder = self.root / FOLDER / self.compare
        if not folder.is_dir():
            raise UserError(f"--attnbench-compare {self.compare}: {folder} is not there; --attnbench-save writes it")
        saved = folder / f"{self._slug}.jsonl"
        if os.path.lexists(saved) and not saved.is_file():
            raise UserError(f"{saved} is no file, and so no baseline; delete it, and save anew with --attnbench-save")
        return saved if saved.is_file() else None

    def _place_to_save(self) -> Path | None:
        """Return the file to which --attnbench-save writes this test's run; None without the option.

        Raises UserError where the file, or a folder of its path below the root, is a link, and where it is no plain
        file.
        """
        if not self.save:
            return None
        folder = self.root / FOLDER / self.save
        place = folder / f"{self._slug}.jsonl"
        if link := next((one for one in (place, folder, folder.parent) if one.is_symlink()), None):
            raise UserError(f"{link} is a link, and what it leads to would be overwritten; delete it")
        if place.exists() and not place.is_file():
            raise UserError(f"{place} is no file, and a run is saved to one; delete it")
        return place

    def _by_baseline(self, asked: _Asked, baseline: Path | None) -> Verdict | None:
        """Measure, save, and judge by a baseline, with more rounds while the verdict is open and time is left."""
        from attnbench.run.run_suite import Request, run_suite

        began, path, rounds = time.monotonic(), self._run_file(), ROUNDS
        place = self._place_to_save()
        found = measure(
            asked.code,
            suite=asked.suite,
            rounds=rounds,
            device=asked.device,
            out=path,
            progress=False,
            **asked.axes,
        )
        # All backends: else the gate would refuse another version of the kernel as not comparable.
        expect = [*found.runs[0].specs]

        def judge(results: Results) -> Verdict | None:
            if baseline is None:
                return None
            return results.gate(baseline, metrics="latency", margin=asked.margin, expect=expect)

        verdict = judge(found)
        while verdict is not None and verdict.exit_code == EXIT_INCONCLUSIVE:
            spent = time.monotonic() - began
            if spent * (rounds + ROUNDS) / rounds > asked.seconds:
                break
            rounds += ROUNDS
            outcome = run_suite(Request(resume=path, rounds=rounds, trust=True), Unwatched())
            verdict = judge(of_runs([outcome.run], [path]))
        if verdict is not None:
            self._judged(verdict, asked, str(baseline), (str(path),))
        elif (failed := _failed(found.runs[0])) and exit_code(found.runs[0], allow_wrong=False):
            self._note(asked.what, "", "not right", failed[0], (str(path),))
            raise WrongResultError("\n".join([*failed[:MOST_SAID], f"run file: {path}"]))
        if place:  # a slower or wrong run must not become a baseline
            write_file(place, path.read_bytes())
        if verdict is None:
            new = f"measured; {self.compare} has no such test" if self.compare else "measured"
            self._note(asked.what, "", "saved" if place else new, files=(str(path),))
        return verdict

    def _judged(self, verdict: Verdict, asked: _Asked, than: str, files: tuple[str, ...]) -> Verdict:
        """Return the verdict. Raises SlowerError or WrongResultError, and skips what is undecided."""
        from attnbench.analysis.gate.document import headline, sentence

        __tracebackhide__ = True
        judgement, code = verdict.judgement, verdict.exit_code
        counted = [f for f in judgement.findings if judgement.exit_code_of(f) == code or not code]
        told, lead, more = [f"{f.name}: {sentence(f)}" for f in counted], headline(judgement), ""
        kinds = {f.verdict for f in counted}
        word = _WORDS.get(code) or next((word for kind, word in _FAILURES.items() if kind in kinds), "not slower")
        if code == EXIT_INCONCLUSIVE:
            more = f"; a longer budget than {asked.budget} may decide"
        elif code == EXIT_PASS and judgement.current.turns and (failed := _failed(judgement.current)):
            word, told, lead = "failing", failed, f"{asked.what} fails, and so does the other, or it skips"
        elif code == EXIT_PASS and judgement.current.turns and (failed := _failed(judgement.baseline)):
            word, told, lead = "undecided", failed, f"{than} could not be measured"
        elif code == EXIT_PASS and not any(f.metric for f in counted):
            word, lead = "undecided", f"{than} could not be measured"
        self._note(asked.what, than, word, told[0] if told else "", files)
        text = "\n".join([lead, *told[:MOST_SAID], f"run files: {', '.join(files)}"])
        if word in ("undecided", "not comparable"):
            self.skip(f"{word}{more}: {text}")
        if word == "slower":
            raise SlowerError(text)
        if word != "not slower":
            raise WrongResultError(text)
        return verdict

    @contextlib.contextmanager
    def _fit(self) -> Iterator[None]:
        """Measure alone among the processes of a session, such as xdist's; skip where the machine is not fit."""
        with _alone():
            try:
                yield
            except UnfitError as error:
                self.skip(str(error))

    @property
    def _slug(self) -> str:
        """A name for the files of the current assertion: its test, a hash of the test's name, its number there."""
        told = re.sub(r"[^\w.-]+", "-", self.test).strip("-.")[-100:]
        number = f"-{self.number}" if self.number > 1 else ""
        return f"{told}-{hashlib.sha256(self.test.encode()).hexdigest()[:8]}{number}"

    def _run_file(self) -> Path:
        """Return a path for a new run file."""
        folder = self.root / FOLDER / "runs"
        stem = f"{datetime.now():%Y%m%d-%H%M%S}-{self._slug}"
        names = (folder / f"{stem}{end}.jsonl" for end in ("", *(f"-{n}" for n in range(2, 1000))))
        return next(one for one in names if not (one.exists() or one.with_suffix("").exists()))

    def _note(self, what: str, than: str, verdict: str, detail: str = "", files: tuple[str, ...] = ()) -> None:
        self.rows.append(Row(self.test, what, than, verdict, detail, files))


def _said(given: Any) -> str:
    return given if isinstance(given, str) else told(given, "__name__") or shown(given)


def _failed(run: Run) -> list[str]:
    """Return the cells of a run that failed or were wrong, each with its reason."""
    bad = (record for record in run.records if record.status not in ("ok", "skipped"))
    return [*dict.fromkeys(f"{full_name(record.backend, record.case)}: {record.reason}" for record in bad)]


def _code(name: str, given: Any, scope: Any) -> str:
    """Return the one backend or own code that an argument gives, as `ab` takes it. Raises UserError."""
    from attnbench.run.select import select_backends

    own = subjects(given, scope, in_process=False)
    try:
        several = len(select_backends(own.patterns)) != 1
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if several:
        raise UserError("assert_not_slower compares one kernel with one other")
    if own.live:
        own.measured(_loaded)
    return own.patterns[0]


def _loaded(own: Subjects) -> None:
    """Load subjects in another process. Raises OtherStateError where they have another state there."""
    from attnbench.run.select import choose
    from attnbench.run.session import Session

    with Session(None, choose(own.patterns), live=own.live) as session:
        session.load()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait for other processes of this user that measure by this fixture, where the system has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # Windows; a file system without locks, or read-only
            import fcntl

            folder = user_folder() or Path(tempfile.gettempdir(), f"attnbench-{os.getuid()}")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
