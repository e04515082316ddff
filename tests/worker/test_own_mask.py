"""A mask of one's own: read by its path, checked and counted where it runs, refused where it cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.backends.pytorch.eager import Eager
from attnbench.core import masks
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.core.record import Forecast, Job, Record
from attnbench.worker.serve import Worker
from worker_here import CPU, SHORT

SHAPE = Shape(2, 64, 64, 2, 2, 16, 16)
HALVES = """\
def halves(b, h, q_idx, kv_idx):
    return (q_idx < 32) == (kv_idx < 32)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(HALVES)
    masks._own_function.cache_clear()
    return file


def measure(worker: Worker, case: Case) -> Record:
    worker.backend = Eager()
    return worker.run(Job(case, "eager", 0, Forecast(1.0, 0.1, 0)), SHORT, CPU)


def test_it_is_measured_and_its_pairs_are_counted(worker: Worker, own: Path) -> None:
    (text,) = masks.parse_masks(f"{own}:halves")
    record = measure(worker, Case(SHAPE, "fp32", "fwd_bwd", True, mask=text))
    assert record.status == "ok", record.reason
    assert record.measurements["pairs"].values == (2 * 32 * 33 / 2,)
    assert record.measurements["pairs_computed"].values == (64 * 64,)


def test_its_case_is_another_where_the_file_is(own: Path) -> None:
    (first,) = masks.parse_masks(f"{own}:halves")
    own.write_text(HALVES.replace("32", "16"))
    (second,) = masks.parse_masks(f"{own}:halves")
    assert first != second
    with pytest.raises(UserError, match="is another file than when the run was planned"):
        masks.find(first).function  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine.py", "which function of mine.py"),
        ("missing.py:f", "cannot read missing.py"),
        ("a\0b.py:f", "no file can have that name"),
        ("mine.py:1", "which function"),
    ],
)
def test_what_is_no_mask(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        masks.parse_masks(text)


def test_a_function_that_is_not_there(own: Path) -> None:
    (text,) = masks.parse_masks(f"{own}:halve")
    with pytest.raises(UserError, match=r"no function 'halve'; did you mean \"halves\""):
        masks.find(text).function  # type: ignore[attr-defined]  # noqa: B018


def test_a_mask_that_fails_is_told(worker: Worker, own: Path) -> None:
    own.write_text("def halves(b, h, q_idx, kv_idx):\n    return q_idx.nothing\n")
    (text,) = masks.parse_masks(f"{own}:halves")
    record = measure(worker, Case(SHAPE, "fp32", "fwd", mask=text))
    assert record.status == "failed"
    assert "nothing" in str(record.reason)
