"""Published claims as a document: the claims alone, or beside each the measured figures and the verdict.

CSV and JSON have a row for each figure of a claim on each GPU: the printed text and its bounds, the measured value in
bursts and without pauses with its 95 % interval, in the metric's unit (a ratio without one), and the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnbench.analysis.claims.claim_file import ANY_GPU, ClaimFile, Figure, Setting
from attnbench.analysis.claims.findings import Finding, Measured, Outcome, by_gpu, judge, outcome_of
from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.sources import Sources, with_sources
from attnbench.core.documents import with_addresses
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED
from attnbench.core.flops import CONVENTIONS
from attnbench.core.formats import digits, percent, times
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.core.text import count, one_line, some
from attnbench.render.document import Column, Document, Entry, Reason, Span, Style, Table
from attnbench.results.cells import cells as cells_of
from attnbench.results.disturbed import doubt
from attnbench.results.metrics import METRICS

NOTHING = "-"
STYLES: dict[Outcome, Style] = {"reproduced": "good", "not reproduced": "bad", "cannot be tried here": "quiet"}
MOST_NAMED = 6  # claims in a sentence
MORE = with_addresses(
    "A figure is reproduced where the printed value, with its tolerance, is in the range from the value in bursts to "
    "the value without pauses, each with its uncertainty; docs/claims.md."
)
COLUMNS = (
    *("paper", "claim", "what", "where", "printed_of", "gpu", "metric", "figure", "printed", "printed_low"),
    *("printed_high", "tolerance", "value", "low", "high", "least", "most", "cases"),
    *("sustained", "sustained_low", "sustained_high", "verdict", "off", "why", "ran"),
)


def listing(settings: Sequence[Setting]) -> Document:
    """Return the document that lists claims as printed, without measured figures."""
    rows = [
        {
            "paper": setting.paper,
            "claim": setting.claim.id,
            "what": setting.claim.what,
            "gpu": setting.gpu,
            "printed": "; ".join(f"{figure.name} {printed_text(figure)}" for figure in setting.figures),
            "cannot": setting.claim.cannot or "",
        }
        for setting in settings
    ]
    papers = {setting.paper: setting.file for setting in settings}
    return Document(
        command="claims",
        title="Published claims",
        answer=(f"{count(len(settings), 'claim')} of {count(len(papers), 'source')}.",),
        blocks=tuple(
            Table(
                f"claims-{name}",
                (Column("claim", wrap=False), Column("what"), Column("printed")),
                tuple(
                    (row["claim"], row["what"], _listed(row["printed"], row["cannot"]))
                    for row in rows
                    if row["paper"] == name
                ),
                title=name,
                note=_source(file),
            )
            for name, file in papers.items()
        ),
        data=rows,
        rows=rows,
        columns=tuple(rows[0]),
    )


def _listed(printed: str, cannot: str) -> Entry:
    """Return what a claim prints, and why it cannot be tried."""
    why = Span(f"cannot be tried: {cannot}", "quiet")
    return (Span(f"{printed}; "), why) if printed and cannot else why if cannot else printed


def _source(file: ClaimFile) -> str:
    return f"{file.source}, {file.address}, {file.gpu}; compared with the source: {file.checked}."


def document(settings: Sequence[Setting], runs: Sequence[Run], sources: Sources | None = None) -> Document:
    """Return the verdict on each claim, for each GPU model that the runs are of; `sources` gives links to the runs."""
    cells = {convention: cells_of(runs, convention) for convention in CONVENTIONS}
    found = {convention: by_gpu(own) for convention, own in cells.items()}
    gpus = [*dict.fromkeys(gpu for own in found.values() for gpu in own)]
    judged = {gpu: {s.claim.id: judge(s, gpu, found[s.file.flops][gpu]) for s in settings} for gpu in gpus}
    rows = [_row(finding) for by_claim in judged.values() for own in by_claim.values() for finding in own]
    answer = (*doubt(runs), *(sentence for gpu in gpus for sentence in _answer(gpu, judged[gpu])))
    verdicts = [
        {"gpu": gpu, "paper": s.paper, "claim": s.claim.id, "verdict": outcome_of(judged[gpu][s.claim.id])}
        for gpu in gpus
        for s in settings
    ]
    return Document(
        command="claims",
        title=f"Published claims, measured on {' and '.join(gpus)}",
        answer=answer,
        machines=tuple(machines(cells["exact"])),
        blocks=tuple(_tables(settings, judged, sources)),
        reasons=tuple(_reasons(settings, judged)),
        notes=((Span(MORE, "quiet"),),),
        data={"answer": answer, "claims": verdicts, "figures": rows},
        rows=rows,
        columns=COLUMNS,
        exit_code=EXIT_DONE if any(row["value"] is not None for row in rows) else EXIT_NOTHING_MEASURED,
    )


def _answer(gpu: str, by_claim: dict[str, list[Finding]]) -> Iterator[str]:
    outcomes = {name: outcome_of(own) for name, own in by_claim.items()}
    said = {outcome: [name for name, found in outcomes.items() if found == outcome] for outcome in STYLES}
    yield (
        f"On {gpu}, of {count(len(outcomes), 'claim')}: {len(said['reproduced'])} reproduced, "
        f"{len(said['not reproduced'])} not reproduced, {len(said['cannot be tried here'])} cannot be tried here."
    )
    if failed := said["not reproduced"]:
        texts = (f"{name} ({_worst(by_claim[name])})" for name in failed)
        yield f"Not reproduced: {some(texts, MOST_NAMED)}."


def _worst(findings: Sequence[Finding]) -> str:
    """Return the figure of a claim that is furthest off: "fa3 -12 %"."""
    failed = [finding for finding in findings if finding.outcome == "not reproduced"]
    worst = max(failed, key=lambda finding: abs(finding.off or 0.0))
    return f"{worst.figure.name} {_off(worst)}"


def _off(finding: Finding) -> str:
    off = finding.off or 0.0
    return f"{'+' if off > 0 else '-'}{percent(abs(off))}"


def _tables(
    settings: Sequence[Setting], judged: dict[str, dict[str, list[Finding]]], sources: Sources | None
) -> Iterator[Table]:
    """Yield a table for each source: a row for each figure on each GPU."""
    papers = grouped(settings, lambda setting: setting.paper)
    for paper, own in papers.items():
        several = len(judged) > 1
        found = [row for setting in own for row in _rows(setting, judged, several)]
        if not found:
            continue
        columns = (
            *(Column("claim", wrap=False), Column("what"), Column("figure"), Column("printed", "right", wrap=False)),
            *([Column("GPU", wrap=False)] if several else []),
            *(Column("in bursts", "right"), Column("without pauses", "right"), Column("verdict")),
        )
        file = own[0].file
        versions = f" Printed with {', '.join(file.versions.values())}." if file.versions else ""
        rows = tuple(entries for entries, _ in found)
        table = Table(f"claims-{paper}", columns, rows, title=paper, note=_source(file) + versions)
        yield with_sources(table, [finding.runs for _, finding in found], sources)


def _rows(
    setting: Setting, judged: dict[str, dict[str, list[Finding]]], several: bool
) -> Iterator[tuple[tuple[Entry, ...], Finding]]:
    """Yield the entries of each figure on each GPU on which it could be tried; only the first row has the names."""
    of_gpu = ""
    for number, figure in enumerate(setting.figures if not setting.claim.cannot else ()):
        findings = [by_claim[setting.claim.id][number] for by_claim in judged.values()]
        for finding in (one for one in findings if one.outcome != "cannot be tried here"):
            name = ("", "") if of_gpu else (setting.claim.id, setting.claim.what)
            of_gpu = setting.gpu
            printed = printed_text(figure) + ("" if figure.is_ratio or of_gpu == ANY_GPU else f" ({of_gpu})")
            measured = _measured(figure, finding.bursts), _measured(figure, finding.sustained)
            where = (finding.gpu,) if several else ()
            yield (*name, figure.name, printed, *where, *measured, _verdict(finding)), finding


def _verdict(finding: Finding) -> Entry:
    outcome = finding.outcome
    style = STYLES[outcome]
    if outcome == "cannot be tried here":
        return Span(NOTHING, style)
    off = f": {_off(finding)}" if outcome == "not reproduced" else ""
    return (Span(outcome + off, style), Span(f"; {finding.why}" if finding.why else "", "quiet"))


def printed_text(figure: Figure) -> str:
    """Return the printed figure, with the unit of the metric where the text has none."""
    text, unit = figure.printed.text, METRICS[figure.metric].unit
    if figure.is_ratio:
        return text if text[-1] in "x%" else f"{text}x"
    return f"{text} {unit}" if text[-1].isdigit() and unit not in ("s", "B") else text


def _measured(figure: Figure, found: Measured | None) -> str:
    """Return a measured figure with the range over several cases: "574", "1.78x (1.52 to 2.1)"."""
    if found is None:
        return NOTHING
    text = times(found.value) if figure.is_ratio else METRICS[figure.metric].format(found.value)
    if found.cases == 1 or found.least == found.most:
        return text
    return f"{text} ({_plain(figure, found.least)} to {_plain(figure, found.most)})"


def _plain(figure: Figure, value: float) -> str:
    return digits(value) if figure.is_ratio else METRICS[figure.metric].format(value)


def _reasons(settings: Sequence[Setting], judged: dict[str, dict[str, list[Finding]]]) -> Iterator[Reason]:
    """Yield the reasons why claims, or some figures of a claim, cannot be tried; equal reasons are joined."""
    told: dict[tuple[str, str], dict[str, None]] = {}
    for setting in settings:
        name = setting.claim.id
        if setting.claim.cannot:
            told.setdefault(("cannot be tried", setting.claim.cannot), {})[name] = None
        for gpu, by_claim in judged.items():
            own = by_claim[name]
            left = [finding for finding in own if finding.outcome == "cannot be tried here"]
            whole = len(left) == len(own)
            if whole and any(finding.figure.is_ratio for finding in own):
                left = [finding for finding in left if finding.figure.is_ratio]  # a ratio can be tried on any GPU
            for finding in left:
                who = name if whole else f"{name} ({finding.figure.name})"
                where = f"not tried on {gpu}" if len(judged) > 1 else "not tried here"
                told.setdefault((where, one_line(finding.why)), {})[who] = None
    for (word, why), names in told.items():
        yield Reason(word, some(names, 4), why)


def _row(finding: Finding) -> dict[str, Any]:
    setting, figure, bursts, sustained = finding.setting, finding.figure, finding.bursts, finding.sustained
    row: dict[str, Any] = {
        "paper": setting.paper,
        "claim": setting.claim.id,
        "what": setting.claim.what,
        "where": setting.claim.where,
        "printed_of": setting.gpu,
        "gpu": finding.gpu,
        "metric": figure.metric,
        "figure": figure.name,
        "printed": figure.printed.text,
        "printed_low": figure.printed.low,
        "printed_high": figure.printed.high,
        "tolerance": figure.tolerance,
        **dict.fromkeys(("value", "low", "high", "least", "most", "cases")),
        **dict.fromkeys(("sustained", "sustained_low", "sustained_high")),
        "verdict": finding.outcome,
        "off": finding.off,
        "why": finding.why,
        "ran": ", ".join(finding.ran),
    }
    if bursts:
        row |= vars(bursts)
    if sustained:
        row |= {"sustained": sustained.value, "sustained_low": sustained.low, "sustained_high": sustained.high}
    return row
