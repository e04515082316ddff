"""The example backend of CONTRIBUTING.md works as printed."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench import judge
from attnbench.backends import load
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins.contract import CPU, HOPPER

CASE = Case(Shape(1, 40, 40, 4, 2, 32, 32), "fp32", "fwd_bwd", causal=True)
MYLIB = """
import torch

def attention(q, k, v, *, causal, scale=None):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(q, k, v, is_causal=causal, scale=scale, enable_gqa=True).transpose(1, 2)
"""


def test_the_example_is_a_backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # a load of a file puts its folder on the path
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mylib_backend.py").write_text(example, encoding="utf-8")
    mine: Any = load("mylib", f"{tmp_path / 'mylib_backend.py'}:MyLib")

    assert mine.probe().reason == mine.installed().reason == "mylib is not installed"
    assert mine.probe().install == "pip install mylib"
    (tmp_path / "mylib.py").write_text(MYLIB, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mylib", raising=False)
    (tmp_path / "mylib-1.2.dist-info").mkdir()
    (tmp_path / "mylib-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1.2\n")
    importlib.invalidate_caches()
    assert mine.probe().version == mine.installed().version == "mylib 1.2"

    assert mine.unsupported(CASE, CPU) is None
    assert mine.unsupported(replace(CASE, softcap=30.0), HOPPER) == "no softcap"
    assert "not bottom-right aligned" in str(mine.unsupported(replace(CASE, shape=Shape(1, 8, 9, 1, 1, 8, 8)), CPU))
    assert mine.signature(CASE, HOPPER).runs == ("mylib_fwd", "mylib_bwd")

    given = inputs.make(CASE, "cpu", seed=0)
    prepared = mine.prepare(CASE, given)
    accuracy = judge.make_check(CASE, given, seed=0).check_first(prepared.canonical(prepared.launch()))
    assert accuracy.ok, accuracy.problem()
    decode = replace(CASE, shape=replace(CASE.shape, seqlen_q=1), direction="fwd")
    assert mine.unsupported(decode, CPU) is None
    one_query = inputs.make(decode, "cpu", seed=0)
    prepared = mine.prepare(decode, one_query)
    assert judge.make_check(decode, one_query, seed=0).check_first(prepared.canonical(prepared.launch())).ok
    pasted: dict[str, Any] = {name: getattr(given, name) for name in "qkv"}
    exec(mine.paste.text(CASE), pasted)
    assert pasted["out"].shape == given.q.shape
    assert {*accuracy.errors} == {"out", "dq", "dk", "dv"}
    monkeypatch.delitem(sys.modules, "mylib")
