"""Backends over time: each against its version before, on the same GPU, over the cases measured with both versions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attnbench.analysis.compare.answer import ratio_text
from attnbench.analysis.compare.machines import File, Machine, machine_of, version_of
from attnbench.analysis.compare.speed_ratio import Ratio, equal_weights, speed_ratio
from attnbench.analysis.site.findings import Findings
from attnbench.analysis.site.tables import axis_of, file_links, link, ratio_bar
from attnbench.analysis.site.work import work_of
from attnbench.core.groups import grouped
from attnbench.core.text import count
from attnbench.render.document import Column, Document, Entry, Table
from attnbench.results import case_names
from attnbench.results.cells import Key

MOST_LETTERS = 40  # for a version in a table


@dataclass(frozen=True)
class Change:
    """A backend on a GPU now and before, with the speed ratio (above 1: faster now) over the cells that both have."""

    machine: Machine
    before: Machine
    backend: str
    keys: tuple[Key, ...]
    ratio: Ratio


def changes(site: Findings) -> list[Change]:
    """Return the changes of all backends on each GPU that have two versions measured by the newest method."""
    found = []
    for machine in site.machines:
        before = _before(machine)
        if not before:
            continue
        both = (key for key in machine.log_rounds if key in before.log_rounds and work_of(key[0]))
        both = (key for key in both if key[1] not in machine.own_code)
        same_method = (key for key in both if before.versions[key][0] == machine.versions[key][0])
        for backend, keys in sorted(grouped(same_method, lambda key: key[1]).items(), key=_rank):
            weights = equal_weights(keys)
            ratio = speed_ratio(before, weights, machine)
            found.append(Change(machine, before, backend, tuple(keys), ratio))
    return found


def _rank(of_backend: tuple[str, list[Key]]) -> tuple[int, str]:
    return case_names.backend_rank(of_backend[0])


def _before(machine: Machine) -> Machine | None:
    """Return the machine with each cell by the version before its current one; None without such cells."""
    files = []
    for file in machine.files:
        run = file.run
        old = tuple(
            record
            for record in run.records
            if (now := machine.versions.get((record.case, record.backend)))
            and now[0] == run.method
            and now != version_of(run, record)
        )
        if old and not run.search:
            files.append(File(file.path, replace(run, records=old, plan=())))
    return machine_of(machine.label, files) if files else None


def table(site: Findings, found: list[Change]) -> Table:
    """Return a table of the changes, as bars with intervals."""
    low, high = axis_of([change.ratio for change in found])
    rows: list[tuple[Entry, ...]] = []
    for change in found:
        text = ratio_text(change.ratio)
        own = site.short(change.machine.label)
        rows.append(
            (
                (link(change.backend, site.backend_address(change.backend)),),
                own,
                text,
                ratio_bar(change.ratio, low, high, f"{change.backend} on {own}: {text} as fast as before"),
                str(len(change.keys)),
                _version(change.before, change.keys),
                _version(change.machine, change.keys),
                file_links(site, (of.cells[key] for of in (change.before, change.machine) for key in change.keys), 0),
            )
        )
    columns = (
        *(Column("backend"), Column("GPU", wrap=False), Column("speed / before"), Column(f"{low:.2f}x to {high:.2f}x")),
        *(Column("cases", "right", optional=1), Column("before", optional=2), Column("now", optional=2)),
        Column("run files", optional=1),
    )
    note = "How many times as fast each backend's current version is as the version before, over the cases measured "
    note += (
        "with both, by the same method: geometric means in bursts. Bars begin at 1x, as fast as before; thin lines: "
    )
    note += "95 % interval, which includes the spread between cards."
    return Table("versions", columns, tuple(rows), "Each backend against the version before", note)


def _version(machine: Machine, keys: tuple[Key, ...]) -> str:
    """Return the most frequent version of the cells, cut to MOST_LETTERS, and the number of other versions."""
    said = [machine.versions[key][1] for key in keys]
    most = max(dict.fromkeys(said), key=said.count)
    others = len({*said}) - 1
    short = most if len(most) <= MOST_LETTERS else f"{most[: MOST_LETTERS - 3]}..."
    return short + (f" and {count(others, 'other')}" if others else "")


def sentence(found: list[Change]) -> str:
    """Return the numbers of backends that became faster or slower beyond the interval, as a sentence."""
    faster = sum(change.ratio.low is not None and change.ratio.low > 1 for change in found)
    slower = sum(change.ratio.high is not None and change.ratio.high < 1 for change in found)
    of = f"Of {count(len(found), 'backend')} on a GPU with an earlier version"
    return f"{of}, {faster} became faster and {slower} slower beyond the interval."


def cards(shown: Document) -> Table:
    """Return a table of a history's cards with their runs, from the machines of its document."""
    rows = tuple((machine.label, machine.description) for machine in shown.machines)
    return Table("cards", (Column("card"), Column("runs")), rows, f"{count(len(rows), 'card')}, by unit")
