"""The length from which several ranks are faster than one, in words and as a figure, for given speedups."""

from __future__ import annotations

from dataclasses import replace

import pytest

import builders
from attnbench.analysis.report.scaling import OTHER_RUN, crossovers, sections, tables
from attnbench.render.document import Table
from attnbench.results.cells import Cell, cells

LENGTHS = (4096, 16384, 65536)


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        ((0.5, 0.8, 0.9), "shown to be faster than one at no length"),
        ((1.2, 1.5, 1.9), "faster from 4k on, the shortest measured"),
        ((0.5, 2.0, 2.0), "faster from about 8k on"),  # the logarithmic middle of 4k and 16k
        ((1.001, 1.5, 1.9), "faster from 16k on, and alike below"),
        ((1.5, 1.9, 0.9), "faster at some lengths, and not at the longest"),
        ((1.5, 0.5, 2.0), "faster from about 32k on"),
    ],
)
def test_from_which_length_two_ranks_are_faster(speedups: tuple[float, ...], said: str) -> None:
    (line,) = crossovers(two_ranks(speedups))
    start, _, rest = line.partition(": ")
    assert start == "ulysses-fa4 d128 causal fwd bf16"
    assert rest.startswith(f"2 ranks are {said} (")
    (line,) = crossovers(two_ranks(speedups[:1]))
    assert " ranks at one length only (4k " in line


def test_one_rank_of_another_run_is_told() -> None:
    one, two = (builders.run([of.rows[0].record]) for of in two_ranks((1.9,)))
    table, _ = tables(cells([one, replace(two, started=one.started)]))
    assert table.note.endswith(OTHER_RUN)  # type: ignore[union-attr]
    table, _ = tables(two_ranks((1.9,)))
    assert not table.note.endswith(OTHER_RUN)  # type: ignore[union-attr]


def test_no_two_rows_have_one_name() -> None:
    """Rows that differ only in heads, in an option or in the machine have different names."""
    one = builders.case(4096, causal=True)
    few, capped = builders.case(4096, causal=True, nheads=4), replace(one, softcap=30.0)
    records = [builders.ok(replace(c, ranks=n), "ulysses-fa4", 400.0) for c in (one, few, capped) for n in (1, 2)]
    other = replace(builders.H200, name="NVIDIA H100")
    found = cells([builders.run(records), builders.run(records[:2], device=other)])
    table, _ = tables(found)
    assert isinstance(table, Table)
    names = [row[:4] for row in table.rows]
    assert names == [
        ("ulysses-fa4", "NVIDIA H200", "4k h4", "2"),
        ("ulysses-fa4", "NVIDIA H200", "4k h16", "2"),
        ("ulysses-fa4", "NVIDIA H100", "4k h16", "2"),
        ("ulysses-fa4", "NVIDIA H200", "4k softcap 30 h16", "2"),
    ]
    assert len({line.partition(":")[0] for line in crossovers(found)}) == 4
    assert (table.labels, tables(two_ranks((1.9,)))[0].labels) == (4, 3)  # type: ignore[union-attr]


def test_the_figure_has_all_points_within_it() -> None:
    (section,) = sections(two_ranks((0.5, 1.5, 2.5)))
    (plot,) = section.blocks
    assert [(round(dot.x, 3), round(dot.y, 3)) for dot in plot.dots] == [(0, 0.2), (0.5, 0.6), (1, 1)]
    assert plot.levels == ((0, 1, 0.4),)  # as fast as one rank
    assert plot.y_labels == ((0, "0x"), (0.4, "1x"), (0.8, "2x"))
    assert [place for place, _ in plot.x_labels] == [0, 0.5, 1]


def two_ranks(speedups: tuple[float, ...]) -> list[Cell]:
    """Return cells of one and two ranks, with these speedups at LENGTHS."""
    records = []
    for seqlen, speedup in zip(LENGTHS, speedups, strict=False):
        one = builders.case(seqlen, causal=True)
        records.append(builders.ok(one, "ulysses-fa4", 400.0))
        records.append(builders.ok(replace(one, ranks=2), "ulysses-fa4", 400.0 * speedup))
    return list(cells([builders.run(records)]))
