"""A cluster as a document: the units that are wrong, those that stand out, and the figures of every unit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attnbench.analysis.cluster.findings import Family, Model, Unit, models
from attnbench.analysis.cluster.outliers import FALSE_ALARM, LEAST, TAIL
from attnbench.analysis.gate.verdicts import signed
from attnbench.core import stats
from attnbench.core.documents import with_addresses
from attnbench.core.errors import EXIT_DONE, EXIT_INCONCLUSIVE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT
from attnbench.core.formats import megahertz, percent
from attnbench.core.groups import grouped
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.render.document import (
    Caution,
    Column,
    Document,
    Dot,
    Entry,
    Machine,
    Plot,
    Section,
    Span,
    Style,
    Table,
    Verdict,
)
from attnbench.results.disturbed import doubt
from attnbench.results.run_setup import differences

EVERY_UNIT = "Wrong on every unit that measured it, so probably by the kernel: {}."
NOT_KNOWN = (
    "Wrong, and right on no other card of the same setup, so the kernel, the card or its software: {}. Measure on "
    "another card, set up alike."
)


def document(files: Sequence[tuple[str, Run]], damage: Mapping[str, str] = MappingProxyType({})) -> Document:
    """Return the document of a cluster from runs, each with the name of its file.

    `damage` maps the name of a file to what cannot be read of it. A file without a run is a unit that measured nothing.
    """
    found = models(files)
    rows = [row for model in found for row in _data(model)]
    unread = [name for name in damage if name not in dict(files)]
    in_part = [name for name in damage if name in dict(files)]
    units = count(len({unit.id for model in found for unit in model.units}) + len(unread), "unit")
    of_models = count(len({model.run.environment.device.name for model in found}), "model")
    setups = f", {len(found)} setups" if len(found) > 1 else ""
    return Document(
        command="cluster",
        title=f"Cluster of {units}",
        answer=(*doubt([run for _, run in files]), *_answer(found), *_damaged(unread, in_part)),
        machines=tuple(_machine(model) for model in found),
        blocks=tuple(_table(number, model) for number, model in enumerate(found, start=1)),
        cautions=tuple(_cautions(found)),
        facts=tuple(_facts(found)),
        notes=((Span(_note(found), "quiet"),),),
        verdict=_verdict(found, f"of {units}, {of_models}{setups}", len(unread), len(in_part)),
        appendix=tuple(_figures(found)),
        data={"units": rows, "models": [_model_data(model) for model in found], "damaged": dict(damage)},
        rows=rows,
        columns=tuple(dict.fromkeys(key for row in rows for key in row)),
        exit_code=exit_code(found, damaged=bool(damage)),
    )


def planned(devices: Sequence[tuple[str, str, str, str]], words: Sequence[str]) -> Document:
    """Return the document of a dry run, which lists the file, node, name and attnbench of each device."""
    headings = ("file", "node", "device", "attnbench")
    rows = [dict(zip(headings, device, strict=True)) for device in devices]
    return Document(
        command="cluster",
        title="What would be measured",
        answer=(f"{count(len(devices), 'device')}, each by: attnbench run {' '.join(words)}",),
        blocks=(Table("devices", tuple(map(Column, headings)), tuple(devices)),),
        data=rows,
        rows=rows,
        columns=headings,
    )


def _damaged(unread: Sequence[str], in_part: Sequence[str]) -> Iterator[str]:
    again = "restore the file, or measure again."
    if unread:
        yield f"Not readable: {some(unread)}. Each counts as a unit that measured nothing; {again}"
    if in_part:
        yield f"Readable in part: {some(in_part)}. A wrong result may be in what is lost; {again}"


def _verdict(found: Sequence[Model], of: str, unread: int, in_part: int) -> Verdict:
    """Return the verdict: `of` says of how many units; `unread` files are unreadable, `in_part` files damaged."""
    units = [(model, unit) for model in found for unit in model.units]
    numbers = {
        "WRONG RESULTS": len({unit.id for _, unit in units if unit.wrong}),
        "KERNELS NOT AS DECLARED": len({unit.id for _, unit in units if unit.other_kernels}),
        "OUTLIERS": len({unit.id for model, unit in units if _is_slow(model, unit)}),
        "MEASURED NOTHING": len({unit.id for _, unit in units if not unit.latencies}) + unread,
        "DAMAGED FILES": in_part,
    }
    if bad := [f"{word}: {number}" for word, number in numbers.items() if number]:
        return Verdict(f"{', '.join(bad)} {of}", "bad")
    if not _judged(found):
        return Verdict(f"NOT JUDGED: too few units measured alike, {of}", "warning")
    if far := len({unit.id for model, unit in units if _may_be_slow(model, unit)}):
        return Verdict(f"NOT DECIDED: {far} far off, but not apart from the others, {of}", "warning")
    left = len({unit.id for _, unit in units} - _judged(found))
    return Verdict(f"NO UNIT STANDS OUT: none {of}{f', {left} of them not judged' if left else ''}", "good")


def _judged(found: Sequence[Model]) -> set[str]:
    """Return the ids of the units that are judged in any model; a card whose setup changed is in two models."""
    return {unit.id for model in found for unit in model.judged}


def exit_code(found: Sequence[Model], damaged: bool = False) -> int:
    """Return the exit code: wrong results and wrong kernels first, then a unit that is slower or measured nothing, or
    whose file is `damaged`, then one that may be slower than the others."""
    if any(unit.wrong or unit.other_kernels for model in found for unit in model.units):
        return EXIT_WRONG_RESULT
    if damaged or any(not unit.latencies or _is_slow(model, unit) for model in found for unit in model.units):
        return EXIT_NOTHING_MEASURED
    open_ = not _judged(found) or any(_may_be_slow(model, unit) for model in found for unit in model.units)
    return EXIT_INCONCLUSIVE if open_ else EXIT_DONE


def _is_slow(model: Model, unit: Unit) -> bool:
    return any(off > 0 for off in model.outlying(unit).values())


def _may_be_slow(model: Model, unit: Unit) -> bool:
    return any(off > 0 for off in model.far_off(unit).values())


def _answer(found: Sequence[Model]) -> Iterator[str]:
    for model in found:
        for unit in model.units:
            if alone := model.alone_wrong(unit):
                others = count(min(len(model.right(cell.key) - {unit.id}) for cell in alone), "other unit")
                files = some(dict.fromkeys(unit.where(cell) for cell in alone))
                yield (
                    f"{files} computed wrong results that {others} of its model computed right, in "
                    f"{some([cell.name for cell in alone])}: silent data corruption; take it out of service."
                )
    yield from _shared_wrong(found)
    if other := {cell.name for model in found for unit in model.units for cell in unit.other_kernels}:
        yield (
            "A kernel of another name or precision than the backend declares ran, which is no wrong result of a unit: "
            f"{some(sorted(other))}. attnbench report FILE says which."
        )
    for model in found:
        where, units = f" of {model.label}" if len(found) > 1 else "", count(len(model.judged), "unit")
        outliers, far = (
            sorted(
                ((unit, own) for unit in model.units if (own := which(unit))),
                key=lambda one: -max(map(abs, one[1].values())),
            )
            for which in (model.outlying, model.far_off)
        )
        if model.judged and not outliers and not far:
            yield f"None of {units}{where} stands out."
        for unit, own in outliers:
            yield f"{unit.name} stands out of {units}{where}: {_latencies(own)}."
        if far:
            yield (
                f"Far off among {units}{where}, but not apart from the others: "
                f"{some([f'{unit.name} ({_latencies(own)})' for unit, own in far])}. That is a fault, or the tail "
                "of this model's spread: look at clocks, power cap and temperature, and measure again."
            )
        if silent := [unit.name for unit in model.units if not unit.latencies]:
            yield f"Nothing could be measured on {some(silent)}."
    yield from _not_judged(found)


def _latencies(off: Mapping[Family, float]) -> str:
    return ", ".join(f"{signed(stats.expm1(by))} latency in {family}" for family, by in off.items())


def _shared_wrong(found: Sequence[Model]) -> Iterator[str]:
    """Yield sentences on wrong results that no other unit of the same model and setup computed right."""
    units = [(model, unit) for model in found for unit in model.units]
    shared = [(unit, cell) for model, unit in units for cell in unit.wrong if cell not in model.alone_wrong(unit)]
    cells: dict[str, set[str]] = {EVERY_UNIT: set(), NOT_KNOWN: set()}
    for key, places in grouped(shared, lambda pair: pair[1].key).items():
        name = places[0][1].name
        in_common = frozenset.intersection(*(unit.cards(cell) for unit, cell in places))
        if in_common or any(model.right(key) for model in found):
            cells[NOT_KNOWN].add(f"{name} on {some(dict.fromkeys(unit.where(cell) for unit, cell in places))}")
        else:
            cells[EVERY_UNIT].add(name)
    for sentence, names in cells.items():
        if names:
            yield sentence.format(some(sorted(names)))


def _not_judged(found: Sequence[Model]) -> Iterator[str]:
    """Yield sentences on the units that measured something and are not judged."""
    judged = _judged(found)
    apart = [{unit.id for unit in model.units if unit.latencies} - judged for model in found]
    number = len(set[str]().union(*apart))
    units = count(number, "unit")
    alike = f"no {LEAST} are of one model and were measured alike, on the same cells"
    if number and judged:
        yield f"Not judged: {units}, of which {alike}."
    elif number:
        yield f"No outlier can be named among {units}: {alike}."


def _machine(model: Model) -> Machine:
    judged = ((family, judgement) for family, judgement in model.judgements.items() if judgement)
    limits = (f"{family}: an outlier is beyond {_limits(judgement.threshold)}" for family, judgement in judged)
    return Machine(model.label, "; ".join((count(len(model.units), "unit"), *limits)))


def _limits(threshold: float) -> str:
    return f"{signed(stats.expm1(-threshold))} and {signed(stats.expm1(threshold))}"


def _table(number: int, model: Model) -> Table:
    facts = ("cells", "SM clock", "mem clock", "cap", "temp.", "limits", "ECC", "wrong", "other kernel")
    headings = ("unit", "UUID", *model.families, *facts)
    rows = [_row(model, unit) for unit in sorted(model.units, key=lambda unit: _rank(model, unit))]
    keep = [i for i, _ in enumerate(headings) if i == 0 or any(row[i] not in ("", "0") for row in rows)]
    columns = [Column(h, "left" if h in ("unit", "UUID", "limits") else "right", wrap=h == "limits") for h in headings]
    compared = sum(map(len, model.families.values()))
    note = f"Latency over the median of the model, the median over the cells of each family; {count(compared, 'cell')}."
    return Table(
        f"units-{number}",
        tuple(columns[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in rows),
        title=model.label,
        note=note if compared else "",
    )


def _rank(model: Model, unit: Unit) -> tuple[bool, bool, bool, float]:
    """Return a sort key of units: wrong ones first, then outliers, then the slowest."""
    off = [model.off(unit, family) or 0.0 for family in model.families]
    return not unit.wrong, bool(unit.latencies), not model.outlying(unit), -max(off, default=0.0)


def _row(model: Model, unit: Unit) -> tuple[Entry, ...]:
    outlying, far = model.outlying(unit), model.far_off(unit)
    figures: list[Entry] = []
    for family in model.families:
        off = model.off(unit, family)
        style: Style = "bad" if outlying.get(family, 0) > 0 else "warning" if family in {*outlying, *far} else ""
        figures.append("-" if off is None else Span(signed(stats.expm1(off)), style))
    facts = _readings(unit)
    compared = sum(map(len, model.families.values()))
    own = sum(key in unit.latencies for keys in model.families.values() for key in keys)
    wrong, other = (Span(str(len(cells)), "bad") if cells else "0" for cells in (unit.wrong, unit.other_kernels))
    return (
        unit.name,
        unit.uuid[:12],
        *figures,
        str(own) if own == compared else f"{own} of {compared}",
        megahertz(facts["clock_hz"]) if facts["clock_hz"] else "",
        megahertz(facts["memory_clock_hz"]) if facts["memory_clock_hz"] else "",
        f"{facts['power_limit_w']:g} W" if facts["power_limit_w"] else "",
        f"{facts['temperature_c']:.0f} C" if facts["temperature_c"] else "",
        ", ".join(facts["limits"]),
        Span(str(facts["ecc_errors"]), "bad") if facts["ecc_errors"] else "0",
        wrong,
        other,
    )


def _readings(unit: Unit) -> dict[str, Any]:
    """Return the readings beside a unit's figures that may explain why it differs."""
    return {
        "clock_hz": unit.reading("clock_held", "clock_sm"),
        "memory_clock_hz": unit.reading("clock_mem"),
        "power_limit_w": unit.runs[0].environment.power_limit_w,
        "temperature_c": unit.reading("temperature"),
        "limits": sorted({limit for record in unit.records for limit in record.limits}),
        "ecc_errors": sum(record.ecc_errors for record in unit.records),
    }


def _cautions(found: Sequence[Model]) -> Iterator[Caution]:
    first_of = {model.run.environment.device.name: model for model in reversed(found)}  # of most units
    for model in found:
        if names := [unit.name for unit in model.units if any(record.ecc_errors for record in unit.records)]:
            yield Caution(
                f"Uncorrected memory errors (ECC) on {some(names)}.",
                "Results of such a unit cannot be trusted.",
                "Reset it, test its memory, and replace it if they come again.",
            )
    for model in found:
        first = first_of[model.run.environment.device.name]
        if model is not first:
            what = "; ".join(differences(first.run, model.run)[:3])
            yield Caution(
                f"Not pooled with {count(len(first.units), 'unit')} of the same model: "
                f"{some(unit.name for unit in model.units)}: {what}.",
                "Figures of unlike setups are not comparable.",
                "Set them up alike, and measure them again.",
            )
    for model in found:
        if again := [f"{unit.files[0]} ({len(unit.runs)} files)" for unit in model.units if len(unit.runs) > 1]:
            yield Caution(
                f"Measured more than once, by the UUID: {some(again)}.",
                "The files of a unit are joined. If they were meant for two GPUs, one GPU is missing: measure it.",
            )
        unknown = [unit.name for unit in model.units if not unit.uuid]
        if len(unknown) > 1:
            yield Caution(
                f"Without a UUID, so that two of them may be one unit: {some(unknown)}.",
                "Each file counts as a unit of its own.",
            )
        compared = {key for keys in model.families.values() for key in keys}
        if short := [unit.name for unit in model.units if unit.latencies and not compared <= {*unit.latencies}]:
            yield Caution(f"Some cells have no figure on {some(short)}.", todo="attnbench report FILE says why.")


def _facts(found: Sequence[Model]) -> Iterator[Caution]:
    for model in found:
        for family, judged in model.judgements.items():
            if judged:
                far = "" if judged.far == judged.threshold else f"a unit outside {_limits(judged.far)} is far off and "
                yield Caution(
                    f"{model.label}, {family}: units differ by {percent(judged.deviation)} (standard deviation, "
                    f"{percent(judged.own_share)} from these units, the rest from the table: {model.spread}).",
                    f"Among {count(len(model.units), 'unit')}, {far}a unit outside {_limits(judged.threshold)} stands "
                    f"out; a unit slower by {percent(stats.expm1(judged.found))} is found in 95 % of such clusters.",
                )


def _note(found: Sequence[Model]) -> str:
    judged = any(any(model.judgements.values()) for model in found)
    chance = (
        f"Of reports on units without a fault at most {percent(FALSE_ALARM)} name an outlier, also where a few units "
        f"always differ more than the others (Student's t, {TAIL} degrees of freedom). Where units differ normally, at "
        f"most {percent(FALSE_ALARM)} say that one is far off ({count(found[0].tests, 'figure')}, Bonferroni). "
    )
    least = f"A model needs {LEAST} units, measured alike. docs/cluster.md"
    return f"{chance if judged else ''}{with_addresses(least)}"


def _figures(found: Sequence[Model]) -> Iterator[Section]:
    plots = [_plot(model, family) for model in found for family, judged in model.judgements.items() if judged]
    if plots:
        yield Section("figures", "Units against the median of their model", tuple(plots))


def _plot(model: Model, family: str) -> Plot:
    """Return the units in the order of their names, with the thresholds."""
    judged = model.judgements[family]
    assert judged is not None
    units = [unit for unit in model.units if unit in model.figures[family]]
    offs = [model.off(unit, family) or 0.0 for unit in units]
    reach = 1.1 * max(judged.threshold, *map(abs, offs))

    def at(off: float) -> float:
        return 0.5 + off / (2 * reach)

    dots = tuple(
        Dot(
            (i + 0.5) / len(units),
            at(off),
            group=int(abs(off) > judged.far),
            tip=f"{unit.name}: {signed(stats.expm1(off))}",
        )
        for i, (unit, off) in enumerate(zip(units, offs, strict=True))
    )
    ends = {judged.far, judged.threshold} if judged.threshold > 1.3 * judged.far else {judged.threshold}
    limits = sorted({0.0, *ends, *(-end for end in ends)})
    return Plot(
        f"{model.label}, {family}: latency against the median, with the limits of far off and outlier",
        dots,
        levels=tuple((0.0, 1.0, at(limit)) for limit in limits),
        x_labels=((0.0, units[0].name), (1.0, units[-1].name)),
        y_labels=tuple((at(limit), signed(stats.expm1(limit))) for limit in limits),
    )


def _data(model: Model) -> Iterator[dict[str, Any]]:
    for unit in model.units:
        off = {family: model.off(unit, family) for family in model.families}
        yield {
            "unit": unit.name,
            "uuid": unit.uuid,
            "model": model.label,
            **{family.replace(" ", "_"): None if by is None else stats.expm1(by) for family, by in off.items()},
            "outlier": ", ".join(model.outlying(unit)),
            "far_off": ", ".join(model.far_off(unit)),
            "cells": len(unit.latencies),
            **_readings(unit),
            "wrong": len(unit.wrong),
            "wrong_alone": len(model.alone_wrong(unit)),
            "other_kernels": len(unit.other_kernels),
        }


def _model_data(model: Model) -> dict[str, Any]:
    return {
        "model": model.label,
        "units": len(model.units),
        "families": {
            family: {
                "cells": len(model.families[family]),
                "deviation": judged and judged.deviation,
                "far": judged and stats.expm1(judged.far),
                "threshold": judged and stats.expm1(judged.threshold),
                "found": judged and stats.expm1(judged.found),
            }
            for family, judged in model.judgements.items()
        },
    }
