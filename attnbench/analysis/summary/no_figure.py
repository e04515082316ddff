"""Below the tables: why cells have no figure, their reasons brought together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.results import case_names
from attnbench.results.cells import Cell

NOTHING = "Nothing was measured: there are no records."


@dataclass(frozen=True)
class Note:
    """Why some cells ended without a figure: the word that stands in the table, which cells, the reason."""

    word: str
    who: str
    reason: str


def notes(cells: Sequence[Cell]) -> list[Note]:
    """One line per ending, reason (numbers aside) and set of cells; backends that share all three share the line."""
    groups: dict[tuple[str, str, str, str], list[Cell]] = {}
    every: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        every.setdefault((cell.device, cell.backend), []).append(cell)
        if cell.status != "ok":
            reason = case_names.one_line(cell.reason or "no reason given")
            groups.setdefault((cell.device, cell.backend, cell.status, case_names.template(reason)), []).append(cell)
    several_devices = len({device for device, _ in every}) > 1
    lines: dict[tuple[str, ...], list[list[Cell]]] = {}
    for (device, backend, _, template), group in groups.items():
        of_backend = every[device, backend]
        place = case_names.where(group, of_backend)
        scope = "all" if len(group) == len(of_backend) else case_names.count(len(group), "case")
        lines.setdefault((case_names.ENDINGS[group[0].status], template, device, scope, place), []).append(group)
    found = []
    order = list(case_names.ENDINGS.values())
    ranked = sorted(
        lines.items(), key=lambda line: (order.index(line[0][0]), case_names.backend_rank(line[1][0][0].backend))
    )
    for (word, _, device, scope, place), alike in ranked:
        members = [c for group in alike for c in group]
        who = ", ".join(sorted({c.backend for c in members}, key=case_names.backend_rank))
        each = " each" if len(alike) > 1 and scope != "all" else ""
        detail = f"{who} ({scope}{each}{f': {place}' if place else ''})"
        if len(members) == 1:
            detail = case_names.name(members[0])
        on = f" on {device}" if several_devices else ""
        reasons = [case_names.one_line(c.reason or "no reason given") for c in members]
        found.append(Note(word, detail + on, case_names.merged(reasons)))
    return found
