"""`flashinfer*`, through a stand-in with its interface."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnbench.backends.flashinfer import dense as backends
from attnbench.backends.flashinfer import paged as flashinfer_paged
from attnbench.backends.flashinfer import sparse as flashinfer_sparse
from attnbench.backends.flashinfer.dense import offsets
from attnbench.backends.shared import masks
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import flashinfer, install
from standins.contract import BLACKWELL, backend, cases, check

NAMES = ("flashinfer", "flashinfer-fa2", "flashinfer-fa3", "flashinfer-cudnn", "flashinfer-trtllm")
PLAIN = Case(Shape(1, 64, 64, 2, 2, 128, 128), "bf16", "fwd")


PAGED = Case(Shape(2, 1, 70, 4, 2, 128, 128), "bf16", "fwd", True, page_size=16)
MLA = Case(Shape(2, 1, 70, 16, 1, 576, 512), "bf16", "fwd", True, page_size=16, latent=True, scale=0.07)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flashinfer.version_0_6_13(), flashinfer.VERSIONS)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for module in (backends, flashinfer_paged):
        monkeypatch.setattr(module, "WORKSPACE", 2**16)  # stand-ins need none, and 128 MiB take most of a test's time


@pytest.mark.usefixtures("stand_in")
@cases(NAMES[:3], *NAMES[3:], "flashinfer-decode", "flashinfer-cascade")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@cases("flashinfer-trtllm", device=BLACKWELL)
def test_contract_of_trtllm_gen(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", NAMES)
def test_the_name_decides_the_backend_of_flashinfer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper
    single = flashinfer.single_prefill_with_kv_cache
    top = __import__("flashinfer")
    monkeypatch.setattr(
        top, "single_prefill_with_kv_cache", lambda *a, **k: (asked.append(k["backend"]), single(*a, **k))[1]
    )
    monkeypatch.setattr(
        top, "BatchPrefillWithRaggedKVCacheWrapper", lambda *a, **k: (asked.append(k["backend"]), wrapper(*a, **k))[1]
    )
    for batch in (1, 2):
        check(backend(name), replace(PLAIN, shape=replace(PLAIN.shape, batch=batch)))
    wanted = {"flashinfer": {"auto"}, "flashinfer-trtllm": set()}.get(name, {name.removeprefix("flashinfer-")})
    assert {*asked} == wanted


def test_offsets_beyond_int32_are_refused() -> None:
    assert offsets(torch.tensor([0, 1, 4], dtype=torch.int32), 5).tolist() == [0, 5, 20]
    with pytest.raises(Unsupported, match="int32"):
        offsets(torch.tensor([0, 2], dtype=torch.int32), 2**30)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", NAMES)
def test_a_ragged_batch_has_a_plan(name: str) -> None:
    """A ragged batch has a plan; a dense batch has none, because its offsets are the same at each step."""
    dense = replace(PLAIN, shape=Shape(3, 40, 40, 4, 2, 128, 128), causal=True)
    for case in (dense, replace(dense, lengths=((1, 40, 40), (2, 9, 9)))):
        prepared = backend(name).prepare(case, inputs.make(case, "cpu", seed=0))
        assert (prepared.plan is not None) == case.is_ragged


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("change", [{}, {"shape": Shape(2, 5, 70, 4, 2, 128, 128)}, {"append": True}])
def test_caches_are_read_where_they_are(change: dict[str, Any]) -> None:
    for case in (replace(PAGED, **change), MLA):
        prepared = backend("flashinfer").prepare(case, inputs.make(case, "cpu", seed=0))
        assert prepared.plan is not None
        assert not prepared.reads


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["flashinfer", "flashinfer-fa3", "flashinfer-decode"])
def test_the_name_decides_the_cores(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked = []
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper
    monkeypatch.setattr(
        __import__("flashinfer"),
        "BatchDecodeWithPagedKVCacheWrapper",
        lambda *a, **k: (asked.append((k["use_tensor_cores"], k["backend"])), wrapper(*a, **k))[1],
    )
    check(backend(name), PAGED)
    assert {*asked} == {(name != "flashinfer-decode", "fa3" if name == "flashinfer-fa3" else "auto")}


BLOCKS = Shape(2, 256, 384, 4, 2, 64, 64)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("case", "size", "masked"),
    [
        (Case(BLOCKS, "fp16", "fwd", mask="random:0.4"), (128, 128), False),
        (Case(BLOCKS, "fp16", "fwd", True, mask="random:0.4"), (128, 128), True),
        (Case(replace(BLOCKS, seqlen_q=200), "fp16", "fwd", mask="random:0.4"), (8, 128), False),
        (Case(replace(BLOCKS, batch=1, seqlen_q=200), "fp16", "fwd", mask="dilated:2"), (128, 128), True),
        (Case(replace(BLOCKS, batch=1, seqlen_q=200, seqlen_k=392), "fp16", "fwd", mask="dilated:2"), (128, 8), True),
        (Case(replace(BLOCKS, seqlen_q=1), "fp16", "fwd", mask="random:0.4"), (1, 128), True),
        (
            Case(replace(BLOCKS, batch=1, seqlen_q=384), "bf16", "fwd", True, softcap=2.0, mask="random:0.4"),
            (128,) * 2,
            True,
        ),
    ],
)
@pytest.mark.parametrize("name", ["flashinfer", "flashinfer-fa2"])
def test_masks_by_name(name: str, case: Case, size: tuple[int, int], masked: bool) -> None:
    """A mask of pairs is given only where a block is seen in part; no block has rows beyond the last query."""
    assert flashinfer_sparse.block_size(case) == size
    assert (flashinfer_sparse.block_matrix(case, torch.device("cpu"))[2] is not None) == masked
    check(backend(name), case)
    prepared = backend(name).prepare(case, inputs.make(case, "cpu", seed=0))
    blocks, seen = masks.block_mask(case, torch.device("cpu")), masks.visibility_mask(case, torch.device("cpu"))
    assert blocks is not None
    assert seen is not None
    assert prepared.pairs is not None
    if size == (128, 128):
        assert prepared.pairs() == masks.pairs_of_blocks(blocks)
    elif not masked:
        assert prepared.pairs() == int(seen.sum())
    assert prepared.plan is not None
    prepared.plan()


def test_a_mask_beyond_int32_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(BLOCKS, "fp16", "fwd", mask="dilated:2")
    limits = torch.iinfo(torch.int32)
    pairs = 2 * 256 * 384
    monkeypatch.setattr(torch, "iinfo", lambda _: type("Info", (), {"max": pairs - 1}))
    with pytest.raises(Unsupported, match="int32 offsets of a mask"):
        flashinfer_sparse.block_matrix(case, torch.device("cpu"))
    monkeypatch.setattr(torch, "iinfo", lambda _: limits)
    assert len(flashinfer_sparse.block_matrix(case, torch.device("cpu"))[1]) == 2 * 6
