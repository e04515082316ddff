"""The example backend of CONTRIBUTING.md works as it is printed there."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.backends import load
from attnbench.core.case import Case, Shape
from attnbench.worker import inputs, reference
from standins.contract import CPU, HOPPER

CASE = Case(Shape(1, 40, 40, 4, 2, 32, 32), "fp32", "fwd_bwd", causal=True)
MYLIB = """
import torch

__version__ = "1.2"

def attention(q, k, v, *, causal, scale):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=causal, scale=scale, enable_gqa=True).transpose(1, 2)
"""


def test_the_example_is_a_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a file puts its folder on the path
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.py").write_text(example, encoding="utf-8")
    mine = load("mine", f"{tmp_path / 'mine.py'}:Mine")

    assert "No module named 'mylib'" in str(mine.probe().why_not)
    (tmp_path / "mylib.py").write_text(MYLIB, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mylib", raising=False)
    assert mine.probe().version == "mylib 1.2"

    assert mine.unsupported(CASE, CPU) is None
    assert mine.unsupported(replace(CASE, softcap=30.0), HOPPER) == "no softcap"
    assert "not bottom-right aligned" in str(mine.unsupported(replace(CASE, shape=Shape(1, 8, 9, 1, 1, 8, 8)), CPU))
    assert mine.signature(CASE, HOPPER).runs == ("mylib_fwd", "mylib_bwd")

    given = inputs.make(CASE, "cpu", seed=0)
    prepared = mine.prepare(CASE, given)
    accuracy = reference.make_check(CASE, given, seed=0).check_first(prepared.canonical(prepared.launch()))
    assert accuracy.ok, accuracy.problem()
    assert {*accuracy.errors} == {"out", "dq", "dk", "dv"}
    monkeypatch.delitem(sys.modules, "mylib")
