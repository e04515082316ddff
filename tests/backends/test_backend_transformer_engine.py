"""`transformer-engine`, through a stand-in with its interface."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.backends.transformer_engine import dot_product as transformer_engine_backend
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import install, transformer_engine
from standins.contract import backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")
NAMES = ("transformer-engine", "transformer-engine-fused", "transformer-engine-flash")
SWITCHES = ("NVTE_UNFUSED_ATTN", "NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables that a probe sets."""
    for name in (*SWITCHES, "CUDNN_HOME", "NVRTC_HOME", "CURAND_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, transformer_engine.version_2_20(), transformer_engine.VERSIONS)


@pytest.mark.usefixtures("stand_in")
@cases(NAMES)
def test_contract(name: str, case: Case) -> None:
    made = backend(name)
    made.probe()  # sets the variables that switch backends off
    check(made, case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("name", "layout", "contiguous"),
    [(name, "bhsd", name != "transformer-engine-flash") for name in NAMES] + [("transformer-engine", "packed", False)],
)
def test_heads_first_views_are_copied_for_fused_attention(
    name: str, layout: Any, contiguous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads-first views are copied for FusedAttention, which would read them as contiguous; packed parts are not."""
    seen = []
    usual = transformer_engine.DotProductAttention.forward

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        seen.append(all(t.is_contiguous() for t in given))
        return usual(self, *given, **options)

    monkeypatch.setattr(transformer_engine.DotProductAttention, "forward", noted)
    made = backend(name)
    made.probe()
    check(made, replace(PLAIN, direction="fwd_bwd", layout=layout))
    assert {*seen} == {contiguous}


@pytest.mark.usefixtures("stand_in")
@cases("transformer-engine-fp8")
def test_fp8_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
def test_fp8_clips_no_output_that_is_larger_than_those_before() -> None:
    """An output larger than all before it is not clipped: the largest possible one is a row of v, from a single key."""
    case = Case(Shape(1, 64, 64, 2, 2, 64, 64), "fp8", "fwd")
    given = inputs.make(case, "cpu", seed=0)
    prepared = backend("transformer-engine-fp8").prepare(case, given)
    before = prepared.canonical(prepared.launch())
    assert before["out"].dtype == torch.float8_e4m3fn
    v = prepared.reads["v"]
    v.copy_(v[:, :1].clone().expand_as(v))
    after = prepared.canonical(prepared.launch())
    assert torch.equal(before["descale_out"], after["descale_out"])
    assert torch.equal(after["out"].float(), v.float().expand_as(after["out"]))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(("seqlen_k", "mask"), [(9, "padding_causal"), (12, "padding_causal_bottom_right")])
def test_a_ragged_batch_is_of_the_format_thd(seqlen_k: int, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged batch has the format thd and a bottom-right mask; FlashAttention takes top-left for equal lengths."""
    asked = []
    made = transformer_engine.DotProductAttention

    def noted(**options: Any) -> Any:
        asked.append((options["qkv_format"], options["attn_mask_type"]))
        return made(**options)

    monkeypatch.setattr(sys.modules["transformer_engine.pytorch"], "DotProductAttention", noted)
    case = Case(Shape(3, 40, 40, 4, 2, 64, 64), "bf16", "fwd_bwd", True, lengths=((1, 40, 40), (2, 9, seqlen_k)))
    check(backend("transformer-engine"), case)
    assert {*asked} == {("thd", mask)}
    assert backend("transformer-engine").prepare(case, inputs.make(case, "cpu", seed=0)).plan is not None


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("name", "values", "version"),
    [
        ("transformer-engine", "011", "transformer-engine 2.20.0"),
        ("transformer-engine-fused", "010", "transformer-engine 2.20.0"),
        ("transformer-engine-flash", "001", "transformer-engine 2.20.0, flash-attn 2.8.3"),
    ],
)
def test_its_backends_are_switched_before_it_is_imported(name: str, values: str, version: str) -> None:
    assert backend(name).probe().version == version
    assert "".join(os.environ[switch] for switch in SWITCHES) == values


def test_its_flash_attention_needs_one(monkeypatch: pytest.MonkeyPatch, stand_in: None) -> None:  # noqa: ARG001
    install(monkeypatch, transformer_engine.version_2_20(flash_attn=None), transformer_engine.VERSIONS)
    probe = backend("transformer-engine-flash").probe()
    assert probe.reason == "it finds no flash-attn that it takes (2.1.1 to 2.8.3, 3 or 4)"
    assert "flash-attn" in str(probe.install)
    assert backend("transformer-engine-fused").probe().usable


@pytest.mark.usefixtures("stand_in")
def test_what_no_backend_takes_is_skipped_with_its_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that no backend takes is skipped with the reasons in the debug log; another ValueError is no refusal."""
    utils = sys.modules["transformer_engine.pytorch.attention.dot_product_attention.utils"]
    said = "No dot product attention backend is available for the provided inputs. Please run with NVTE_DEBUG=1"

    def refuse(*_: object, **__: object) -> None:
        logger = logging.getLogger("DotProductAttention")
        logger.setLevel(utils.AttentionLogging._log_level)
        logger.debug("Disabling UnfusedDotProductAttention due to NVTE_UNFUSED_ATTN=0")
        logger.debug("Disabling FlashAttention %s for dropout", 3)
        logger.debug('Disabling FusedAttention: No valid engine\n{"engineId":2}\nReason: s_q=1 on Hopper')
        raise ValueError(said)

    monkeypatch.setattr(transformer_engine.DotProductAttention, "forward", refuse)
    prepared = backend("transformer-engine").prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0))
    with pytest.raises(Unsupported) as refusal:
        prepared.launch()
    assert str(refusal.value) == (
        "Transformer Engine takes no backend: FlashAttention 3 for dropout; "
        'FusedAttention: No valid engine {"engineId":2} Reason: s_q=1 on Hopper'
    )
    assert utils.AttentionLogging._log_level == logging.WARNING
    said = "another"
    with pytest.raises(ValueError, match="another"):
        prepared.launch()


def test_the_cudnn_of_torch_is_the_one_that_it_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cuDNN that is loaded is torch's, from the folder of torch, which need not be Transformer Engine's."""
    for file in ("cudnn/lib/libcudnn.so.9", "cu13/lib/libnvrtc.so.13", "cu13/lib/libcurand.so.10"):
        (tmp_path / "nvidia" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nvidia" / file).write_text("")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__file__=f"{tmp_path}/torch/__init__.py"))  # type: ignore[arg-type]
    monkeypatch.setenv("CURAND_HOME", "/mine")
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path, mode: loaded.append(path))
    transformer_engine_backend._load_cudnn_of_torch()
    assert loaded == [f"{tmp_path}/nvidia/cudnn/lib/libcudnn.so.9"]
    homes = [os.environ[f"{name}_HOME"] for name in ("CUDNN", "NVRTC", "CURAND")]
    assert homes == [f"{tmp_path}/nvidia/cudnn", f"{tmp_path}/nvidia/cu13", "/mine"]
