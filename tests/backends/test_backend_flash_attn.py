"""`fa1` to `fa4`, through stand-ins with their interfaces."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.backends.flash_attn.fa4_compiled import mask_mod
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import engines, flash_attn, install
from standins.contract import CASES, HOPPER, backend, cases, check

STAND_INS = {
    "fa1": (flash_attn.version_1, flash_attn.VERSIONS_1),
    "fa2": (flash_attn.version_2, flash_attn.VERSIONS_2),
    "fa3": (flash_attn.version_3, flash_attn.VERSIONS_3),
    "fa4": (flash_attn.version_4, flash_attn.VERSIONS_4),
}
PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Return the backend's library, or its stand-in."""
    modules, versions = STAND_INS[name]
    install(monkeypatch, modules(), versions)


@pytest.mark.usefixtures("stand_in")
@cases(*STAND_INS)
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", STAND_INS)
def test_probe_names_the_version(name: str) -> None:
    assert backend(name).probe().version == " ".join(*STAND_INS[name][1].items())


def test_older_builds_of_fa3_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older builds of flash-attn 3, which return (out, lse) instead of out, give the same results."""
    modules = flash_attn.version_3()
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    interface = modules["flash_attn_interface"]
    new = interface.flash_attn_func
    monkeypatch.setattr(interface, "flash_attn_func", lambda *a, **k: (new(*a, **k), torch.empty(())))
    check(backend("fa3"), CASES["gqa-causal-bf16-bwd"])


MLA = Case(Shape(1, 1, 64, 16, 1, 576, 512), "bf16", "fwd", page_size=64, latent=True)


def test_fa3_names_what_makes_a_build_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = [f"FLASHATTENTION_DISABLE_{switch}" for switch in ("HDIM96", "FP16", "PACKGQA", "VARLEN")]
    install(monkeypatch, flash_attn.version_3(*flags), flash_attn.VERSIONS_3)
    assert backend("fa3").probe().version == "flash-attn-3 3.0.0, without HDIM96 PACKGQA"


def test_builds_of_fa3_are_told_apart_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, flash_attn.version_3(), flash_attn.VERSIONS_3)
    digest = base64.urlsafe_b64encode(bytes.fromhex("12345678" + 56 * "0")).decode().rstrip("=")
    file = importlib.metadata.PackagePath("flash_attn_3/_C.abi3.so")
    file.hash = importlib.metadata.FileHash(f"sha256={digest}")
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [importlib.metadata.PackagePath("x.py"), file])
    assert backend("fa3").probe().version == "flash-attn-3 3.0.0, code 12345678"


TOKENSPEED = (flash_attn.version_3(*flash_attn.LEFT_OUT_OF_TOKENSPEED), flash_attn.VERSIONS_TOKENSPEED)


@cases("fa3")
def test_contract_of_the_wheel(name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the wheel tokenspeed-fa3 the backend computes all cases that it does not refuse."""
    install(monkeypatch, *TOKENSPEED)
    made = backend(name)
    assert made.probe().version == "tokenspeed-fa3 3.0.0.post20260810, without HDIM96 HDIMDIFF192"
    refused = made.unsupported(case, HOPPER)
    if case.has_backward or case.softcap or case.latent:
        assert str(refused).startswith("this build leaves out")
    else:
        assert refused is None
        check(made, case)


def test_of_two_builds_in_one_folder_the_last_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build of a module is the distribution whose list of files has the module's file with its hash."""
    module, code = tmp_path / "flash_attn_interface.py", base64.urlsafe_b64encode(b"\1" * 32).decode().rstrip("=")
    for name, text in (("flash-attn-3", "old"), ("tokenspeed-fa3", "def flash_attn_func(): ...")):
        module.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        info = tmp_path / f"{name.replace('-', '_')}-3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 3\n")
        (info / "RECORD").write_text(f"{module.name},sha256={digest},\nflash_attn_3/_C.abi3.so,sha256={code},\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn_interface", raising=False)
    assert backend("fa3").probe().version == "tokenspeed-fa3 3, code 01010101"
    sys.modules.pop("flash_attn_interface")


@cases(("vllm-fa3", "sglang-fa3"))
def test_contract_of_engines(name: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension alone is loaded: the engine's package is never imported."""
    engines.install(tmp_path, monkeypatch)
    made = backend(name)
    assert made.probe().version == {"vllm-fa3": "vllm 0.33.0", "sglang-fa3": "sglang-kernel 0.4.10"}[name]
    check(made, case)


def test_why_an_engines_extension_does_not_go_with_a_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the loader's, which newer torch has as the cause of its own error."""
    engines.install(tmp_path, monkeypatch)

    def load(path: str) -> None:
        try:
            raise OSError(f"{Path(path).name}: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementation")
        except OSError as error:
            raise OSError(f"Could not load this library: {path}") from error

    monkeypatch.setattr(torch.ops, "load_library", load)
    reason = "sgl_kernel is built for another torch (flash_ops.abi3.so: undefined symbol: _ZN3c104cuda"
    assert str(backend("sglang-fa3").probe().reason).startswith(reason)


@pytest.mark.parametrize("config", [None, {}, {"build_flags": 0}])
def test_a_build_of_fa3_that_does_not_say_is_refused_nothing(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, int] | None
) -> None:
    modules = flash_attn.version_3()
    if config is None:
        modules["flash_attn_config"] = None
    else:
        modules["flash_attn_config"].CONFIG = config
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    made = backend("fa3")
    assert made.probe().version == "flash-attn-3 3.0.0"
    assert made.unsupported(replace(PLAIN, dtype="fp16", softcap=30.0, window_size=(8, 8)), HOPPER) is None


def test_fa3_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fp8 inputs out is bf16."""
    install(monkeypatch, flash_attn.version_3(), flash_attn.VERSIONS_3)
    fp8 = Case(Shape(2, 40, 48, 4, 2, 64, 64), "fp8", "fwd")
    made = backend("fa3")
    assert made.unsupported(replace(fp8, direction="bwd"), HOPPER) == "fp8 is forward only"
    prepared = made.prepare(fp8, inputs.make(fp8, "cpu", seed=0))
    assert prepared.canonical(prepared.launch())["out"].dtype == torch.bfloat16


def test_fa3_makes_its_schedule_before_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn 3's schedule is the plan, made once a step; launches read the caches in place."""
    modules = flash_attn.version_3()
    install(monkeypatch, modules, flash_attn.VERSIONS_3)
    interface, calls = modules["flash_attn_interface"], []
    make = interface.get_scheduler_metadata
    monkeypatch.setattr(interface, "get_scheduler_metadata", lambda *a, **k: (calls.append(a), make(*a, **k))[1])
    given = inputs.make(MLA, "cpu", seed=0)
    prepared = backend("fa3").prepare(MLA, given)
    prepared.launch()
    prepared.launch()
    assert len(calls) == 1
    assert prepared.plan is not None
    prepared.plan()
    assert len(calls) == 2
    assert prepared.reads == {}


@pytest.mark.parametrize(("headdim", "keys"), [(64, 128), (256, 80)])
def test_what_fa4_plans_for_a_mask(monkeypatch: pytest.MonkeyPatch, headdim: int, keys: int) -> None:
    """`plan` makes the lists for a mask, and `pairs` counts the pairs in the blocks that the forward visits."""
    install(monkeypatch, flash_attn.version_4(), flash_attn.VERSIONS_4)
    case = Case(Shape(1, 256, 256, 2, 2, headdim, headdim), "bf16", "fwd_bwd", True, mask="random:0.000001")
    prepared = backend("fa4").prepare(case, inputs.make(case, "cpu", seed=0))
    assert prepared.pairs is not None
    assert prepared.plan is not None
    planned: Any = prepared.plan()
    assert prepared.pairs() == sum({128: (1, 1), 80: (2, 3)}[keys]) * 128 * keys
    assert planned["block_sparse_tensors"].block_size == (128, keys)
    assert planned["block_sparse_tensors_bwd"].mask_block_cnt.shape[-1] == 256 // (128 if headdim == 64 else 64)
    assert planned["aux_tensors"][0].shape == (4, 4)


@pytest.mark.parametrize("mask", ["strided:16", "random:0.3"])
def test_a_mask_of_fa4_is_compiled_once(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    """A mask is compiled once: functions with captured values of one repr are equal (utils.py, hash_callable)."""
    install(monkeypatch, flash_attn.version_4(), flash_attn.VERSIONS_4)
    case = replace(PLAIN, causal=True, mask=mask)
    cases = (case, case, replace(case, causal=False), replace(case, shape=Shape(1, 64, 80, 2, 2, 64, 64)))
    one, again, *others = (str([c.cell_contents for c in mask_mod(of).__closure__ or ()]) for of in cases)
    assert one == again
    assert one not in others
