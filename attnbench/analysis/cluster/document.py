"""A cluster as a document: which units are wrong, which stand out, and every unit with what is known of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from attnbench.analysis.cluster.outliers import FALSE_ALARM, LEAST
from attnbench.analysis.cluster.units import Model, Unit, models
from attnbench.analysis.gate.findings import signed
from attnbench.core.errors import EXIT_DONE, EXIT_INCONCLUSIVE, EXIT_NOTHING_MEASURED, EXIT_WRONG_RESULT
from attnbench.core.formats import megahertz, percent
from attnbench.core.record import Run
from attnbench.core.text import count, some
from attnbench.report.document import (
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


def document(files: Sequence[tuple[str, Run]]) -> Document:
    """Return the document of a cluster from runs, each with the name of its file."""
    found = models(files)
    rows = [row for model in found for row in _data(model)]
    units = sum(len(model.units) for model in found)
    return Document(
        command="cluster",
        title=f"Cluster of {count(units, 'unit')}",
        answer=(*doubt([run for _, run in files]), *_answer(found)),
        machines=tuple(_machine(model) for model in found),
        blocks=tuple(_table(number, model) for number, model in enumerate(found, start=1)),
        cautions=tuple(_cautions(found)),
        facts=tuple(_facts(found)),
        notes=((Span(_note(found), "quiet"),),),
        verdict=_verdict(found, f"of {count(units, 'unit')}, {count(len(found), 'model')}"),
        appendix=tuple(_figures(found)),
        data={"units": rows, "models": [_model_data(model) for model in found]},
        rows=rows,
        columns=tuple(dict.fromkeys(key for row in rows for key in row)),
    )


def planned(devices: Sequence[tuple[str, str, str, str]], words: Sequence[str]) -> Document:
    """Return the document of a dry run, from the file, node, device and attnbench of each device."""
    headings = ("file", "node", "device", "attnbench")
    return Document(
        command="cluster",
        title="What would be measured",
        answer=(f"{count(len(devices), 'device')}, each by: attnbench run {' '.join(words)}",),
        blocks=(Table("devices", tuple(map(Column, headings)), tuple(devices)),),
        data=[dict(zip(headings, device, strict=True)) for device in devices],
        rows=[dict(zip(headings, device, strict=True)) for device in devices],
        columns=headings,
    )


def _verdict(found: Sequence[Model], of: str) -> Verdict:
    """Return the verdict with how many units it is of; `of` says how many there are."""
    units = [(model, unit) for model in found for unit in model.units]
    wrong = sum(bool(unit.wrong) for _, unit in units)
    silent = sum(not unit.latencies for _, unit in units)
    outliers = sum(_is_slow(model, unit) for model, unit in units)
    bad = [f"{word}: {number}" for word, number in (("WRONG RESULTS", wrong), ("OUTLIERS", outliers)) if number]
    bad += [f"MEASURED NOTHING: {silent}"] if silent else []
    if bad:
        return Verdict(f"{', '.join(bad)} {of}", "bad")
    if exit_code(found) == EXIT_INCONCLUSIVE:
        return Verdict(f"NOT JUDGED: too few units measured alike, {of}", "warning")
    judged = sum(len(model.judged) for model in found)
    rest = f", {len(units) - judged} of them not judged" if judged < len(units) else ""
    return Verdict(f"NO UNIT STANDS OUT: none {of}{rest}", "good")


def exit_code(found: Sequence[Model]) -> int:
    """Return the exit code: wrong results first, then a unit that is slower or measured nothing."""
    if any(unit.wrong for model in found for unit in model.units):
        return EXIT_WRONG_RESULT
    if any(_failed(model, unit) for model in found for unit in model.units):
        return EXIT_NOTHING_MEASURED
    return EXIT_DONE if any(any(model.judgements.values()) for model in found) else EXIT_INCONCLUSIVE


def _failed(model: Model, unit: Unit) -> bool:
    return not unit.latencies or _is_slow(model, unit)


def _is_slow(model: Model, unit: Unit) -> bool:
    return any(off > 0 for off in model.outlying(unit).values())


def _answer(found: Sequence[Model]) -> Iterator[str]:
    for model in found:
        for unit in model.units:
            if alone := model.alone_wrong(unit):
                others = count(len(model.units) - 1, "other unit")
                yield (
                    f"{unit.name} computed wrong results that {others} of its model computed right, in "
                    f"{some([cell.name for cell in alone])}: silent data corruption; take it out of service."
                )
    right = {cell.key for model in found for unit in model.units for cell in unit.cells if cell.status == "ok"}
    shared = [
        cell for model in found for unit in model.units for cell in unit.wrong if cell not in model.alone_wrong(unit)
    ]
    if everywhere := {cell.name for cell in shared if cell.key not in right}:
        yield f"Wrong on every unit that measured it, so rather the kernel: {some(sorted(everywhere))}."
    if somewhere := {cell.name for cell in shared if cell.key in right}:
        yield (
            "Wrong on some units and right on others, whose setup differs, so the unit, the software or the kernel: "
            f"{some(sorted(somewhere))}. Measure them with one setup."
        )
    for model in found:
        where, units = f" of {model.label}" if len(found) > 1 else "", count(len(model.judged), "unit")
        off = [(unit, model.outlying(unit)) for unit in model.units]
        outliers = sorted(((unit, own) for unit, own in off if own), key=lambda one: -max(map(abs, one[1].values())))
        if model.judged and not outliers:
            yield f"None of {units}{where} stands out."
        for unit, own in outliers:
            families = ", ".join(f"{signed(math.expm1(by))} latency in {family}" for family, by in own.items())
            yield f"{unit.name} stands out of {units}{where}: {families}."
        if silent := [unit.name for unit in model.units if not unit.latencies]:
            yield f"Nothing could be measured on {some(silent)}."
    yield from _not_judged(found)


def _not_judged(found: Sequence[Model]) -> Iterator[str]:
    """Yield what is said of the units that measured something and are not judged."""
    apart = [[unit.name for unit in model.units if unit.latencies and unit not in model.judged] for model in found]
    groups = [names for names in apart if names]
    if not groups:
        return
    units = count(sum(map(len, groups)), "unit")
    if any(model.judged for model in found):
        yield f"Not judged: {units}, of which no {LEAST} are of one model and were measured alike, on the same cells."
    elif len(groups) > 1 or len(groups[0]) >= LEAST:
        yield (
            f"These {units} are no cluster, and no outlier can be named: no {LEAST} of them are of one model and were "
            "measured alike, on the same cells."
        )
    else:
        what = "of two that differ nobody knows which is off" if len(groups[0]) == 2 else "it stands alone"
        yield f"No outlier can be named among {units}: {what}."


def _machine(model: Model) -> Machine:
    judged = ((family, judgement) for family, judgement in model.judgements.items() if judgement)
    limits = (f"{family}: an outlier is beyond {_limits(judgement.threshold)}" for family, judgement in judged)
    return Machine(model.label, "; ".join((count(len(model.units), "unit"), *limits)))


def _limits(threshold: float) -> str:
    return f"{signed(math.expm1(-threshold))} and {signed(math.expm1(threshold))}"


def _table(number: int, model: Model) -> Table:
    headings = (
        "unit",
        "UUID",
        *model.families,
        "cells",
        "SM clock",
        "mem clock",
        "cap",
        "temp.",
        "limits",
        "ECC",
        "wrong",
    )
    rows = [_row(model, unit) for unit in sorted(model.units, key=lambda unit: _rank(model, unit))]
    keep = [i for i, _ in enumerate(headings) if i == 0 or any(row[i] not in ("", "0") for row in rows)]
    columns = [Column(h, "left" if h in ("unit", "UUID", "limits") else "right", wrap=h == "limits") for h in headings]
    compared = sum(map(len, model.families.values()))
    note = f"Latency over the median of the model, the median over the {count(compared, 'cell')} of a family."
    if len(model.families) > 1:
        note = f"Latency over the median of the model, the median over the cells of each family; {compared} cells."
    return Table(
        f"units-{number}",
        tuple(columns[i] for i in keep),
        tuple(tuple(row[i] for i in keep) for row in rows),
        title=model.label,
        note=note if compared else "",
    )


def _rank(model: Model, unit: Unit) -> tuple[bool, bool, bool, float]:
    """Return what sorts units: those that are wrong, then the outliers, then the slowest first."""
    off = [model.off(unit, family) or 0.0 for family in model.families]
    return not unit.wrong, bool(unit.latencies), not model.outlying(unit), -max(off, default=0.0)


def _row(model: Model, unit: Unit) -> tuple[Entry, ...]:
    outlying = model.outlying(unit)
    figures: list[Entry] = []
    for family in model.families:
        off = model.off(unit, family)
        style: Style = "" if family not in outlying else "bad" if outlying[family] > 0 else "warning"
        figures.append("-" if off is None else Span(signed(math.expm1(off)), style))
    facts = _readings(unit)
    compared = sum(map(len, model.families.values()))
    own = sum(key in unit.latencies for keys in model.families.values() for key in keys)
    wrong: Entry = Span(str(len(unit.wrong)), "bad") if unit.wrong else "0"
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
    )


def _readings(unit: Unit) -> dict[str, Any]:
    """Return what stands beside a unit's figures: that may be why it differs."""
    return {
        "clock_hz": unit.reading("clock_held", "clock_sm"),
        "memory_clock_hz": unit.reading("clock_mem"),
        "power_limit_w": unit.runs[0].environment.power_limit_w,
        "temperature_c": unit.reading("temperature"),
        "limits": sorted({limit for record in unit.records for limit in record.limits}),
        "ecc_errors": sum(record.ecc_errors for record in unit.records),
    }


def _cautions(found: Sequence[Model]) -> Iterator[Caution]:
    for model in found:
        if ecc := [unit.name for unit in model.units if any(record.ecc_errors for record in unit.records)]:
            yield Caution(
                f"Uncorrected memory errors (ECC) on {some(ecc)}.",
                "What such a unit computes cannot be trusted.",
                "Reset it, test its memory, and replace it if they come again.",
            )
    first = {model.run.environment.device.name: model for model in reversed(found)}
    for model in found:
        most = first[model.run.environment.device.name]
        if model is not most:
            names = some([unit.name for unit in model.units])
            what = "; ".join(differences(most.run, model.run)[:3])
            yield Caution(
                f"Not pooled with {count(len(most.units), 'unit')} of the same model: {names}: {what}.",
                "Figures of unlike setups are not comparable.",
                "Set them up alike, and measure them again.",
            )
    for model in found:
        if again := [f"{unit.name} ({len(unit.runs)} files)" for unit in model.units if len(unit.runs) > 1]:
            yield Caution(
                f"Measured more than once, by the UUID: {some(again)}.",
                "The files of a unit are joined; where each file was to be of another GPU, one was left out.",
            )
    for model in found:
        compared = {key for keys in model.families.values() for key in keys}
        if short := [unit.name for unit in model.units if unit.latencies and not compared <= {*unit.latencies}]:
            yield Caution(f"Some cells have no figure on {some(short)}.", todo="attnbench report FILE says why.")


def _facts(found: Sequence[Model]) -> Iterator[Caution]:
    for model in found:
        for family, judged in model.judgements.items():
            if judged:
                units = count(len(model.units), "unit")
                yield Caution(
                    f"{model.label}, {family}: units differ by {percent(judged.deviation)} (standard deviation, "
                    f"{percent(judged.own_share)} from these units, the rest from the table: {model.spread}).",
                    f"With {units} one stands out beyond {_limits(judged.threshold)}; one that is "
                    f"slower by {percent(math.expm1(judged.found))} is found 19 times of 20.",
                )


def _note(found: Sequence[Model]) -> str:
    judged = any(any(model.judgements.values()) for model in found)
    chance = (
        f"Of reports on units that are all alike {percent(FALSE_ALARM)} name any outlier "
        f"({count(found[0].tests, 'figure')}, Bonferroni). "
    )
    return f"{chance if judged else ''}A model needs {LEAST} units, measured alike. docs/cluster.md"


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
            group=int(abs(off) > judged.threshold),
            tip=f"{unit.name}: {signed(math.expm1(off))}",
        )
        for i, (unit, off) in enumerate(zip(units, offs, strict=True))
    )
    limits = (-judged.threshold, 0.0, judged.threshold)
    return Plot(
        f"{model.label}, {family}: latency against the median, and the thresholds",
        dots,
        levels=tuple((0.0, 1.0, at(limit)) for limit in limits),
        x_labels=((0.0, units[0].name), (1.0, units[-1].name)),
        y_labels=tuple((at(limit), signed(math.expm1(limit))) for limit in limits),
    )


def _data(model: Model) -> Iterator[dict[str, Any]]:
    for unit in model.units:
        off = {family: model.off(unit, family) for family in model.families}
        yield {
            "unit": unit.name,
            "uuid": unit.uuid,
            "model": model.label,
            **{family.replace(" ", "_"): None if by is None else math.expm1(by) for family, by in off.items()},
            "outlier": ", ".join(model.outlying(unit)),
            "cells": len(unit.latencies),
            **_readings(unit),
            "wrong": len(unit.wrong),
            "wrong_alone": len(model.alone_wrong(unit)),
        }


def _model_data(model: Model) -> dict[str, Any]:
    return {
        "model": model.label,
        "units": len(model.units),
        "families": {
            family: {
                "cells": len(model.families[family]),
                "deviation": judged and judged.deviation,
                "threshold": judged and math.expm1(judged.threshold),
                "found": judged and math.expm1(judged.found),
            }
            for family, judged in model.judgements.items()
        },
    }
