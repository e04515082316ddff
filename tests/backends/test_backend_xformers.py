"""`xformers*`, through a stand-in with its interface."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from attnbench.backends.xformers import reason_of_refusal
from attnbench.core.backend import Unsupported
from attnbench.core.case import Case, Shape
from attnbench.judge import inputs
from standins import flash_attn, install, xformers
from standins.contract import HOPPER, backend, cases, check

NAMES = ("xformers", "xformers-cutlass", "xformers-fa2", "xformers-fa3", "xformers-splitk")
PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, xformers.version_0_0_35(), xformers.VERSIONS)


@pytest.mark.usefixtures("stand_in")
@cases(NAMES[:4], NAMES[4])
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


@pytest.mark.usefixtures("stand_in")
def test_probe_names_the_operator() -> None:
    assert backend("xformers").probe().version == "xformers 0.0.35"
    assert backend("xformers-fa2").probe().version == "xformers 0.0.35, fa2F@2.5.7-pt"


@pytest.mark.usefixtures("stand_in")
def test_an_operator_that_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xformers.Flash3FwOp, "is_available", classmethod(lambda _: False))
    probe = backend("xformers-fa3").probe()
    assert probe.reason == "its operator fa3F@pip_pkg is not available: flash_attn_3._C is not installed"
    assert "attnbench env create fa3" in str(probe.install)
    assert backend("xformers-fa2").probe().usable


@pytest.mark.usefixtures("stand_in")
def test_a_flash_attn_3_that_xformers_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xformers.Flash3FwOp, "is_available", classmethod(lambda _: False))
    for name in ("flash_attn_3", "flash_attn_3._C"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    said = "flash_attn_3::fwd operator is not compatible"
    operator = sys.modules["xformers.ops.fmha.flash3"]
    monkeypatch.setattr(operator, "_flash_attention3_incompatible_reason", lambda: said, raising=False)
    assert backend("xformers-fa3").probe().reason == (
        "its operator fa3F@pip_pkg is not available: xFormers takes another version of flash-attn 3 than "
        f"the installed one ({said})"
    )


@pytest.mark.parametrize(("operator", "reason"), [("fa3F@pip_pkg", "leaves out fp16"), ("fa3F@v2.8.0", None)])
def test_the_build_of_flash_attn_3_that_it_runs(
    operator: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switches of the installed flash-attn 3 count; older wheels of xFormers run their own copy."""
    modules = xformers.version_0_0_35() | flash_attn.version_3("FLASHATTENTION_DISABLE_FP16")
    install(monkeypatch, modules, xformers.VERSIONS | flash_attn.VERSIONS_3)
    monkeypatch.setattr(xformers.Flash3FwOp, "NAME", operator)
    made = backend("xformers-fa3")
    with_library = ", flash-attn-3 3.0.0" if reason else ""
    assert made.probe().version == f"xformers 0.0.35, {operator}{with_library}"
    said = made.unsupported(replace(PLAIN, dtype="fp16"), HOPPER)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_for_another_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel for another CUDA is unusable, although it can be imported: it warns and has no working operator."""
    failure = Exception("xFormers can't load C++/CUDA extensions. xFormers was built for:\nPyTorch 2.10")
    failure.__cause__ = OSError("Could not load this library: _C.so")
    failure.__cause__.__cause__ = OSError("libcudart.so.12: cannot open shared object file: No such file or directory")
    extension = SimpleNamespace(_cpp_library_load_exception=failure)
    monkeypatch.setattr(sys.modules["xformers"], "_cpp_lib", extension, raising=False)
    probe = backend(name).probe()
    assert str(probe.reason).startswith("xformers is built for another CUDA: libcudart.so.12 is not found")
    assert "attnbench env create xformers" in str(probe.install)


def test_with_flash_attn_4_but_without_flash_attn_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """With flash-attn 4 but without 2 the import fails.

    The reason names both packages, which the library's error does not.
    """

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "xformers.ops":
                raise ModuleNotFoundError(
                    "No module named 'flash_attn.flash_attn_interface'", name="flash_attn.flash_attn_interface"
                )

    install(monkeypatch, {"xformers": xformers.version_0_0_35()["xformers"]}, xformers.VERSIONS)
    monkeypatch.setitem(vars(sys.modules["xformers"]), "__path__", [])
    monkeypatch.delitem(sys.modules, "xformers.ops", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    probe = backend("xformers-cutlass").probe()
    assert probe.reason is not None
    assert "beside flash-attn-4" in probe.reason
    assert probe.install is not None
    assert "--python xformers=PATH" in probe.install


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("name", ["xformers", "xformers-fa2"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_reasons_of_skips_are_those_of_the_library(name: str, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons of skips are the library's, in one line, for forward and backward operators."""
    which = "FlashBwOp" if direction == "bwd" else "FlashFwOp"
    for operator in (which, which.replace("Flash", "Cutlass")):
        monkeypatch.setattr(getattr(xformers, operator), "DTYPES", {torch.float64})
    case = replace(PLAIN, direction=direction)  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=r"fa2.*dtype=torch\.bfloat16") as refused:
        backend(name).prepare(case, inputs.make(case, "cpu", seed=0)).launch()
    assert "\n" not in str(refused.value)


def test_what_a_build_of_flash_attn_3_lacks_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feature that a build of flash-attn 3 lacks, such as fp16, is a skip, although xFormers chooses flash-attn 3."""
    said = "run_mha_fwd_constexpr, hopper/flash_api_stable.cpp:397, This flash attention build does not support FP16."

    def attention(*_: Any, **__: Any) -> Any:
        raise RuntimeError(message)

    modules = xformers.version_0_0_35()
    modules["xformers.ops"].memory_efficient_attention = attention  # type: ignore[attr-defined]
    install(monkeypatch, modules, xformers.VERSIONS)
    for message, error in ((said, Unsupported), ("CUDA error: an illegal memory access", RuntimeError)):
        with pytest.raises(error) as refused:
            backend("xformers").prepare(PLAIN, inputs.make(PLAIN, "cpu", seed=0)).launch()
        assert str(refused.value).removeprefix("it chose flash-attn 3, which says: ") in message


def test_reason_of_refusal() -> None:
    assert reason_of_refusal("odd\nwords") == "xFormers refuses: odd words"
    message = (
        "No operator found\n`fa2F` is not supported because:\n    a\n    b\n`cutlassF` is not supported because:\n    c"
    )
    assert reason_of_refusal(message) == "xFormers refuses; fa2F: a, b; cutlassF: c"
