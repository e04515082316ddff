"""The document of a check: a table for each backend, why cases are not right, and where the first failures are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.analysis.check.common_factor import common_factor
from attnbench.analysis.report.facts import noted
from attnbench.analysis.report.reasons import reasons
from attnbench.core import formats
from attnbench.core.case import DIRECTIONS, Case
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT
from attnbench.core.formats import digits
from attnbench.core.groups import grouped
from attnbench.core.json import to_json
from attnbench.core.record import WRONG, Accuracy, Record, Run, TensorError, told_apart
from attnbench.core.text import capitalized, count, listed, template
from attnbench.render.document import (
    Caution,
    Code,
    Column,
    Document,
    Ending,
    Entry,
    Level,
    Machine,
    Span,
    Table,
    Verdict,
)
from attnbench.results import case_names
from attnbench.results.cells import cells
from attnbench.results.disturbed import doubt_of_check
from attnbench.results.exit_codes import wrong_records
from attnbench.results.export_rows import case_columns
from attnbench.run.select import is_user_code

FAILED = ("failed", "oom", "timeout")
RIGHT = "right"
NOTE = (
    "Beside each result: its error as a share of the error allowed. Nothing is timed here; attnbench run also finds "
    "results that are kept from an earlier call."
)
NEAR = 1.3  # times the error allowed: most bugs are further off; sums of many terms in 16 bits reach about this
MAX_TRACEBACKS = 2
TRACEBACK = "Traceback (most recent call last):\n"
MAX_PRINTED = 8  # lines
_OUR_FRAME = re.compile(r'  File ".*[/\\]attnbench[/\\](worker|backends)[/\\]')
LEVELS: Mapping[int, Level] = {EXIT_DONE: "good", EXIT_WRONG_RESULT: "bad"}


def document(run: Run) -> Document:
    """Return the document of a check."""
    device = run.environment.device
    names = list(dict.fromkeys(record.backend for record in run.records))
    rows, found = list(_rows(run)), cells([run])
    return Document(
        command="check",
        title=f"{', '.join(names)} on {device.name}",
        answer=doubt_of_check(device),
        machines=(Machine(device.name, f"torch {run.environment.torch}" if run.environment.torch else ""),),
        blocks=(*(_table(run, name) for name in names), *_tracebacks(run.records)),
        reasons=tuple(reasons(found)),
        cautions=(*_unanswered(run.records), *_unfenced(run.records)),
        facts=tuple(noted([cell for cell in found if cell.status == "ok"])),
        verdict=Verdict(_verdict(run, names), _level(run)),
        data=[to_json(record) for record in run.records],
        rows=rows,
        exit_code=exit_code(run),
    )


def _level(run: Run) -> Level:
    found = LEVELS.get(exit_code(run), "warning")
    return "warning" if found == "good" and left_out(run) else found


def _unanswered(records: Sequence[Record]) -> Iterator[Caution]:
    """Yield a caution for each reason for which tools of compute-sanitizer gave no full answer on a backend."""
    without = [(r.backend, why, tool, r.case) for r in records for tool, why in r.sanitizer.items() if why]
    for (name, why), found in grouped(without, lambda item: item[:2]).items():
        tools = listed(dict.fromkeys(tool for *_, tool, _ in found))
        cases = dict.fromkeys(f"{_shape_name(case)} {case.dtype} {case.direction}" for *_, case in found)
        what = f"{tools} of compute-sanitizer gave no full answer on {name} ({'; '.join(cases)})."
        yield Caution(what, f"{capitalized(why.rstrip('.'))}.")


def _unfenced(records: Sequence[Record]) -> Iterator[Caution]:
    """Yield a caution for the fences of --untrusted that did not hold."""
    found = {name: why for record in records if record.proof for name, why in record.proof.unfenced.items()}
    if found:
        each = ", ".join(f"{name} ({why})" for name, why in found.items())
        yield Caution(f"Not fenced here: {each}.", "The verdicts hold; the process could do more than it should.")


def worst_error(record: Record) -> tuple[str, TensorError] | None:
    """Return the name of the result with the largest share of its allowed error, and that error; None without any."""
    errors = record.accuracy.errors.items() if record.accuracy else ()
    return max(errors, key=lambda item: _share(item[1]), default=None)


def _share(error: TensorError) -> float:
    """Return the error over its tolerance; infinite where it is not finite."""
    share = error.max_error / error.tolerance if error.tolerance else math.copysign(math.inf, error.max_error or -1)
    return math.inf if math.isnan(share) else max(share, 0.0)


def _table(run: Run, name: str) -> Table:
    """Return a row for each shape and mask, a column for each dtype and pass."""
    records = {record.case: record for record in run.records if record.backend == name}
    kinds = sorted(
        {(case.dtype, case.direction) for case in records},
        key=lambda kind: ([c.dtype for c in records].index(kind[0]), DIRECTIONS.index(kind[1])),
    )
    shapes = dict.fromkeys(_shape(case) for case in records)
    entries = [
        (_shape_name(shape), *(_entry(records.get(replace(shape, dtype=d, direction=p))) for d, p in kinds))
        for shape in shapes
    ]
    columns = (Column("case", wrap=False), *(Column(f"{dtype} {direction}") for dtype, direction in kinds))
    version = run.versions.get(name, "").removeprefix(f"{name}, ")
    note = f"{NOTE}{_approximation(list(records.values()))}"
    return Table(f"check-{name}", columns, tuple(entries), title=f"{name}  {version}".strip(), note=note)


def _approximation(records: Sequence[Record]) -> str:
    """Return the sentence on a backend that is right by its own definition only; "" for one that computes attention."""
    found = [record.approximation for record in records if record.approximation]
    if not found:
        return ""
    ends = (formats.percent(end(of.error for of in found)) for end in (min, max))
    off = " to ".join(dict.fromkeys(ends))
    return f" Right is its own definition: {found[0].what}. From attention it is off by {off}."


def _shape(case: Case) -> Case:
    return replace(case, dtype="bf16", direction="fwd")


def _shape_name(case: Case) -> str:
    """Return a case without dtype and pass: "80x256 d64 causal"."""
    heads = f", heads {case_names.heads(case)}" if case_names.has_grouped_heads(case) else ""
    name = f"{case_names.lengths(case)} d{case_names.headdim(case)} {case_names.mask(case)}"
    return " ".join((name, *case_names.extras(case))) + heads


def _entry(record: Record | None) -> Entry:
    if record is None:
        return ""
    error = worst_error(record)
    aside = f" {_percent(_share(error[1]))}" if error else ""
    if record.status == "ok":
        return (Span(RIGHT, "good"), Span(aside, "quiet"))
    word = case_names.ENDINGS[record.status]
    return (Span(word, Ending(word).style), Span(aside, "quiet"))


def _percent(share: float) -> str:
    if math.isinf(share):
        return "NaN"
    if 0.995 <= share < 1.005:  # show on which side of 100 % it lies
        return f"{told_apart(100 * share, 100.0)[0]}%"
    return f"{100 * share:.0f}%" if share < 10 else f"{digits(share)}x" if share < 1000 else ">1000x"


def _tracebacks(records: Sequence[Record]) -> Iterator[Code]:
    """Yield the worker's output in the first cases that failed or are wrong, one for each kind of reason."""
    first: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.status in (*FAILED, "wrong") and (record.stderr or "").strip():
            first.setdefault((record.backend, template(record.reason or "")), record)
    for record in list(first.values())[:MAX_TRACEBACKS]:
        assert record.stderr is not None
        case = f"{_shape_name(record.case)}, {record.case.dtype} {record.case.direction}"
        printed, traceback, frames = record.stderr.rpartition(TRACEBACK)
        lines = [*printed.splitlines()[-MAX_PRINTED:], *_own_frames(traceback + frames).splitlines()]
        if not traceback:
            lines = lines[-MAX_PRINTED:] if record.status == "wrong" else lines
        yield Code("\n".join(lines), f"{record.backend}: {case}")


def _own_frames(stderr: str) -> str:
    """Return the end of a traceback: the frames after attnbench's own; the whole text where none is attnbench's.

    Where attnbench raised the error, the end begins at the first frame of a person's code; without such a frame it is
    the message alone (an error about a result's shape, for example).
    """
    lines = stderr.splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    ours = [i for i in frames if _OUR_FRAME.match(lines[i])]
    later = [i for i in frames if ours and i > ours[-1]]
    theirs = later or [i for i in frames if ours and i > ours[0] and i not in ours]
    if theirs or not ours:
        return "\n".join(lines[theirs[0] :]) if theirs else stderr
    message = (i for i in range(ours[-1] + 1, len(lines)) if not lines[i].startswith(" "))
    return "\n".join(lines[next(message, len(lines)) :])


def _verdict(run: Run, names: Sequence[str]) -> str:
    found = [_verdict_of(name, [record for record in run.records if record.backend == name]) for name in names]
    if left := left_out(run):
        found.append(f"interrupted, {count(left, 'case')} not checked")
    return "; ".join(found)


def _verdict_of(name: str, records: Sequence[Record]) -> str:
    """Return the verdict on one backend: "mine is RIGHT in 38 cases", or how many are not."""
    statuses = [record.status for record in records]
    wrong, other_kernel = (statuses.count(status) for status in ("wrong", "wrong-kernel"))
    failed = sum(status in FAILED for status in statuses)
    tried = sum(status != "skipped" for status in statuses)
    if not tried:
        return f"{name}: nothing could be checked"
    if not wrong and not other_kernel and not failed:
        skipped = f", {len(statuses) - tried} not supported" if tried < len(statuses) else ""
        return f"{name} is RIGHT in {count(tried, 'case')}{skipped}{_sanitized(records)}"
    parts = [f"is WRONG in {wrong}"] if wrong else []
    parts += [f"runs WRONG KERNELS in {other_kernel}"] if other_kernel else []
    parts += [f"FAILS in {failed}"] if failed else []
    return f"{name} {listed(parts)} of {count(tried, 'case')}{_nearness(records) or _factor(records)}"


def _sanitized(records: Sequence[Record]) -> str:
    """Return the clause on the tools of compute-sanitizer that found nothing; "" where none was asked for one."""
    looked = [record for record in records if record.sanitizer]
    tools = [tool for tool in (looked[0].sanitizer if looked else ()) if not any(r.sanitizer[tool] for r in looked)]
    return f"; {listed(tools)} found nothing in {len(looked)} of them" if tools else ""


def _factor(records: Sequence[Record]) -> str:
    """Return the properties that set the cases which are not right apart from the right ones; "" for none.

    Of a backend that compute-sanitizer has looked at there are none, as it looked at few cases.
    """
    if any(record.sanitizer for record in records):
        return ""
    bad = [record.case for record in records if record.status in (*FAILED, *WRONG)]
    found = common_factor(bad, [record.case for record in records if record.status == "ok"])
    return f": {found}" if found else ""


def _nearness(records: Sequence[Record]) -> str:
    """Return the sentence on a backend whose wrong results are all just beyond the error allowed; "" for others.

    In fp32 the error of a bug stays as large, and the error of rounding is thousands of times smaller.
    """
    wrong = [record for record in records if record.status == "wrong"]
    worst = max((_largest_share(record.accuracy) for record in wrong), default=math.inf)
    if worst >= NEAR:
        return ""
    over = f", at most {math.ceil(round(100 * worst, 3)) - 100}% over the limit: more likely rounding than a bug"
    if any(record.case.dtype == "fp32" for record in wrong):
        return over
    right = {record.case for record in records if record.status == "ok"}
    is_right = all(replace(record.case, dtype="fp32") in right for record in wrong)
    return f"{over}; in fp32 {'it is right' if is_right else '(--dtype fp32) errors of bugs stay, of rounding do not'}"


def _largest_share(accuracy: Accuracy | None) -> float:
    """Return the largest error over the error allowed; infinite where something else is wrong too."""
    if accuracy is None or accuracy.unwritten or accuracy.flaws:
        return math.inf
    share = max(map(_share, accuracy.errors.values()), default=math.inf)
    return share if share > 1 else math.inf


def _rows(run: Run) -> Iterator[Mapping[str, Any]]:
    """Yield a row of CSV for each case."""
    for record in run.records:
        result, error = worst_error(record) or (None, None)
        yield {
            "backend": record.backend,
            "version": run.versions.get(record.backend),
            "status": record.status,
            "reason": record.reason,
            "result": result,
            "error": error.max_error if error else None,
            "tolerance": error.tolerance if error else None,
            **case_columns(record.case),
        }


def left_out(run: Run) -> int:
    """Return the number of checkable cases that an interrupt left out."""
    return sum(job.skip is None for job in run.plan[len(run.records) :])


def exit_code(run: Run) -> int:
    """Return 5 where a result is wrong, 1 where a case failed or nothing could be checked, else 0.

    It is 1 also where a tool of compute-sanitizer was asked for and gave no full answer.
    Each function of a person's own code must have been checked; some of attnbench's backends may not run here.
    """
    if wrong_records(run):
        return EXIT_WRONG_RESULT
    statuses: dict[str, set[str]] = {}
    for record in run.records:
        statuses.setdefault(record.backend, set()).add(record.status)
    failed = any(of & {*FAILED} for of in statuses.values()) or any(any(r.sanitizer.values()) for r in run.records)
    unchecked = [name for name, of in statuses.items() if "ok" not in of]
    own = [name for name in unchecked if is_user_code(run.specs.get(name, ""))]
    return EXIT_NOTHING_MEASURED if failed or own or len(unchecked) == len(statuses) else EXIT_DONE
