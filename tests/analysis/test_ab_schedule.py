"""The order of an A/B's turns, what fits the time, and what --a and --b mean."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from attnbench.core.errors import UserError
from attnbench.run.ab.builds import builds
from attnbench.run.ab.schedule import LOOKS, affordable, order, to_look
from builders import case


def test_the_order_is_a_b_b_a_b_a_a_b() -> None:
    assert "".join("AB"[side] for pair in range(4) for side in order(pair)) == "ABBABAAB"


def test_pairs_until_the_next_look() -> None:
    assert [to_look(pair) for pair in range(9)] == [4, 3, 2, 1, 2, 1, 2, 1, 4]
    assert to_look(LOOKS[-1] - 1) == 1


COSTS = {(case(n), "triton"): seconds for n, seconds in ((1024, 1.0), (2048, 2.0), (4096, 10.0))}


def lengths(*which: object) -> list[int]:
    return sorted(c.shape.seqlen_k for c, _ in affordable(COSTS, *which))  # type: ignore[arg-type]


def test_the_cheapest_cells_fit_first() -> None:
    assert lengths(1.0, 2, 100.0) == [1024, 2048, 4096]
    assert lengths(1.0, 2, 29.9) == [1024, 2048]  # 2 (2 + 13) = 30
    assert lengths(1.0, 2, 7.0) == [1024]
    assert lengths(1.0, 4, 11.0) == [1024, 2048], "where no cell fits until the look, one pair may"
    assert lengths(1.0, 4, 2.5) == []


def test_two_pieces_of_code_share_a_name() -> None:
    a, b = builds("sdpa-flash", "triton", [])
    assert list(a.specs) == list(b.specs) == ["sdpa-flash-vs-triton"]
    assert (a.python, b.python, a.interpreters) == (None, None, {})
    a, b = builds("old.mod:attention", "new.mod:attention", [], [f"attention={sys.executable}"])
    assert (a.specs, b.specs) == ({"attention": "old.mod:attention"}, {"attention": "new.mod:attention"})
    assert a.python == b.interpreters["attention"] == sys.executable


def test_code_of_which_one_has_its_own_interpreter() -> None:
    a, b = builds("fa2", "fa3", [], [f"fa3={sys.executable}"])
    assert (a.python, b.python) == (None, sys.executable)
    assert b.interpreters == {"fa2-vs-fa3": sys.executable}


def test_interpreters_are_not_resolved_to_the_python_they_link_to(tmp_path: Path) -> None:
    for name in ("main", "pr"):
        (tmp_path / name).symlink_to(sys.executable)
    a, b = builds(str(tmp_path / "main"), str(tmp_path / "pr"), ["fa2", "triton"])
    assert a.interpreters == dict.fromkeys(("fa2", "triton"), str(tmp_path / "main"))
    assert (a.specs, b.python) == (b.specs, str(tmp_path / "pr"))


def test_an_interpreter_by_its_name_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python-pr").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert builds("python-pr", "python-pr", ["fa2"])[0].python == str(tmp_path / "python-pr")


@pytest.mark.parametrize("a", ["sdpa-*", "no/such/python", "backend that is not there"])
def test_what_is_neither_is_said(a: str) -> None:
    with pytest.raises(UserError, match="is no interpreter"):
        builds(a, sys.executable, ["fa2"])
