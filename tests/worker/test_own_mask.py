"""A person's own mask: read by its path, checked and counted in the worker, refused where it cannot be loaded."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.backends.pytorch.eager import Eager
from attnbench.core import masks, own_files
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
    with pytest.raises(UserError, match="was changed after the run was planned"):
        masks.find(first).function  # type: ignore[attr-defined]  # noqa: B018


def test_its_hash_is_of_its_neighbours_too(own: Path) -> None:
    """The hash covers neighbours that import statements name, indirectly too, so that loaded code is hashed code."""
    (plain,) = masks.parse_masks(f"{own}:halves")
    assert plain.endswith(f"@{hashlib.sha256(own.read_bytes()).hexdigest()[:8]}")
    width, between = own.with_name("width_of_mask.py"), own.with_name("between_masks.py")
    width.write_text("W = 32")
    between.write_text("from width_of_mask import W")
    own.write_text("from between_masks import W\ndef halves(b, h, q, k): return (q < W) == (k < W)")
    (first,) = masks.parse_masks(f"{own}:halves")
    width.write_text("W = 16")
    (second,) = masks.parse_masks(f"{own}:halves")
    assert first != second
    with pytest.raises(masks.MaskChangedError):
        masks.own_of([first])[0].function  # noqa: B018
    assert masks.own_of([second])[0].function(0, 0, 16, 0) is False
    width.write_text("W = 8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_files, "LOADED", {})  # as in the parent, which imports no own file
        (third,) = masks.parse_masks(f"{own}:halves")
    assert third not in (first, second)
    with pytest.raises(masks.MaskChangedError):  # this process has imported the second version
        masks.own_of([third])[0].function  # noqa: B018


def test_a_neighbour_is_no_module_of_another_folder(own: Path, tmp_path: Path) -> None:
    own.write_text(f"import steps_of_mask\n{HALVES}")
    own.with_name("steps_of_mask.py").touch()
    (other := tmp_path / "other").mkdir()
    (other / "steps_of_mask.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "steps_of_mask", module := ModuleType("steps_of_mask"))
        module.__file__ = str(other / "steps_of_mask.py")
        with pytest.raises(masks.MaskChangedError, match=r"imports .*other/steps_of_mask.py in place of .*; give it"):
            masks.own_of(masks.parse_masks(f"{own}:halves"))[0].function  # noqa: B018


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine.py", "which function of mine.py"),
        ("missing.py:f", "cannot read missing.py"),
        ("a\0b.py:f", "a file cannot have that name"),
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
