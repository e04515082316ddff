"""A recommendation as a document: the answer in sentences, a table of problems, the code, why backends are missing.

CSV has a row for each problem, and JSON the same rows beside the answer. Seconds and bytes are not scaled; tflops is
TFLOP/s and gbps GB/s. `run` is when the run of `use` was started. `alike` are the backends that tie with the fastest,
and the fastest itself; `gain` is how many times as fast `use` is as PyTorch's default, with its 95 % interval. Unknown
values are None.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.analysis.cautions import stated
from attnbench.analysis.recommend import problem_names
from attnbench.analysis.recommend.cautions import CAUTIONS, DEFAULT, FACTS, PLANS, Recommended, asked_of, why_unknown
from attnbench.analysis.recommend.findings import (
    DEFAULTS,
    TRAINING,
    Candidate,
    Gain,
    Problem,
    answered_once,
    model_problems,
    problems,
)
from attnbench.analysis.recommend.most_telling import (
    FEW_CASES,
    MOST_CASES,
    MOST_MACHINES,
    most_telling,
    newest_machines,
)
from attnbench.analysis.report.answer import left_out
from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.report.reasons import reasons
from attnbench.core import stats
from attnbench.core.case import Case
from attnbench.core.documents import with_addresses
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED
from attnbench.core.formats import FAR, digits, duration, size, times
from attnbench.core.groups import grouped
from attnbench.core.models import Model
from attnbench.core.record import WRONG
from attnbench.core.text import count, listed, one_line, some
from attnbench.render.document import NOTHING_MEASURED, Code, Column, Document, Entry, Span, Style, Table
from attnbench.results import case_names, disturbed
from attnbench.results.case_names import NOTHING
from attnbench.results.cells import Cell, machine_of, runs_of
from attnbench.results.export_rows import CASE_COLUMNS, case_columns
from attnbench.results.metrics import METRICS
from attnbench.run.select import splits_sequences

MOST_CODES = 8  # blocks of code: as many as a reader wants; JSON has all
FEW_CODES, FEW_REASONS, FEW_CAUTIONS = 2, 4, 3  # on a screen
COLUMNS = (
    *("device", "model", "step", *CASE_COLUMNS, "use", "ran", "version", "run", "alike", "measured"),
    *("latency", "ci", "tflops", "gbps", "memory_peak"),
    *("default", "default_ran", "default_latency", "gain", "gain_low", "gain_high", "code"),
)
SIZES = ("batch", "heads", "dtype")
FIGURES = ("latency", "speed", "gain", "memory")
COLUMNS_OF_TABLE = (
    *("case", *SIZES, "use", "gain", "95 %", "default"),
    *("latency", "speed", "memory", "run", "alike with it"),
)
# Columns that a narrow terminal may leave out in the short form, the most needed first
LESS_NEEDED = ("95 %", "alike with it", "batch", "heads", "default", "memory", "speed", "run")
TEXT, WRAPPED = ("case", "use", "default", "alike with it"), ("use", "default", "alike with it")
ON_ONE_DEVICE = (
    "Nothing can be recommended: backends for several devices were measured on one device alone, "
    "which is only the reference of their scaling."
)
MORE = with_addresses(
    "Doubts about the figures of a run: attnbench report FILE. How to read this page: docs/recommend.md."
)


def document(
    cells: Sequence[Cell],
    wanted: Callable[[str], bool] = lambda _: True,
    models: Sequence[Model] = (),
    tp: int = 1,
    file: Path | None = None,
    every: bool = True,
    bits: tuple[str, ...] = (),
) -> Document:
    """Return the recommendation for the cases of some cells, and for the steps of models on one of `tp` devices.

    `wanted` says which backends may be recommended, and `bits` which properties their bits must have. `file` is the
    file of the run, where there is one. Without `every` its text is as short as a screen (most_telling.py); its data
    for programs are complete.
    """
    usable = [cell for cell in cells if cell.case.ranks > 1 or not splits_sequences(cell.backend)]
    found = [step for model in models for step in model_problems(usable, model, tp, wanted, bits)]
    every_run = [*found, *problems(usable, wanted, bits)]
    found = problem_names.told_apart(answered_once(every_run))
    shown = [cell for cell in cells if wanted(cell.backend) or cell.backend in DEFAULTS]
    asked = Recommended(found, cells, models, tp, found, every_run, [file] if file else [])
    complete = _document(asked, shown)
    return complete if every else _shortened(complete, asked, shown)


def _document(asked: Recommended, cells: Sequence[Cell]) -> Document:
    """Return the complete document of some problems; `cells` are the cells of the backends that are shown."""
    found, runs = asked.problems, runs_of(cells)
    rows = [_row(problem) for problem in found]
    said = _answer(found) if found else [_nothing(cells)]
    answer = (*disturbed.doubt(runs), *said, *filter(None, [left_out(cells)]))
    missing = tuple(reasons(cells))
    recommended = replace(asked, runs=runs)
    cautions = stated(CAUTIONS, recommended)
    codes = _codes(found)
    left = len(codes) - MOST_CODES
    more = [Code("-f json has the code of every case.", f"{count(left, 'more block')} of code")] if left > 0 else []
    return Document(
        command="recommend",
        title=f"What to use on {', '.join(dict.fromkeys(p.device for p in found)) or 'no device'}",
        answer=answer,
        machines=tuple(machines(cells)),
        blocks=(*_tables(found), *codes[:MOST_CODES], *more),
        reasons=missing,
        cautions=cautions,
        facts=stated(FACTS, recommended),
        notes=((Span(MORE, "quiet"),),),
        data={
            "answer": answer,
            "recommendations": rows,
            "missing": [{"ending": r.word, "who": r.who, "reason": r.reason} for r in missing],
            "warnings": [one_line(str(caution)) for caution in cautions],
        },
        rows=rows,
        columns=COLUMNS,
        exit_code=EXIT_DONE if any(row["use"] for row in rows) else EXIT_NOTHING_MEASURED,
    )


def _shortened(complete: Document, asked: Recommended, cells: Sequence[Cell]) -> Document:
    """Return a document as short as a screen, with all data for programs.

    It has the newest machines, each with its most telling cases. Where other machines are left out, or many runs are
    unlike, it has the newest run of each machine, no code, no reasons, and few cautions.
    """
    found = asked.problems
    newest = newest_machines(found)
    own, others = ([p for p in found if (p.machine in newest) == is_own] for is_own in (True, False))
    crowded = len(complete.machines) > MOST_MACHINES
    chosen, codes = most_telling(own, FEW_CASES if crowded else MOST_CASES), _codes(own)
    shown, most_codes, most_reasons, most_cautions = complete, FEW_CODES, FEW_REASONS, len(complete.cautions)
    if crowded:
        of_newest = [cell for cell in cells if machine_of(cell.run) in newest]
        used = [cell for problem in own if problem.use for cell in problem.use.cells] or of_newest
        last = {machine_of(cell.run): cell.device for cell in sorted(used, key=lambda cell: cell.run.started)}
        shown = _document(replace(asked, problems=own), of_newest)
        shown = replace(
            shown,
            answer=(*shown.answer, *([_of_others(others)] if others else [])),
            machines=tuple(machines([cell for cell in of_newest if cell.device in last.values()])),
        )
        most_codes, most_reasons, most_cautions = 0, 0, FEW_CAUTIONS
    left = (
        (len({cell.device for cell in cells if machine_of(cell.run) in newest}) - len(shown.machines), "run group"),
        (len(found) - len(chosen), "case"),
        (len(codes) - most_codes, "code block"),
        (len(shown.cautions) - most_cautions, "warning"),
        (len(shown.reasons) - most_reasons, "reason"),
    )
    said = listed(count(number, what) for number, what in left if number > 0)
    again = shlex.join(["attnbench", "recommend", *map(str, asked.files), "--all"])
    more = f"Not shown: {said}. {again} shows everything, -f csv has a row for each case; --seqlen, --headdim and the "
    more += "like, or fewer files, choose."
    return replace(
        shown,
        blocks=(*_tables(chosen, short=True), *codes[:most_codes]),
        reasons=shown.reasons[:most_reasons],
        cautions=shown.cautions[:most_cautions],
        facts=stated([PLANS], replace(asked, problems=own)),
        notes=(*([(Span(more, "warning"),)] if said else []), *shown.notes),
        data=complete.data,
        rows=complete.rows,
    )


def _of_others(found: Sequence[Problem]) -> str:
    """Return one sentence on the backends to use on the machines that are not shown."""
    devices = {problem.device for problem in found}
    where = f"On the other {len(devices)} machines" if len(devices) > 1 else "On one other machine"
    answered = [problem for problem in found if problem.use]
    return f"{where}, of {count(len(answered), 'case')}: {_uses(answered, 4) or 'use none'}."


def _nothing(cells: Sequence[Cell]) -> str:
    """Return one sentence that says why no backend can be chosen."""
    return ON_ONE_DEVICE if any(splits_sequences(cell.backend) for cell in cells) else NOTHING_MEASURED


def _answer(found: Sequence[Problem]) -> Iterator[str]:
    several = len({problem.case.dtype for problem in found}) > 1  # dtypes do not compete with each other
    groups = grouped(
        found, lambda p: (p.device, p.case.ranks, p.case.dtype if several else "", p.model, bool(p.special))
    )
    for own in sorted(groups.values(), key=lambda own: min(len(problem.special) for problem in own)):
        first, answered = own[0], [problem for problem in own if problem.use]
        devices = f"{first.case.ranks} x {first.device}" if first.case.ranks > 1 else first.device
        where = f"On {devices}" + (f" in {first.case.dtype}" if several else "")
        where += f", all layers of {first.model}" if first.model else ""
        if not answered:
            who = asked_of(own) or "exact backend"
            yield f"{where} nothing can be recommended: {why_unknown(own) or f'no {who} has a right figure'}."
        elif len(answered) == 1:
            yield _of_one(answered[0])
        else:
            yield _of_several(where, answered)
            if of_gain := _gains(answered):
                yield of_gain
        if answered and (unknown := [problem for problem in own if problem.candidates and not problem.use]):
            yield f"In {count(len(unknown), 'other case')} nothing can be recommended: {why_unknown(unknown)}."


def _of_one(problem: Problem) -> str:
    """Return the answer for a single problem: what to use, its latency, gain and memory."""
    use, gain = problem.use, problem.gain
    assert use
    said = f"use {_with_choice(use)}" if problem.has_choice else f"{_with_choice(use)} {_alone([problem])}"
    text = f"On {problem.device} {said} for {problem_names.name(problem)}: {duration(use.latency)}"
    if use is problem.default:
        text += f", {DEFAULT}"
    elif gain:
        assert problem.default
        text += f", {_gain_text(gain)} as fast as {DEFAULT} ({_with_choice(problem.default)})"
    text += f"; {size(use.memory)} of memory beside the inputs" if use.memory is not None else ""
    text += "" if problem.has_choice else ": no choice"
    others = [one.name for one in problem.fastest if one is not use]
    return text + (f". Alike within the uncertainty: {some(others, 6)}." if others else ".")


def _of_several(where: str, answered: Sequence[Problem]) -> str:
    """Return which backend to use in how many problems; `where` begins the sentence."""
    text = f"{where}, of {_cases(answered)}: {_uses(answered)}."
    ties = [problem for problem in answered if len(problem.fastest) > 1]
    kept = sum(problem.use is problem.default for problem in ties)
    if ties:
        text += f" In {len(ties)} of them other backends are alike within the uncertainty"
        text += f", in {kept} of these PyTorch's default, which is then the backend to use." if kept else "."
    return text


def _cases(found: Sequence[Problem]) -> str:
    """Return how many cases there are, and what makes them special: "3 special cases (ragged lengths, softcap)"."""
    special = dict.fromkeys(what for problem in found for what in problem.special)
    return f"{count(len(found), 'special case')} ({some(special, 6)})" if special else count(len(found), "case")


def _uses(answered: Sequence[Problem], most: int | None = None) -> str:
    """Return the backends to use with their numbers of cases: "use fa3 in 2; triton alone was right in 24: no choice".

    At most `most` backends are named; "" where nothing is answered.
    """
    chosen, alone = ([p for p in answered if p.has_choice == has_choice] for has_choice in (True, False))
    said = []
    if chosen:
        uses = [f"{backend} in {number}" for backend, number in _counted(chosen)]
        said.append(f"use {some(uses, most or len(uses))}")
    if alone:
        (first, number), *others = _counted(alone)
        uses = [f"{first} {_alone(alone)} in {number}", *(f"{backend} in {n}" for backend, n in others)]
        said.append(f"{some(uses, most or len(uses))}: no choice")
    return "; ".join(said)


def _counted(answered: Sequence[Problem]) -> list[tuple[str, int]]:
    """Return the backends to use with their numbers of cases, the most first."""
    uses = Counter(problem.use.backend for problem in answered if problem.use)
    return sorted(uses.items(), key=lambda of: (-of[1], case_names.backend_rank(of[0])))


def _alone(found: Sequence[Problem]) -> str:
    """Return the words for the only backend of each of some problems: "alone was right"."""
    return "alone was asked for and right" if any(p.others_right for p in found) else "alone was right"


def _gains(answered: Sequence[Problem]) -> str:
    """Return a sentence on the gain of the backends to use over PyTorch's default, in all problems that it computes."""
    known = [problem for problem in answered if problem.default and problem.has_choice]
    gains = [(problem.gain.value, problem) for problem in known if problem.gain]
    if not known:
        return ""
    ran = Counter(_with_choice(problem.default) for problem in known if problem.default)
    name = ", ".join(f"{what} in {number}" if len(ran) > 1 else what for what, number in ran.most_common())
    if not gains:
        return f"No gain over {DEFAULT} ({name}): it is the fastest, or not told apart from the fastest."
    mean = stats.exp(sum(math.log(gain) for gain, _ in gains) / len(known))
    compared = count(len(known), "case")
    if len(known) < len(answered):
        compared = f"the {len(known)} of these cases that it computes too and that have a choice"
    most, where = max(gains, key=lambda pair: pair[0])
    return (
        f"They are {times(mean)} as fast as {DEFAULT} ({name}) in the geometric mean of {compared}, and at most "
        f"{times(most)} ({problem_names.name(where)})."
    )


def _with_choice(one: Candidate) -> str:
    """Return a candidate's name with the backend that it chose: "sdpa, which ran cudnn"."""
    return f"{one.name}, which ran {one.ran}" if one.ran else one.name


def _gain_text(gain: Gain) -> str:
    """Return a gain with its interval, where that is known: "1.18x (1.15 to 1.21)"."""
    interval = _interval_text(gain)
    return times(gain.value) + (f" ({interval})" if interval else "")


def _interval_text(gain: Gain) -> str:
    """Return the interval of a gain: "1.15 to 1.21"."""
    if gain.low is None or gain.high is None:
        return ""
    return "hardly known" if gain.high > FAR * gain.value else f"{digits(gain.low)} to {digits(gain.high)}"


def _tables(found: Sequence[Problem], short: bool = False) -> Iterator[Table]:
    """Yield a table for each device, model and step; in the short form one table has all steps."""
    groups = grouped(found, lambda problem: (problem.device, problem.model, "" if short else problem.step))
    several = len({device for device, _, _ in groups}) > 1
    for number, ((device, model, _), own) in enumerate(groups.items(), start=1):
        steps = {problem.step for problem in own}
        parts = [*(steps if len(steps) == 1 else ()), *([f"all layers of {model}"] if model else [])]
        title = " on ".join(filter(None, (", ".join(parts), device if several else "")))
        yield _table(f"recommend-{number}", title, own, short)


def _table(name: str, title: str, own: Sequence[Problem], short: bool) -> Table:
    one_step = len({problem.step for problem in own}) == 1
    rows = [{"case": problem_names.label(p, not one_step), **_sizes(p), **_entries(p, short)} for p in own]
    told = [column for column in COLUMNS_OF_TABLE if any(row[column] != rows[0][column] for row in rows)]
    shown = [column for column in COLUMNS_OF_TABLE if column in told or _is_told(column, rows[0][column])]
    rank = {column: place for place, column in enumerate(LESS_NEEDED, 1) if short}
    wrapped = (*WRAPPED, *(["case"] if short else []))
    columns = tuple(
        Column(c, "left" if c in TEXT else "right", wrap=c in wrapped, optional=rank.get(c, 0)) for c in shown
    )
    entries = tuple(tuple(row[c] for c in shown) for row in rows)
    return Table(name, columns, entries, title=title, note=_note(own, short))


def _is_told(column: str, entry: Entry) -> bool:
    """Return whether a column whose entries are all alike is shown: sizes, runs and the dtype bf16 are not."""
    if column == "dtype":
        return entry not in ("", NOTHING, "bf16")
    return column not in (*SIZES, "run") and entry not in ("", NOTHING)


def _sizes(problem: Problem) -> dict[str, str]:
    case = problem.case
    return {"batch": str(case.shape.batch), "heads": case_names.heads(case), "dtype": case.dtype}


def _entries(problem: Problem, short: bool) -> dict[str, Entry]:
    """Return the entries of a row except case and sizes; `short` has a column of its own for the gain's interval."""
    use, default = problem.use, problem.default
    of_default = "" if not default else default.ran or duration(default.latency)
    found: dict[str, Entry] = {
        **dict.fromkeys(FIGURES, NOTHING),
        "95 %": "",
        "default": of_default,
        "run": "",
        "alike with it": "",
    }
    if not use:
        return found | {"use": _no_use(problem)}
    metric, rate = use.rate
    if rate is not None:
        found["speed"] = f"{METRICS[metric].format(rate)} {METRICS[metric].unit}".strip()
    if use is default:
        found["gain"] = Span("the default", "quiet")
    elif problem.gain:
        found["gain"] = times(problem.gain.value) if short else _gain_text(problem.gain)
        found["95 %"] = _interval_text(problem.gain) if short else ""
    if use.memory is not None:
        found["memory"] = size(use.memory)
    others = ", ".join(one.name for one in problem.fastest if one is not use)
    days = ", ".join(dict.fromkeys(start[:10] for start in use.started))
    what = Span(use.name, "strong") if problem.has_choice else Span(f"{use.name} alone", "quiet")
    return found | {"use": what, "latency": duration(use.latency), "run": days, "alike with it": others}


def _no_use(problem: Problem) -> Span:
    """Return the entry in place of a backend to use: the reason why there is none."""
    if problem.unproven and not problem.candidates:
        return Span("nothing with these bits", "warning")
    if problem.candidates:
        return Span("not comparable" if problem.is_incomparable else "hardly known", "warning")
    style: Style = "bad" if problem.ending in WRONG else "warning"
    return Span(f"nothing: {case_names.ENDINGS.get(problem.ending or 'skipped', 'not ranked')}", style)


def _note(own: Sequence[Problem], short: bool) -> str:
    """Return the note that explains the columns of a table; with `short` only the gain."""
    defaults = {problem.default.backend for problem in own if problem.default}
    text = f"Gain: times as fast as {DEFAULT} ({' and '.join(sorted(defaults))})" if defaults else ""
    if short:
        return text and f"{text}."
    text += ", 95 %; default: the backend that it ran. " if text else ""
    text += "Memory: the most in use beyond the inputs."
    if any(problem.model for problem in own):
        text += " A step is the sum of its layers, each measured alone, with one backend for all layers."
    if any(problem.step == TRAINING for problem in own):
        text += " A training step is the forward and the backward of one implementation, both of them right."
    return text


def _codes(found: Sequence[Problem]) -> list[Code]:
    """Return the code of the backends to use, the code for most cases first; a model has several kinds of layers.

    Cases are counted as in the answer: each pass of a case counts, and each machine.
    """
    groups: dict[tuple[str, str], list[tuple[Candidate, Case]]] = {}
    every: dict[str, dict[Case, None]] = {}
    for use in (problem.use for problem in found if problem.use):
        for case, code in use.codes.items():
            groups.setdefault((use.backend, code), []).append((use, case))
            every.setdefault(use.backend, {})[case] = None
    blocks = []
    for (backend, code), of in groups.items():
        version, number = of[0][0].version, len({id(use) for use, _ in of})  # all layers of a model are one case
        where = case_names.where([*dict.fromkeys(case for _, case in of)], [*every[backend]])
        title = f"{backend}{f' ({version})' if version else ''}, {count(number, 'case')}"
        blocks.append((number, Code(code, f"{title}: {where}" if where else title)))
    return [block for _, block in sorted(blocks, key=lambda pair: -pair[0]) if block.text]


def _row(problem: Problem) -> dict[str, Any]:
    """Return a problem for other programs, with the keys of COLUMNS."""
    use, default, gain = problem.use, problem.default, problem.gain
    metric, rate = use.rate if use else ("", None)
    of_default = {"default": default.backend, "default_ran": default.ran} if default else {}
    told = {
        "device": problem.device,
        "model": problem.model or None,
        "step": problem.step,
        **case_columns(problem.case),
        "alike": "; ".join(one.backend for one in problem.fastest),
        "measured": "; ".join(one.backend for one in problem.candidates),
        **of_default,
        "default_latency": default and default.latency,
        **({"gain": gain.value, "gain_low": gain.low, "gain_high": gain.high} if gain else {}),
    }
    if use:
        told |= {"use": use.backend, "ran": use.ran, "version": use.version, "run": "; ".join(use.started)}
        told |= {"latency": use.latency, "ci": use.half}
        told |= {
            "memory_peak": use.memory,
            metric: rate,
            "code": "\n\n".join(filter(None, dict.fromkeys(use.codes.values()))),
        }
    return {column: told.get(column) for column in COLUMNS}
