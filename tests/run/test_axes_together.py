"""Any values of two or three axes together give cases with distinct titles, or one line with the reason."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import builders
from attnbench.analysis.report.grids import grids
from attnbench.core.axes import AXES
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.render.document import Figure
from attnbench.render.export import trackers
from attnbench.render.html.charts import charts
from attnbench.results.cells import cells
from attnbench.run.suite import parse_options, parse_suite, resolve

TOLD = ("dtype", "headdim", "mask", "pass", "other", "seqlen", "batch", "heads")  # columns of a page's table
SUITE = parse_suite({"axes": {"seqlen": "1k"}}, "a suite")


def outcome(given: Mapping[str, Any]) -> Sequence[Case]:
    """Return the cases of some options; none where one line gives the reason."""
    found: Sequence[Case] = ()
    said = ""
    try:
        found = resolve(SUITE, "cpu", parse_options({"axes": given})).cases
    except UserError as error:
        said = str(error)
    assert found or (": " in said and "\n" not in said), (given, said)
    return found


def combinations(number: int) -> Iterator[dict[str, Any]]:
    """Yield values for each combination of `number` axes; for three axes with fewer values each."""
    for names in itertools.combinations(AXES, number):
        for chosen in itertools.product(*(AXES[name].examples[: {1: 9, 2: 5, 3: 2}[number]] for name in names)):
            yield dict(zip(names, chosen, strict=True))


def test_each_combination_of_three_is_known_or_one_line() -> None:
    for given in combinations(3):
        outcome(given)


def test_no_two_rows_of_a_backend_are_under_one_title() -> None:
    """No two rows of a backend have one title, in figures, tables and files for tools, for up to two axes."""
    # A shared prefix needs pages and fewer queries.
    prefix = {"shared_prefix": "64", "page_size": "16", "seqlen_q": "1"}
    outcomes = map(outcome, itertools.chain(combinations(1), combinations(2), [prefix]))
    known = dict.fromkeys(case for of in outcomes for case in of)
    for of in (Shape, Case):
        things = known if of is Case else {case.shape for case in known}
        assert [f.name for f in fields(of) if len({getattr(thing, f.name) for thing in things}) < 2] == [], "not tried"
    found = cells([builders.run([builders.ok(case, "triton", 100.0) for case in known])])
    rows = charts(found).rows
    for names in (
        [(row["panel"], row["seqlen"]) for row in rows],
        [tuple(row[name] for name in TOLD) for row in rows],
        [cell.name for cell in found],
        [trackers.name(cell) for cell in found],
        [one["group"] for one in trackers.pytest_benchmark(found)["benchmarks"]],
    ):
        assert [name for name, n in Counter(names).items() if n > 1] == []
    shown = [entry for grid in grids(found, ["latency"])[0].grids for _, row in grid.rows for entry in row]
    assert sum(isinstance(entry, Figure) for entry in shown) == len(known)
