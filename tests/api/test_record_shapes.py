"""The suite that `record_shapes` writes has the cases that the program called, and nothing of its tensors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attnbench
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.run.suite import load_suite, resolve


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16, **more: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, **more)


def test_the_suite_has_the_cases_of_the_program(tmp_path: Path) -> None:
    file = tmp_path / "shapes.yaml"
    q, k = tensor(2, 8, 32, 64), tensor(2, 2, 32, 64)
    learnt = tensor(1, 4, 16, 64, dtype=torch.float16, requires_grad=True)
    cast, double = tensor(5, 16, 64, dtype=torch.float32), tensor(2, 8, 4, 64, dtype=torch.float64)
    with attnbench.record_shapes(file):
        for _ in range(3):
            sdpa(q, k, k, is_causal=True, enable_gqa=True)
        sdpa(tensor(2, 8, 1, 64), k, k, None, 0.0, False, scale=0.5, enable_gqa=True)
        sdpa(learnt, learnt, tensor(1, 4, 16, 32, dtype=torch.float16), dropout_p=0.1).sum().backward()
        with torch.no_grad():
            sdpa(learnt, learnt, learnt)
        with torch.autocast("cpu", torch.bfloat16):
            sdpa(cast, cast, cast)
        sdpa(q, q, q, attn_mask=torch.ones(32, 32, dtype=torch.bool))
        sdpa(tensor(2, 8, 1, 64), q, q, is_causal=True)
        sdpa(double, double, double)
        sdpa(q, q, q, dropout_p=1.0)
        sdpa(q, q, q, scale=0.0)
        with pytest.raises(RuntimeError):
            sdpa(q, tensor(2, 8, 32, 16), q)
    sdpa(q, q, q)  # after the block
    shape = Shape(1, 16, 16, 4, 4, 64, 64)
    dropped = Shape(1, 16, 16, 4, 4, 64, 32)
    assert {*resolve(load_suite(str(file)), "cuda").cases} == {
        Case(Shape(2, 32, 32, 8, 2, 64, 64), "bf16", "fwd", causal=True),
        Case(Shape(2, 1, 32, 8, 2, 64, 64), "bf16", "fwd", scale=0.5),
        Case(dropped, "fp16", "fwd", dropout_p=0.1),
        Case(dropped, "fp16", "bwd", dropout_p=0.1),
        Case(shape, "fp16", "fwd"),
        Case(Shape(1, 16, 16, 5, 5, 64, 64), "bf16", "fwd"),
    }
    text = file.read_text()
    assert "# 5 cases of 7 calls" in text
    assert text.index("causal: true}  # 3 calls") < text.index("# 1 call")
    more = ("a dropout of 1", "a scale that is not above 0")
    for reason in ("a tensor as mask", "is_causal and unlike lengths", "torch.float64", *more):
        assert f"# left out: 1 call with {reason}" in text


def test_compiled_code_works_and_is_not_recorded(tmp_path: Path) -> None:
    """In a block, code compiled before or in it gives the same result without a graph break."""
    q = torch.randn(1, 2, 16, 64)
    compiled = torch.compile(lambda q: sdpa(q, q, q) + 1, backend="aot_eager", fullgraph=True)
    with attnbench.record_shapes(tmp_path / "shapes.yaml"):
        assert torch.equal(compiled(q), sdpa(q, q, q) + 1)
    assert "1 case of 1 call" in (tmp_path / "shapes.yaml").read_text()


def test_the_attention_of_torchs_own_layers_is_recorded(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with attnbench.record_shapes(tmp_path / "shapes.yaml"):
        layer(torch.randn(2, 32, 64))
        compiled(torch.randn(2, 48, 64))
    assert torch.nn.functional.scaled_dot_product_attention is sdpa
    shape = Shape(2, 32, 32, 4, 4, 16, 16)
    found = resolve(load_suite(str(tmp_path / "shapes.yaml")), "cuda").cases
    assert {*found} == {Case(shape, "fp32", "fwd", dropout_p=0.1), Case(shape, "fp32", "bwd", dropout_p=0.1)}


def test_an_exception_keeps_what_was_recorded(tmp_path: Path) -> None:
    q = tensor(1, 2, 16, 64)

    def program() -> None:
        sdpa(q, q, q)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), attnbench.record_shapes(tmp_path / "shapes.yaml"):
        program()
    assert len(resolve(load_suite(str(tmp_path / "shapes.yaml")), "cuda").cases) == 1


def test_many_shapes_are_a_suite_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode loop has a case for each length: the file stays short enough to be read."""
    monkeypatch.setattr("attnbench.api.shapes.MOST", 5)
    file = tmp_path / "shapes.yaml"
    with attnbench.record_shapes(file):
        for length in range(1, 9):
            k = tensor(1, 2, length, 64)
            sdpa(tensor(1, 2, 1, 64), k, k)
    assert len(resolve(load_suite(str(file)), "cuda").cases) == 5
    assert "# left out: 3 cases with the fewest calls" in file.read_text()


def test_what_cannot_be_recorded_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"run\.jsonl: a suite is a YAML file"), attnbench.record_shapes("run.jsonl"):
        pass
    with pytest.raises(UserError, match="cannot write"), attnbench.record_shapes("/dev/null/shapes.yaml"):
        pass
    q = tensor(1, 2, 16, 64)
    with (
        pytest.raises(UserError, match=r"no call .* was recorded; left out: 1 call with a tensor as mask"),
        attnbench.record_shapes(tmp_path / "shapes.yaml"),
    ):
        sdpa(q, q, q, attn_mask=torch.zeros(16, 16, dtype=torch.bfloat16))


def test_threads_that_record_at_the_same_time_see_their_own_calls(tmp_path: Path) -> None:
    """Two threads record a layer of torch, for whose inner calls torch's attention is replaced, and restored."""
    original = torch.nn.functional.scaled_dot_product_attention

    def recorded(tokens: int) -> None:
        layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        x = torch.randn(1, tokens, 16)
        with attnbench.record_shapes(tmp_path / f"{tokens}.yaml"):
            for _ in range(50):
                layer(x, x, x, need_weights=False)

    threads = [threading.Thread(target=recorded, args=(tokens,)) for tokens in (5, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.nn.functional.scaled_dot_product_attention is original
    for tokens in (5, 9):
        last = (tmp_path / f"{tokens}.yaml").read_text().splitlines()[1:]
        assert last[-1].startswith(f"- {{batch: 1, nheads: 2, seqlen: {tokens}, ")
        assert last[-1].endswith("# 50 calls")


def test_tensors_without_a_device_are_recorded(tmp_path: Path) -> None:
    with attnbench.record_shapes(tmp_path / "x.yaml"):
        q = torch.empty(1, 2, 8, 16, device="meta")
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert "seqlen: 8" in (tmp_path / "x.yaml").read_text()
