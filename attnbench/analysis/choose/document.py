"""The choices as a document: which backend by region of shapes, what one backend for all would cost, engines' lines."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attnbench.analysis.cautions import stated
from attnbench.analysis.choose import engines
from attnbench.analysis.choose.choice_file import ChoiceFile, Chosen, choice_file
from attnbench.analysis.choose.choice_file import text as choice_text
from attnbench.analysis.choose.module import NAME, module, module_regions
from attnbench.analysis.choose.regions import BORDER, Region, regions, single, unknown_borders
from attnbench.analysis.recommend import problem_names
from attnbench.analysis.recommend.cautions import CAUTIONS, DEFAULT, FACTS, Recommended, how_to_prove
from attnbench.analysis.recommend.findings import Problem, answered_once, problems
from attnbench.analysis.report.machine_summary import machines
from attnbench.analysis.report.reasons import reasons
from attnbench.core import stats
from attnbench.core.errors import EXIT_DONE, EXIT_NOTHING_MEASURED, UserError
from attnbench.core.formats import duration, times
from attnbench.core.groups import grouped
from attnbench.core.json import to_json
from attnbench.core.record import Run
from attnbench.core.sizes import format_size
from attnbench.core.text import count, listed, some
from attnbench.render.document import NOTHING_MEASURED, Column, Document, Entry, Span, Table
from attnbench.results import case_names, disturbed
from attnbench.results.cells import Cell, runs_of
from attnbench.results.export_rows import MadeRows

COLUMNS = ("batch", "keys", "use", "alike", "latency", "gain", "at worst")
NOTE = (
    "Latency: at the first and at the last measured length. Gain: over PyTorch's default, at both. At worst: its "
    "latency over the fastest's."
)
ROWS = ("step", "shape", "batch_first", "batch_last", "seqlen_k_first", "seqlen_k_last", "use", "alternatives", "worst")


@dataclass(frozen=True)
class Choices:
    """The choices for the cases of the cells of one machine, among the backends that are wanted.

    `bits` are the properties that their bits must be known to have (results/bits.py); `vary` is as for `regions`;
    `name` is the module's.
    """

    cells: Sequence[Cell]
    wanted: Callable[[str], bool] = lambda _: True
    bits: tuple[str, ...] = ()
    vary: bool = False
    name: str = NAME

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems to choose for. Raises UserError for several machines."""
        found = problem_names.told_apart(answered_once(problems(self.cells, self.wanted, self.bits)))
        devices = list(dict.fromkeys(problem.device for problem in found))
        if len(devices) > 1:
            raise UserError(f"a choice is of one machine, and these runs are of {some(devices)}; give the files of one")
        return found

    @cached_property
    def runs(self) -> list[Run]:
        """The runs of the cells, the newest last. Raises UserError where there is none."""
        if not (found := runs_of(self.cells)):
            raise UserError("there is nothing to choose from: no record was made")
        return sorted(found, key=lambda run: run.started)

    @cached_property
    def file(self) -> ChoiceFile:
        """The content of the choice file."""
        return choice_file(self.problems, self.runs[-1], vary=self.vary)

    def writers(self, command: Sequence[str]) -> Mapping[str, Callable[[], str]]:
        """Return the makers of a choice file and of a module, by format; `command` has the words of this command."""
        line = shlex.join(["attnbench", *command])
        return {
            "choice": lambda: choice_text(self.file),
            "module": lambda: module(self.problems, self.runs, line, vary=self.vary, name=self.name),
        }

    def document(self, file: Path | None = None) -> Document:
        """Return the choices, with what one backend for all shapes would cost; `file` is the run's."""
        if not self.problems:
            return Document(
                command="tune",
                title="No choice",
                answer=(NOTHING_MEASURED,),
                machines=tuple(machines(self.cells)),
                reasons=tuple(reasons(self.cells)),
                exit_code=EXIT_NOTHING_MEASURED,
            )
        found, runs = self.problems, runs_of(self.cells)
        parts = regions(found, vary=self.vary)
        files = [file] if file else []
        asked = Recommended(found, self.cells, (), 1, found, found, files, runs=runs)
        answer = (*disturbed.doubt(runs), *_answer(found, parts, self.runs[-1], self.vary, self.name))
        chosen = any(region.use for region in parts)
        lines = engines.settings(found, self.name)
        return Document(
            command="tune",
            title=f"Which attention to call on {found[0].device}, by shape",
            answer=answer,
            machines=tuple(machines(self.cells)),
            blocks=(*_tables(parts), *engines.blocks(lines)),
            reasons=tuple(reasons(self.cells)),
            cautions=stated(CAUTIONS, asked),
            facts=stated(FACTS, asked),
            data={"answer": answer, **to_json(self.file), "engines": engines.data(lines)},
            rows=_rows(self.file),
            columns=ROWS,
            exit_code=EXIT_DONE if chosen else EXIT_NOTHING_MEASURED,
        )


def of_file(choices: ChoiceFile) -> Document:
    """Return the regions of a choice file."""
    groups = grouped(choices.regions, lambda region: (region.step, _shape(region)))
    blocks = [
        Table(
            f"tune-{number}",
            (Column("batch"), Column("keys"), Column("use"), Column("alike", wrap=True), Column("at worst", "right")),
            tuple(
                (_span(*one.batch), _span(*one.seqlen_k), one.use or "-", ", ".join(one.alternatives), times(one.worst))
                for one in own
            ),
            title=", ".join(filter(None, (shape, step))),
        )
        for number, ((step, shape), own) in enumerate(groups.items(), start=1)
    ]
    uses = Counter(region.use for region in choices.regions if region.use)
    told = some([f"{name} in {number}" for name, number in uses.most_common()], 8)
    answer = (f"On {choices.gpu}, measured {', '.join(run[:10] for run in choices.runs)}: {told or 'nothing'}.",)
    return Document(
        command="tune",
        title=f"Which attention to call on {choices.gpu}, by shape",
        answer=answer,
        blocks=tuple(blocks),
        data={"answer": answer, **to_json(choices)},
        rows=_rows(choices),
        columns=ROWS,
    )


def _answer(found: Sequence[Problem], parts: Sequence[Region], run: Run, vary: bool, name: str) -> Iterator[str]:
    answered = [region for region in parts if region.use]
    if not answered:
        bits = listed(name.replace("_", "-") for name in found[0].bits)
        lacking = [(problem, one) for problem in found if not problem.candidates for one in problem.unproven]
        why = f": none is known to be {bits} (--bits)" if lacking else ""
        advice = sorted({how_to_prove(problem, one) for problem, one in lacking})
        yield " ".join((f"No backend is known to be the fastest in any region of shapes{why}.", *filter(None, advice)))
        return
    for step, own in grouped(answered, lambda region: region.kind.step).items():
        uses = Counter(region.use for region in own)
        said = some([f"{name} in {number}" for name, number in uses.most_common()], 8)
        yield f"On {found[0].device}, {step}, of {count(len(own), 'region')} of shapes: use {said}.{_kept(own)}"
    gains = [
        problem.default.latency / one.latency
        for region in answered
        for problem in region.problems
        if problem.default and (one := region.candidate(problem))
    ]
    if gains:
        mean = stats.exp(sum(map(math.log, gains)) / len(gains))
        yield (
            f"That is {times(mean)} as fast as {DEFAULT} in the geometric mean of "
            f"{count(len(gains), 'measured case')}, and at most {times(max(gains))}."
        )
    yield from _of_one_name(found)
    yield from _of_module(found, parts, run, vary, name)
    if unknown := unknown_borders(parts):
        yield (
            f"{count(len(unknown), 'border')} between regions "
            f"{'is' if len(unknown) == 1 else 'are'} known to no better than a factor of {BORDER} in length; "
            "attnbench tune --resume measures further."
        )


def _kept(own: Sequence[Region]) -> str:
    """Return a sentence on the choice of one backend for all of a training run; "" where none was made."""
    worst = max((region for region in own if region.for_all), key=lambda region: region.loss, default=None)
    if not worst:
        return ""
    return (
        " Each kind of layer keeps one backend in training"
        + (f", which takes at worst {times(worst.loss)} as long as the fastest" if worst.loss > 1.005 else "")
        + "; --vary-in-training chooses by shape."
    )


def _of_one_name(found: Sequence[Problem]) -> Iterator[str]:
    """Yield what a single backend for all forwards of a dtype costs, as in a program that takes one name."""
    forwards = [problem for problem in found if problem.step == "fwd"]
    for (dtype, paged), own in grouped(forwards, lambda p: (p.case.dtype, p.case.is_paged)).items():
        one = single(own)
        if one and one.loss > 1.005:
            yield (
                f"One name for all forwards in {dtype}{' over pages' if paged else ''}: {one.use}, {times(one.mean)} "
                f"as long as the fastest in the geometric mean, at worst {times(one.loss)} "
                f"({problem_names.name(one.where)})."
            )


def _of_module(found: Sequence[Problem], parts: Sequence[Region], run: Run, vary: bool, name: str) -> Iterator[str]:
    """Yield what the module calls, and what it costs where it cannot call the fastest."""
    own = [region for region in module_regions(found, run, vary=vary) if region.use]
    if not own:
        yield "A module (-f module=FILE.py) would call none of these backends: docs/tune.md says which it can."
        return
    worst = max(own, key=lambda region: region.loss)
    uses = dict.fromkeys(region.use for region in own)
    others = dict.fromkeys(region.use for region in parts if region.use and region.use not in uses)
    covered, every = len({problem.key for region in own for problem in region.problems}), len(found)
    yield (
        f"-f module={name}.py writes a module that calls {', '.join(uses)}, for {covered} of {count(every, 'case')}"
        + (
            f"; at worst it takes {times(worst.loss)} as long as the fastest that was measured"
            if worst.loss > 1.005
            else ""
        )
        + (f"; it cannot call {some(others)}" if others else "")
        + "."
    )


def _tables(parts: Sequence[Region]) -> Iterator[Table]:
    for number, (kind, own) in enumerate(grouped(parts, lambda region: region.kind).items(), start=1):
        rows = tuple(map(_row, own))
        shown = [i for i, _ in enumerate(COLUMNS) if any(row[i] for row in rows)]
        columns = tuple(
            Column(COLUMNS[i], "left" if COLUMNS[i] in ("use", "alike") else "right", wrap=COLUMNS[i] == "alike")
            for i in shown
        )
        case = kind.case
        title = ", ".join(
            filter(
                None,
                (
                    " ".join((f"d{case_names.headdim(case)}", case_names.mask(case), kind.step)),
                    case_names.counted_heads(case),
                    case.dtype,
                    f"seqlen_q {case.shape.seqlen_q}" if kind.is_decode else "",
                    *case_names.extras(case),
                    case_names.pattern(case),
                ),
            )
        )
        entries = tuple(tuple(row[i] for i in shown) for row in rows)
        yield Table(f"tune-{number}", columns, entries, title=title, note=NOTE if number == 1 else "")


def _row(region: Region) -> tuple[Entry, ...]:
    ends = [region.problems[0], *([region.problems[-1]] if len(region.problems) > 1 else [])]
    own = [(problem, one) for problem in ends if (one := region.candidate(problem))]
    gains = [times(gain.value) for problem, one in own if (gain := problem.gain_of(one))]
    is_default = own and not gains and own[0][0].default
    return (
        _span(*region.batches),
        _span(*region.lengths),
        Span(region.use + " (deterministic)" * region.deterministic, "strong")
        if region.use
        else Span("not known", "warning"),
        ", ".join(region.others),
        " to ".join(duration(one.latency) for _, one in own),
        Span("the default", "quiet") if is_default else " to ".join(dict.fromkeys(gains)),
        times(region.loss) if region.loss > 1.005 else "",
    )


def _span(first: int, last: int) -> str:
    """Return a range of sizes: "1", "512 to 1.4k"."""
    return " to ".join(dict.fromkeys((format_size(first), format_size(last))))


def _shape(region: Chosen) -> str:
    return ", ".join(f"{name} {value}" for name, value in region.shape.items() if value != "false")


def _rows(choices: ChoiceFile) -> MadeRows:
    def made() -> Iterator[dict[str, Any]]:
        for region in choices.regions:
            yield {
                "step": region.step,
                "shape": _shape(region),
                "batch_first": region.batch[0],
                "batch_last": region.batch[1],
                "seqlen_k_first": region.seqlen_k[0],
                "seqlen_k_last": region.seqlen_k[1],
                "use": region.use,
                "alternatives": "; ".join(region.alternatives),
                "worst": region.worst,
            }

    return MadeRows(made)
