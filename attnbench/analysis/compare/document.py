"""A comparison as a document: the answer, machines, tables and cautions, and the same data for other programs.

CSV has a row for each cell and machine; JSON has the same rows and all derived figures. Seconds, watts and fractions
are not scaled; tflops is TFLOP/s, gbps GB/s. `ratio` is to the reference in the same cell, measured by like kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnbench.analysis.compare.break_even import BreakEven, break_even, device_price
from attnbench.analysis.compare.break_even_tables import charts as break_even_charts
from attnbench.analysis.compare.break_even_tables import tables as break_even_tables
from attnbench.analysis.compare.cautions import cautions, facts
from attnbench.analysis.compare.common_cells import NOT_PLANNED
from attnbench.analysis.compare.figures import Figures
from attnbench.analysis.compare.findings import Comparison
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.published import published_blocks, published_rows
from attnbench.analysis.compare.serving_document import answer
from attnbench.analysis.compare.serving_document import charts as serving_charts
from attnbench.analysis.compare.serving_document import data as serving_data
from attnbench.analysis.compare.serving_document import tables as serving_tables
from attnbench.analysis.compare.sheet import sheet
from attnbench.analysis.compare.speed_ratio import Ratio
from attnbench.analysis.compare.tables import is_brief, tables
from attnbench.core.documents import with_addresses
from attnbench.core.formats import size
from attnbench.core.text import count, one_line, some
from attnbench.render import document as report
from attnbench.render.document import Block, Caution, Document, Span
from attnbench.results.export_rows import MadeData, MadeRows, case_columns
from attnbench.results.run_setup import setup_texts

MOST_CAUTIONS = 3  # shown where a comparison is brief
OF_MACHINES = ("machines", "money", "workload", "groups", "rates")  # tables over all cases together
MOST_FILES = 4  # named in the description of a machine, and names of own code
MORE = with_addresses(
    "Doubts about the figures of one run: attnbench report FILE. Definitions of the figures: docs/compare.md."
)


def document(c: Comparison, every: bool = False) -> Document:
    """Return the document of a comparison. `every`: with all cases, and all cells that all machines have."""
    doubted, known = cautions(c), facts(c)
    rows = MadeRows(partial(_cell_rows, c))
    warnings = [one_line(str(caution)) for caution in doubted]
    brief, notes = is_brief(c, every), [MORE]
    if brief:
        more = f"{count(len(doubted) - MOST_CAUTIONS, 'more caution')}, " if len(doubted) > MOST_CAUTIONS else ""
        notes.insert(0, f"attnbench compare --all shows {more}what to do about them, and each case and cell.")
        doubted, known = tuple(Caution(one.what) for one in doubted[:MOST_CAUTIONS]), ()
    if c.own_code:
        notes.insert(0, f"In no ranking and no total, as it is own code: {some(sorted(c.own_code), MOST_FILES)}.")
    return Document(
        command="compare",
        title=f"{' and '.join(c.labels)}, compared",
        answer=tuple(answer(c)),
        machines=tuple(report.Machine(machine.label, _description(machine, brief)) for machine in c.machines),
        blocks=_blocks(c, every),
        charts=(*serving_charts(c), *break_even_charts(c)) if every else (),
        sheet=sheet(c, answer(c), doubted) if every else None,
        cautions=doubted,
        facts=known,
        notes=tuple((Span(note, "quiet"),) for note in notes),
        data=MadeData(partial(_data, c, warnings, rows)),
        rows=rows,
    )


def _blocks(c: Comparison, every: bool) -> tuple[Block, ...]:
    """Return the tables; the break-even and the published figures follow the figures of machines, before the cases."""
    found = (*serving_tables(c), *tables(c, every))
    first = next((i for i, table in enumerate(found) if table.name not in OF_MACHINES), len(found))
    return (*found[:first], *break_even_tables(c, not every), *published_blocks(c, every), *found[first:])


def _description(machine: Machine, brief: bool = False) -> str:
    device, texts = machine.environment.device, setup_texts(machine.run)
    rounds = max((len(logs) for logs in machine.log_rounds.values()), default=0)
    parts = [
        device.name,
        size(device.memory),
        *(texts[name] for name in ("power_limit_w", "device threads", "device instructions", "variables")),
        *(texts[name] for name in ("torch", "driver")),
        count(len(machine.log_rounds), "cell"),
        count(rounds, "round"),
        some([file.path.name for file in machine.files], MOST_FILES) if len(machine.files) == 1 or not brief else "",
        count(len(machine.files), "file") if len(machine.files) > 1 and brief else "",
        count(len(machine.cards), "card") if len(machine.cards) > 1 else "",
    ]
    return ", ".join(filter(None, parts))


def _cell_rows(c: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a mapping for each machine and each cell that any machine has, all with the same keys."""
    for key in dict.fromkeys(key for machine in c.machines for key in machine.cells):
        case, backend = key
        for machine in c.machines:
            cell = machine.cells.get(key)
            measured = cell if key in machine.log_rounds else None
            exact = measured if measured and measured.is_exact else None
            yield {
                "machine": machine.label,
                "backend": backend,
                **case_columns(case),
                "status": cell.status if cell else NOT_PLANNED,
                "reason": cell and cell.reason,
                "fastest": machine.fastest.get(case) == key,
                "rounds": len(machine.log_rounds.get(key, ())),
                "latency": machine.latency(key) if measured else None,
                "tflops": machine.tflops(key) if measured else None,
                "gbps": machine.gbps(key) if measured else None,
                "utilization": machine.utilization(key) if measured else None,
                "sustained_power": measured and measured.value("sustained_power"),
                "sustained_tflops": exact and exact.value("sustained_tflops"),
                "sustained_tflops_per_watt": exact and exact.value("tflops_per_watt"),
                "memory_peak": measured and measured.value("memory_peak"),
                **_ratio(c.same_ratio(machine, key) if measured else None),
            }


def _data(c: Comparison, warnings: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the whole comparison for JSON; `cells` are the rows from `_cell_rows`."""
    return {
        "answer": answer(c),
        "reference": c.reference.label,
        "machines": [_machine(c, machine) for machine in c.machines],
        "figures": [_figures(c, figures) for figures in c.figures],
        "workload": _workload(c),
        "serving": serving_data(c),
        "untried": [case.key for case in c.untried],
        "missing": c.missing,
        "longest": [{"cases": of.cases, "backend": of.backend, "machines": [*of.fits.values()]} for of in c.longest],
        "break_even": [_break_even(of) for of in break_even(c)],
        "published": published_rows(c),
        "left_out": {path.name: why for path, why in c.left_out.items()},
        "machines_left_out": c.machines_left_out,
        "warnings": warnings,
        "cells": cells,
    }


def _machine(c: Comparison, machine: Machine) -> dict[str, Any]:
    """Return the device, setup and main figures of a machine for JSON."""
    environment, price = machine.environment, c.prices.get(machine.label)
    return {
        "name": machine.label,
        "device": environment.device.name,
        "power_limit_w": environment.power_limit_w,
        "torch": environment.torch,
        "driver": environment.driver,
        "files": [file.path.name for file in machine.files],
        "price": price and str(price),
        "cost": (offer := c.offer(machine.label)) and offer.cost,  # of an hour, or of the device
        **_machine_figures(c, c.main, machine.label),
    }


def _figures(c: Comparison, figures: Figures) -> dict[str, Any]:
    alone = replace(figures, workload=None)
    return {
        "sustained": figures.sustained,
        "shared_backends": figures.shared,
        "cases": len(figures.cases),
        "machines": [{"name": label, **_machine_figures(c, figures, label)} for label in c.labels],
        "groups": [
            {"name": name, "cases": len(of.cases), "ratios": _ratios({label: of.ratio(label) for label in c.labels})}
            for name, of in (*alone.kinds.items(), ("all", alone))
        ],
    }


def _machine_figures(c: Comparison, figures: Figures, label: str) -> dict[str, Any]:
    return {
        "tflops": figures.tflops(label),
        "gbps": figures.gbps(label),
        "utilization": figures.utilization(label),
        "watts": figures.watts(label),
        "tflops_per_watt": figures.tflops_per_watt(label),
        "bought": c.bought(figures, label),
        "bought_unit": c.unit(figures) if c.offer(label) else None,
        "bought_of_decode": c.bought_of_decode(figures, label),
        "tokens_a_second": c.tokens_a_second(figures, label),
        "million_tokens": c.million_tokens(figures, label),
        **_ratio(figures.ratio(label)),
        **_ratio(figures.per_watt(label), "per_watt_ratio"),
        **_ratio(c.for_the_money(figures, label), "money_ratio"),
        **_ratio(c.worth_below(figures, label), "worth_below"),
    }


def _break_even(of: BreakEven) -> dict[str, Any]:
    """Return a break-even for JSON; `price` is the break-even price at the reference's given price."""
    price = of.at(device_price(of.home)) if of.home else None
    return {
        "machine": of.machine,
        "work": of.kind,
        **_ratio(of.ratio),
        **_ratio(price, "price"),
        "given": of.given,
        "costs": of.verdict,
    }


def _workload(c: Comparison) -> dict[str, Any] | None:
    found = c.workload
    if found is None:
        return None
    return {
        "name": found.name,
        "weights": found.weights,
        "layers": found.layers,
        "devices": found.devices,
        "parts": [
            {
                "name": part.name,
                "share": part.share,
                "cases": [case.key for case in part.cases],
                "left_out": part.left_out,
                "interpolation": part.interpolation,
                "stands_in": part.stands_in,
                "machines": _ratios({label: found.ratio(machine, part) for label, machine in c.main.machines.items()}),
            }
            for part in found.parts
        ],
    }


def _ratios(ratios: Mapping[str, Ratio | None]) -> dict[str, dict[str, Any]]:
    return {label: _ratio(ratio) for label, ratio in ratios.items()}


def _ratio(ratio: Ratio | None, name: str = "ratio") -> dict[str, Any]:
    found = {
        name: ratio.value if ratio else None,
        f"{name}_low": ratio.low if ratio else None,
        f"{name}_high": ratio.high if ratio else None,
    }
    return {**found, "interval_from": " and ".join(ratio.sources) if ratio else None} if name == "ratio" else found
