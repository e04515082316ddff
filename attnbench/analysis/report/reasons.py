"""Why cells have no figure: the reasons of all cells, with equal ones merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attnbench.core.groups import grouped
from attnbench.core.text import count, merged, one_line, template
from attnbench.render.document import Reason
from attnbench.results import case_names
from attnbench.results.cells import Cell

NOT_INSTALLED = "is not installed"  # in the reasons of backends whose library is not here
FEW = 3  # from so many libraries that are not installed on, they share a line
MOST = 20  # reasons of cells of a backend with one ending that are shown one by one
ABSENT = "not installed; `attnbench backends` says how to install them"
OTHERS = "other reasons, which attnbench report --cell NAME shows"
Alike = tuple[str, ...]  # device, backend, status and reason


def reasons(cells: Sequence[Cell]) -> list[Reason]:
    """Return one reason for each ending, text (numbers aside) and set of cases; backends alike in these share one.

    Where several libraries are not installed, one line names them and the command that tells more.
    """
    every = grouped(cells, lambda cell: (cell.device, cell.backend))
    without = [cell for cell in cells if cell.status != "ok"]
    groups = _most(grouped(without, lambda cell: (cell.device, cell.backend, cell.status, template(_reason(cell)))))
    several_devices = len({device for device, _ in every}) > 1
    absent = {text for *_, text in groups if NOT_INSTALLED in text}
    lines: dict[tuple[str, ...], list[list[Cell]]] = {}
    for (device, backend, _, alike_text), group in groups.items():
        of_backend = every[device, backend]
        place = case_names.where([c.case for c in group], [c.case for c in of_backend])
        scope = "all" if len(group) == len(of_backend) else count(len(group), "case")
        if len(absent) >= FEW and alike_text in absent:
            alike_text = ABSENT
        lines.setdefault((case_names.ENDINGS[group[0].status], alike_text, device, scope, place), []).append(group)
    found = []
    order = list(case_names.ENDINGS.values())
    ranked = sorted(
        lines.items(), key=lambda line: (order.index(line[0][0]), case_names.backend_rank(line[1][0][0].backend))
    )
    for (word, text, device, scope, place), alike in ranked:
        members = [c for group in alike for c in group]
        who = ", ".join(sorted({c.backend for c in members}, key=case_names.backend_rank))
        each = " each" if len(alike) > 1 and scope != "all" else ""
        detail = f"{who} ({scope}{each}{f': {place}' if place else ''})"
        if len(members) == 1:
            detail = members[0].name
        on = f" on {device}" if several_devices else ""
        if text not in (ABSENT, OTHERS):
            text = merged([*map(_reason, members)])
        found.append(Reason(word, detail + on, text))
    return found


def _most(groups: Mapping[Alike, list[Cell]]) -> dict[Alike, list[Cell]]:
    """Return groups of cells; of the groups of one backend with one ending, all after the first MOST are joined."""
    found: dict[Alike, list[Cell]] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    for (*ended, text), group in groups.items():
        seen[alike := (*ended,)] += 1
        found.setdefault((*alike, text if seen[alike] <= MOST else OTHERS), []).extend(group)
    return found


def _reason(cell: Cell) -> str:
    return one_line(cell.reason or "no reason given")
