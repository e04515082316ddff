"""One cell in full: the cells that a name selects, and their document."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.analysis.report import one_cell
from attnbench.core.errors import UserError
from attnbench.render import terminal
from attnbench.results.cells import Cell, cells
from builders import case, ended, ok, run


def measured() -> list[Cell]:
    records = [ok(case(s, direction=d), "eager", 30.0) for s in (1024, 2048) for d in ("fwd", "fwd_bwd")]
    records += [ok(case(causal=True), "hf-eager", 30.0), ended(case(), "mine", "failed", "ValueError: no")]
    return cells([run([*records[:-1], replace(records[-1], stderr="Traceback\n  File mine.py", notes=("a note",))])])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eager 1k d128 full fwd", ["eager 1k d128 full fwd"]),  # not cells whose name contains it
        ("eager 1k d128 full fwd bf16", ["eager 1k d128 full fwd"]),
        ("eager 1k", ["eager 1k d128 full fwd", "eager 1k d128 full fwd_bwd"]),
        ("*causal*", ["hf-eager 1k d128 causal fwd"]),
        ("eager fwd_bwd 2k", ["eager 2k d128 full fwd_bwd"]),  # words, in any order
        ("mine", ["mine 1k d128 full fwd"]),
        ("ine 1k d128", ["mine 1k d128 full fwd"]),
    ],
)
def test_a_name_selects(pattern: str, names: list[str]) -> None:
    assert [cell.name for cell in one_cell.select(measured(), pattern)] == names


@pytest.mark.parametrize("pattern", ["mien 1k d128 full fwd", "mine 2k d128 full fwd"])
def test_a_name_of_no_cell_is_told_the_nearest(pattern: str) -> None:
    with pytest.raises(UserError, match=f"--cell: no cell '{pattern}'; the nearest is \"mine 1k d128 full fwd\""):
        one_cell.select(measured(), pattern)


def test_too_many_are_told_and_an_empty_run_has_none() -> None:
    many = cells([run([ok(case(2**i), "eager", 30.0) for i in range(15)])])
    with pytest.raises(UserError, match=r"is in 9 cells \(eager 1 d128 [^)]*eager 256 d128 full fwd\); give more"):
        one_cell.select(many[: one_cell.MOST + 1], "eager")
    with pytest.raises(UserError, match=r"is in 15 cells .* and 3 more.; give more of the name"):
        one_cell.select(many, "eager")
    with pytest.raises(UserError, match=r"no cell 'eager'$"):
        one_cell.select([], "eager")


def test_a_failure_is_shown_with_its_traceback_and_notes() -> None:
    shown = terminal.text(one_cell.document(one_cell.select(measured(), "mine")))
    for line in ("FAIL: ValueError: no", "    File mine.py"):
        assert line in shown.splitlines(), line
    assert "!  mine 1k d128 full fwd: a note" in shown
    assert "metrics" not in shown


def test_a_measured_cell_is_shown_with_its_samples() -> None:
    (cell,) = one_cell.select(measured(), "hf-eager")
    found = one_cell.document([cell])
    shown = terminal.text(found)
    assert "error against the reference" in shown
    assert "q (16, 1024, 16, 128), k (16, " in shown
    assert any(getattr(block, "name", "").startswith("samples-") for block in found.blocks)


def test_every_sample_is_counted_once_in_the_bins() -> None:
    samples = sorted([1.0 + 0.01 * (i % 17) for i in range(100)] + [9.0])
    table = one_cell._histogram(samples, "h")
    assert sum(int(str(row[1])) for row in table.rows if row[1]) == len(samples)
    assert len(table.rows) <= one_cell.BINS
    (row,) = one_cell._histogram([1.0] * 20, "h").rows
    assert row[1] == "20"
