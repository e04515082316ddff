"""The document of a judgement: the verdict, the findings that a reader must see, and a count of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.analysis.gate.findings import Judgement
from attnbench.analysis.gate.plots import rounds_section
from attnbench.analysis.gate.run_differences import Difference
from attnbench.analysis.gate.verdicts import VERDICTS, Finding, interval, signed
from attnbench.core.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_NOT_COMPARABLE,
    EXIT_PASS,
    EXIT_REGRESSION,
    EXIT_WRONG_RESULT,
)
from attnbench.core.formats import percent
from attnbench.core.groups import grouped, in_common
from attnbench.core.record import Run
from attnbench.core.text import count
from attnbench.render.characters import HELD_DOWN
from attnbench.render.document import (
    Column,
    Command,
    Document,
    Entry,
    Level,
    Line,
    Machine,
    Paragraphs,
    Span,
    Style,
    Table,
    Verdict,
)
from attnbench.results.disturbed import doubt
from attnbench.results.metrics import METRICS
from attnbench.run.run_command import cell_command

OUTCOMES: Mapping[int, tuple[str, Level]] = {  # by exit code
    EXIT_PASS: ("PASS", "good"),
    EXIT_WRONG_RESULT: ("FAIL", "bad"),
    EXIT_REGRESSION: ("FAIL", "bad"),
    EXIT_INCONCLUSIVE: ("INCONCLUSIVE", "warning"),
    EXIT_NOT_COMPARABLE: ("NOT COMPARABLE", "bad"),
}
STYLES: Mapping[str, Style] = {
    "wrong": "bad",
    "newly-failing": "bad",
    "missing": "bad",
    "regressed": "bad",
    "inconclusive": "warning",
    "improved": "good",
    "newly-working": "good",
    "unchanged": "quiet",
}
COLUMNS = (
    *(Column(heading, wrap=False) for heading in ("verdict", "metric", "cell")),
    *(Column(heading, "right", wrap=False) for heading in ("baseline", "current", "change")),
    Column("interval", wrap=False),
    Column("margin", "right", wrap=False),
    Column("rounds", wrap=False),
    Column(""),  # the reason
)
_SAID = {
    "inconclusive": "not decided",
    "not judged": "not judged, for want of rounds",
    "newly-failing": "fail, which worked before",
    "missing": "missing from the current run",
}
_LET_PASS = {"wrong": "--allow-wrong", "missing": "--missing pass"}


def document_of(judgement: Judgement, every: bool = False, command: str = "gate") -> Document:
    """Return the document of a judgement, by the command that made it.

    With `every` it lists all findings, not only those that a reader must see.
    """
    shown = [f for f in judgement.findings if every or _is_listed(judgement, f)]
    machines = _machines(judgement)
    ending = [] if every else _rest(judgement)
    return Document(
        command=command,
        title=f"Suite {judgement.current.suite} on {' and '.join(m.label for m in machines)}",
        answer=(_answer(judgement), *judgement.first, *doubt([judgement.baseline, judgement.current])),
        machines=machines,
        lead=_lead(judgement),
        blocks=(_table(shown),) if shown else (),
        notes=(*((Span(line),) for line in ending), *((Span(note, "quiet"),) for note in judgement.notes)),
        reproduce=_commands(judgement, shown),
        verdict=Verdict(headline(judgement), OUTCOMES[judgement.exit_code][1]),
        appendix=rounds_section(shown),
        data=_data(judgement),
        exit_code=judgement.exit_code,
    )


def _answer(judgement: Judgement) -> str:
    """Return the verdict in a sentence: which metrics moved in how many cells, the worst of them, and both commits."""
    word = _word(judgement)
    commits = [run.environment.git for run in (judgement.baseline, judgement.current)]
    between = f" ({commits[0]} -> {commits[1]})" if all(commits) and commits[0] != commits[1] else ""
    counted = [f for f in judgement.findings if judgement.exit_code_of(f) == judgement.exit_code != EXIT_PASS]
    cells = count(len({(f.case, f.backend) for f in judgement.findings}), "cell")
    if judgement.refused:
        return f"{word}: {judgement.refused[0].what}{between}; no change was judged."
    if not counted:
        metrics = ", ".join(
            dict.fromkeys(f.metric for f in judgement.findings if f.metric and not judgement.let_pass(f))
        )
        strict = _strict(judgement)  # with these options an inconclusive metric that never counts passes too
        left_open = [f for f in judgement.findings if strict.exit_code_of(f) == EXIT_INCONCLUSIVE]
        passed = [f for f in judgement.findings if judgement.let_pass(f) and f.verdict != "inconclusive"]
        worse = "is shown to be worse" if passed or left_open else "is worse by more than its margin"
        parts = [f"none of {cells} {worse}, in {metrics or 'what works and fails'}"]
        if all(f.verdict == "newly-working" for f in judgement.findings):
            parts = [f"no figure of {cells} was compared"]
        for verdict, option in _LET_PASS.items():
            some = [f for f in passed if f.verdict == verdict]
            parts += [f"{part}, which {option} lets pass" for part in _parts(some, judgement)]
        parts += _parts(left_open, judgement)
        parts += _parts([f for f in judgement.findings if f.verdict in ("improved", "newly-working")], judgement)
    else:
        parts = _parts(counted, judgement)
    return f"{word}: {'; '.join(parts)}{between}."


def _parts(findings: Sequence[Finding], judgement: Judgement) -> list[str]:
    """Return how many cells have each verdict in each metric, which they are, and the one that changed most."""
    parts = []
    every = {f.name for f in judgement.findings}
    for (metric, verdict), some in grouped(findings, lambda f: (f.metric, f.word)).items():
        first = some[0]
        name = f"{metric} of " if metric else ""
        said = f"{name}{len(some)} of {count(len(every), 'cell')} {_SAID.get(verdict, verdict)}"
        pattern = _pattern({f.name for f in some}, every) if len(some) > 1 else ""
        said += f" (all {pattern})" if pattern else ""
        if not first.decision:
            parts.append(said if pattern else f"{said}: {first.name}" + (" and others" if len(some) > 1 else ""))
            continue
        one = "which is" if len(some) == 1 else "at best" if verdict == "improved" else "at worst"
        parts.append(f"{said}, {one} {first.name} {signed(first.decision.change)} ({interval(first.decision)})")
    return parts


def _pattern(names: Collection[str], every: Collection[str]) -> str:
    """Return the words that cells have in common and no other cell has together, as "triton bwd"; else ""."""
    words, alike = in_common([name.split() for name in names], [name.split() for name in every])
    return " ".join(words) if alike == len(names) else ""


def _strict(judgement: Judgement) -> Judgement:
    """Return the judgement as it is without the option that lets inconclusive results pass."""
    return replace(judgement, request=replace(judgement.request, inconclusive="fail"))


def _word(judgement: Judgement) -> str:
    """Return the verdict as a reader sees it. A gate that is inconclusive and passes by an option shows both."""
    passes = judgement.exit_code == EXIT_PASS and _strict(judgement).exit_code == EXIT_INCONCLUSIVE
    return OUTCOMES[judgement.exit_code][0] + (" (inconclusive, which --inconclusive pass lets pass)" if passes else "")


def headline(judgement: Judgement) -> str:
    """Return the verdict and its reason in one line: "FAIL: 1 result regressed, 11 unchanged".

    Results that do not count follow in brackets. A result is a metric of a cell, or the state of the whole cell.
    """
    counts = _counts(f for f in judgement.findings if not judgement.let_pass(f))
    said = [f"{count(counts[0][0], 'result')} {counts[0][1]}", *_numbers(counts[1:])] if counts else []
    if judgement.refused:
        said = [f"{count(len(judgement.refused), 'difference')} that --expect does not name", *said]
    line = f"{_word(judgement)}: {', '.join(said) or 'nothing was decided'}"
    beside = _numbers(_counts(f for f in judgement.findings if judgement.let_pass(f)))
    return line + (f" (not counted: {', '.join(beside)})" if beside else "")


def _numbers(counts: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{number} {word}" for number, word in counts]


def _counts(findings: Iterable[Finding]) -> list[tuple[int, str]]:
    """Return the number of findings by verdict, the most severe first; unjudged findings are counted apart."""
    numbers = Counter(f.word for f in findings)
    after = VERDICTS.index("inconclusive") + 1
    words = (*VERDICTS[:after], "not judged", *VERDICTS[after:])
    return [(numbers[word], word) for word in words if numbers[word]]


def sentence(finding: Finding) -> str:
    """Return a finding in one line: "latency +6% (5.1% to 7%, margin 3%), 1.2 ms -> 1.27 ms", "missing: no record"."""
    return _figures(finding) if finding.decision else f"{finding.verdict}: {finding.reason}"


def _is_listed(judgement: Judgement, finding: Finding) -> bool:
    """Return whether a reader must see a finding: it changed, keeps the gate from passing, or was settled in turns.

    The cells for which an A/B had no time are one note of the judgement, not a row each.
    """
    changed = finding.verdict not in ("unchanged", "inconclusive") or finding.in_turns
    return changed or (judgement.exit_code_of(finding) != EXIT_PASS and not finding.unmeasured)


def _machines(judgement: Judgement) -> tuple[Machine, ...]:
    before, after = ((run.environment.device.name, run.started) for run in (judgement.baseline, judgement.current))
    runs = f"{1 + len(judgement.earlier)} runs, the latest of " if judgement.earlier else ""
    if before[0] == after[0]:
        return (Machine(before[0], f"baseline of {runs}{before[1]}, current of {after[1]}"),)
    return Machine(before[0], f"baseline of {runs}{before[1]}"), Machine(after[0], f"current of {after[1]}")


def _lead(judgement: Judgement) -> tuple[Paragraphs, ...]:
    """Return how an A/B was measured, and the differences between the runs."""
    lines: list[Line] = [(Span(line, "quiet"),) for line in judgement.heading]
    lines += [
        (Span(f"{d.what}: measure the baseline again, or if it is meant: "), Span(d.remedy, "strong"))
        for d in judgement.refused
    ]
    lines += [(Span(f"as expected: {d.what}", "quiet"),) for d in judgement.expected]
    return (Paragraphs(tuple(lines)),) if lines else ()


def _table(findings: Sequence[Finding]) -> Table:
    rows: list[tuple[Entry, ...]] = [(Span(f.word, STYLES[f.verdict]), *_entries(f)) for f in findings]
    filled = [i for i in range(len(COLUMNS)) if any(row[i] for row in rows)]
    lines: list[Line] = []
    for f in findings:
        lines += [(Span(f.word, STYLES[f.verdict]), Span(f"  {f.name}")), (Span(_figures(f)),)]
    return Table(
        name="findings",
        columns=tuple(COLUMNS[i] for i in filled),
        rows=tuple(tuple(row[i] for i in filled) for row in rows),
        narrow=Paragraphs(tuple(lines), indent=4),
    )


def _entries(finding: Finding) -> tuple[str, ...]:
    """Return the entries of a row after the verdict; a finding on a whole cell has no figures."""
    f, d = finding, finding.decision
    figures: tuple[str, ...] = ("",) * 6
    if d and f.metric and f.margin is not None:
        change = signed(d.change) + (HELD_DOWN if f.held_down else "")
        values = ("-" if value is None else METRICS[f.metric].format(value) for value in (f.baseline, f.current))
        figures = (*values, change, interval(d), percent(f.margin), "+".join(map(str, f.rounds)))
    return (f.metric or "", f.name, *figures, f.reason)


def _figures(finding: Finding) -> str:
    """Return the figures and the reason of a finding in one line, without its verdict."""
    if not finding.decision:
        return ": ".join(filter(None, (finding.metric, finding.reason)))
    metric, _, baseline, current, change, known, margin, _, reason = _entries(finding)
    line = f"{metric} {change} ({known}, margin {margin}), {baseline} -> {current}"
    return line + (f"; {reason}" if reason else "")


def _rest(judgement: Judgement) -> list[str]:
    """Return lines that count the findings which are not listed; [] where all are."""
    undecided = [
        f.metric
        for f in judgement.findings
        if f.verdict == "inconclusive" and f.metric and judgement.exit_code_of(f) == EXIT_PASS
    ]
    parts = []
    if left := sum(f.verdict == "unchanged" and not f.in_turns for f in judgement.findings):
        parts.append(f"{count(left, 'result')} within the margin, as shown")
    if undecided:
        names = ", ".join(sorted({*undecided}))
        parts.append(f"{len(undecided)} of {names} inconclusive, which does not count here")
    return ["; ".join(parts)] if parts else []


def _commands(judgement: Judgement, shown: Iterable[Finding]) -> tuple[Command, ...]:
    """Return the commands that measure the failing cells again.

    There are none for an A/B, whose two sides are measured in turns, and none for inconclusive cells: more rounds of
    the current build alone may decide nothing, and the notes have the commands that do (more_rounds).
    """
    if judgement.current.turns:
        return ()
    counted = [f for f in shown if judgement.exit_code_of(f) not in (EXIT_PASS, EXIT_INCONCLUSIVE)]
    return tuple(dict.fromkeys(Command(f.name, _command(judgement, f)) for f in counted))


def _command(judgement: Judgement, finding: Finding) -> str:
    """Return the command that measures a cell as the current run did, or the baseline if only it has the cell."""
    runs = (judgement.current, judgement.baseline)
    run = next((run for run in runs if finding.backend in run.specs), judgement.current)
    return cell_command(run, finding.backend, finding.case)


def _data(judgement: Judgement) -> dict[str, Any]:
    """Return the judgement for programs. Figures keep their metric's unit; changes and margins are relative."""
    return {
        "verdict": OUTCOMES[judgement.exit_code][0].lower(),
        "exit_code": judgement.exit_code,
        "counts": {verdict: judgement.count(verdict) for verdict in VERDICTS},
        "not_counted": dict(Counter(f.verdict for f in judgement.findings if judgement.let_pass(f))),
        "heading": list(judgement.heading),
        "baseline": _run_data(judgement.baseline),
        "earlier": [_run_data(run) for run in judgement.earlier],
        "current": _run_data(judgement.current),
        "expected": _difference_data(judgement.expected),
        "refused": _difference_data(judgement.refused),
        "first": list(judgement.first),
        "notes": list(judgement.notes),
        "commands": list(judgement.commands),
        "findings": [_finding_data(f) | {"command": _command(judgement, f)} for f in judgement.findings],
    }


def _run_data(run: Run) -> dict[str, Any]:
    here = run.environment
    return {
        "started": run.started,
        "suite": run.suite,
        "device": here.device.name,
        "torch": here.torch,
        "git": here.git,
    }


def _difference_data(found: Sequence[Difference]) -> list[dict[str, Any]]:
    return [{"names": list(d.names), "what": d.what} for d in found]


def _finding_data(f: Finding) -> dict[str, Any]:
    d = f.decision
    return {
        "case": f.case.key,
        "backend": f.backend,
        "cell": f.name,
        "metric": f.metric,
        "verdict": f.verdict,
        "baseline": f.baseline,
        "current": f.current,
        "rounds": list(f.rounds),
        "margin": f.margin,
        **{name: getattr(d, name, None) for name in ("change", "low", "high", "level", "noise")},
        "more_rounds": d and d.more,
        "more_rounds_of_current": d and d.more_current,
        "held_down": f.held_down,
        "in_turns": f.in_turns,
        "reason": f.reason,
    }
