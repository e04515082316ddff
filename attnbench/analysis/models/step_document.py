"""The document of `attnbench report --model`: the milliseconds of a model's attention in one step, by backend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from attnbench.analysis.models.crossover import Crossover, crossovers, layer_ratio, layers_of
from attnbench.analysis.models.findings import BOTH, StepTime, is_of, step_times, unmeasured
from attnbench.analysis.report.reasons import reasons
from attnbench.core import formats
from attnbench.core.case import DTYPES, Case
from attnbench.core.errors import UserError
from attnbench.core.groups import grouped
from attnbench.core.models import Layers, Model
from attnbench.core.sizes import format_size
from attnbench.core.text import count, listed
from attnbench.render.document import Caution, Column, Document, Ending, Figure, Grid, Grids, Table
from attnbench.results import case_names, disturbed
from attnbench.results.cells import Cell, runs_of
from attnbench.results.uncertainty import Contest, contest, doubt, hardly_known

DIRECTIONS = ("fwd", "bwd", "fwd_bwd", BOTH)
SUM = Caution(
    "A step is the sum of its layers' latencies, each measured alone with a cold L2.",
    "The work of a model between these layers is left out. The errors of all layers are taken to have one sign.",
)
PLANS = Caution(
    "Plans, built once a step for all layers of a kind, are not in the time of a step, but in a table of their own."
)


def document(cells: Sequence[Cell], model: Model, tp: int) -> Document:
    """Return the attention of a model in one step, from all cells that are of its layers.

    Raises UserError where no step is whole, with the command that measures it.
    """
    times = step_times(cells, model, tp)
    measure = f"attnbench run --model {model.name}" + (f" --tp {tp}" if tp > 1 else "")
    of_model = [cell for cell in cells if any(is_of(layers, model, tp, cell.case) for layers in model.parts)]
    if not times:
        missing = unmeasured(cells, model, tp)
        what = "; ".join(_layers(of) for of in missing) or "all kinds of layers on one backend"
        if any(cell.status not in ("ok", "skipped") for cell in of_model):
            raise UserError(f"report: --model {model.name}: no right figure of {what}; report without --model says why")
        raise UserError(f"report: --model {model.name}: not measured here: {what}; {measure} measures it")
    depth = ", ".join(_layers(of) for of in model.layers)
    one = f", one of {tp} devices" if tp > 1 else ""
    crossed = crossovers(times, model)
    heading = f"Attention of {model.name} in one step: {depth}{one}"
    return Document(
        command="report",
        title=f"{model.name} on {', '.join(dict.fromkeys(time.device for time in times))}",
        answer=(*disturbed.doubt(runs_of(of_model)), *_answer(times, model), *(f"{of}." for of in crossed)),
        blocks=(*_blocks(times, heading), *(_crossover(of, number) for number, of in enumerate(crossed, 1))),
        reasons=tuple(reasons(of_model)),
        facts=(SUM, *((PLANS,) if any(time.plan for time in times) else ()), *_without_indexer(times, model, measure)),
        data=(rows := [_row(time, model, tp) for time in times]),
        rows=rows,
    )


def _layers(layers: Layers) -> str:
    return f"{count(layers.count, 'layer')}{layers.sees}"


def _without_indexer(times: Sequence[StepTime], model: Model, measure: str) -> list[Caution]:
    """Return the caution on steps in which the time of the model's indexer is missing; [] where none is."""
    having = [any(cell.case.is_indexer for _, cell in time.parts) for time in times]
    if not model.indexer or all(having):
        return []
    which = "the step" if len(times) == 1 else "these steps" if not any(having) else "steps without a name of its own"
    return [Caution(f"The indexer that chooses the keys is not in {which}; {measure} measures it too.")]


def _answer(times: Sequence[StepTime], model: Model) -> list[str]:
    """Return the fastest backend of the largest step of each device and direction, and of decoding."""
    said = []
    of_work = grouped(times, lambda time: (time.device, time.direction, time.case.is_decode))
    for (device, direction, _), ours in of_work.items():
        case = max((time.case for time in ours), key=lambda case: (case.extent.seqlen_k * case.extent.batch, case.key))
        found = contest_of_steps([time for time in ours if time.case == case])
        name = f"{case_names.lengths(case)}, batch {case.shape.batch}, {case.dtype}, {direction}"
        told = doubt([found], lambda time: time.backend, lambda time: time.uncertainty)
        if winners := found.winners:
            told = f"{formats.duration(winners[0].seconds)} with {listed(time.backend for time in winners)}"
        said.append(f"{model.name}, {name} on {device}: {told}.")
    return said


def _blocks(times: Sequence[StepTime], heading: str) -> list[Grids]:
    """Return the times of the steps, and the times to build their plans where some backend builds one."""
    found = [Grids(heading, tuple(_grids(times)))]
    plans = [dataclasses.replace(time, seconds=time.plan) for time in times if time.plan]
    if plans:
        grids = tuple(_grids(plans, compete=False))
        found.append(Grids("Plans of one step, for all layers of a kind together", grids))
    return found


def _crossover(of: Crossover, number: int) -> Table:
    """Return the table of a hybrid's layers of both kinds, one length a row."""
    headings = ("tokens", of.kind, "by", "softmax attention", "by", f"softmax / {of.kind}")
    columns = tuple(Column(name, "left" if name == "by" else "right") for name in headings)
    rows = []
    for step, length, ratio, half in zip(of.steps, of.lengths, of.ratios, of.halves, strict=True):
        full, rule = layers_of(step)
        told = [(formats.duration(cell.value("latency") or 0.0), cell.backend_name) for cell in (rule, full)]
        interval = "" if half == math.inf else f" ({ratio * math.exp(-half):.2f} to {ratio * math.exp(half):.2f})"
        rows.append((format_size(length), *told[0], *told[1], f"{ratio:.2f}x{interval}"))
    title = f"One layer of each kind, {of.work} on {of.steps[0].device}"
    return Table(f"crossover-{number}", columns, tuple(rows), title)


def _grids(times: Sequence[StepTime], compete: bool = True) -> list[Grid]:
    several = len({time.device for time in times}) > 1

    def rank(time: StepTime) -> tuple[Any, ...]:
        extras = tuple(case_names.extras(time.case))
        return time.device, DTYPES.index(time.case.dtype), DIRECTIONS.index(time.direction), extras

    found = []
    for _, ours in sorted(grouped(times, rank).items()):
        first = ours[0]
        title = (first.device if several else "", first.case.dtype, first.direction, *case_names.extras(first.case))
        found.append(_grid(", ".join(filter(None, title)), ours, compete))
    return found


def _grid(title: str, times: Sequence[StepTime], compete: bool) -> Grid:
    columns = sorted({time.backend for time in times}, key=case_names.backend_rank)
    cases = sorted({time.case for time in times}, key=case_names.case_rank)
    rows = []
    for case in cases:
        ours = {time.backend: time for time in times if time.case == case}
        starred = (
            {time.backend for time in contest_of_steps([*ours.values()]).winners}
            if len(ours) > 1 and compete
            else set()
        )
        figures = tuple(
            _figure(ours[name], name in starred, compete) if name in ours else Ending("-") for name in columns
        )
        rows.append((_label(case), figures))
    s = cases[0].shape
    details = count(s.nheads, "head") + (f", {s.nheads_k} of keys" if s.nheads != s.nheads_k else "")
    return Grid(title, f"{details}, headdim {case_names.headdim(cases[0])}", "step", tuple(columns), tuple(rows))


def _label(case: Case) -> str:
    return f"{case_names.lengths(case)} b{case.shape.batch}" if not case.is_ragged else case_names.lengths(case)


def _figure(time: StepTime, best: bool, compete: bool) -> Figure:
    digits, _, unit = formats.duration(time.seconds).partition(" ")
    unsure = compete and hardly_known(time.uncertainty)
    return Figure(digits, unit, best, held_down=time.held_down, hardly_known=unsure)


def contest_of_steps(times: Sequence[StepTime]) -> Contest[StepTime]:
    """Return which backends take the least time for a step, of one device, case and direction."""
    return contest(times, lambda t: t.seconds, lambda t: t.uncertainty, lambda a, b: a.cell.between_cards(b.cell))


def _row(time: StepTime, model: Model, tp: int) -> dict[str, Any]:
    shape = dataclasses.asdict(time.case.shape)
    return {
        "model": model.name,
        "tp": tp,
        "device": time.device,
        "backend": time.backend,
        "direction": time.direction,
        "dtype": time.case.dtype,
        **shape,
        "page_size": time.case.page_size,
        "cache_dtype": time.case.cache_dtype,
        "shared_prefix": time.case.shared_prefix,
        "seconds": time.seconds,
        "uncertainty": time.uncertainty,
        "plan": time.plan,
        "softmax_over_delta": layer_ratio(time) if model.is_hybrid else None,
    }
