"""Whatever values of two or three axes a person joins: cases with titles of their own, or a line that says why not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

import builders
from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.lengths import MOST_SEQUENCES
from attnbench.report.html.charts import charts
from attnbench.results.cells import cells
from attnbench.run.suite import parse_options, parse_suite, resolve

FEW: Mapping[str, Sequence[Any]] = {  # for an axis without words
    "seqlen": ("1", "1k", "3000"),
    "seqlen_q": ("1", "2k"),
    "headdim": ("64", "576-512", "64-128"),
    "batch": ("1", "3", str(2 * MOST_SEQUENCES)),
    "nheads": ("3", "16"),
    "nheads_k": ("1", "4"),
    "window": ("256", "0/256", "256/open"),
    "softcap": ("30",),
    "dropout": ("0.1",),
    "mask": ("prefix:64", "sink_tokens:4", "dilated", "random:0.1"),
    "page_size": ("16",),
    "softmax_scale": ("0.5",),
    "lengths": ("uniform", "longtail/ascending", "4k+2*1k", "2q2k_32q1s16k"),
    "ranks": ("2", "3", "65"),
    "step": ("prefill llama-3.1-8b 4/32 arch=llama hidden=4096 intermediate=14336 vocab=128256",),
}
SUITE = parse_suite({"axes": {"seqlen": "1k"}}, "a suite")


def values(name: str) -> Sequence[Any]:
    axis = AXES[name]
    return (True, False) if axis.switch else FEW.get(name) or axis.words


def outcome(given: Mapping[str, Any]) -> Sequence[Case] | str:
    """The cases of some options, or the line that says why there are none."""
    try:
        settings = parse_options({"axes": given})
        return resolve(SUITE, "cpu", settings).cases
    except UserError as error:
        return str(error)


def combinations(number: int) -> Iterator[dict[str, Any]]:
    """Values of each so many axes, of three fewer values each."""
    for names in itertools.combinations(AXES, number):
        for chosen in itertools.product(*(values(name)[: {1: 9, 2: 5, 3: 2}[number]] for name in names)):
            yield dict(zip(names, chosen, strict=True))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_combination_is_cases_or_one_line(number: int) -> None:
    for given in combinations(number):
        found = outcome(given)
        assert found, given
        assert not isinstance(found, str) or ("\n" not in found and ": " in found), (given, found)


def test_no_two_rows_of_a_backend_are_under_one_title() -> None:
    """In a figure a panel and a length, in a grid its title, row and column."""
    found = [outcome(given) for given in itertools.chain(combinations(1), combinations(2))]
    cases = dict.fromkeys(case for of in found if not isinstance(of, str) for case in of)
    assert len(cases) > 500
    records = [builders.ended(case, "triton", "failed", "to have a row without samples") for case in cases]
    rows = charts(cells([builders.run(records)])).rows
    assert len({(row["panel"], row["seqlen"]) for row in rows}) == len(rows) == len(cases)
