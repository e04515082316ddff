"""The backend `triton`: its interpreter and its probe."""

from __future__ import annotations

import importlib.metadata

import pytest

from attnbench.backends.triton.backend import Triton
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device


def case(dtype: str = "fp16", headdim: int = 64) -> Case:
    return Case(Shape(1, 8, 8, 2, 1, headdim, headdim), dtype, "fwd")


@pytest.mark.parametrize(("headdim", "taken"), [(15, False), (16, True), (256, True), (257, False)])
def test_head_dims(headdim: int, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    said = Triton().unsupported(case(headdim=headdim), device())
    assert said == (None if taken else f"headdim {headdim} is outside 16 to 256")


def device(kind: str = "cuda") -> Device:
    return Device(kind, 0, "a device", 1 << 30, 1 << 30, (9, 0) if kind == "cuda" else None)


def test_a_cpu_is_for_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "the interpreter is for tests" in str(Triton().unsupported(case("fp32"), device("cpu")))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend = Triton()
    assert backend.unsupported(case("fp32"), device("cpu")) is None
    assert backend.unsupported(case("fp16"), device("cpu")) is None
    assert "bf16" in str(backend.unsupported(case("bf16"), device("cpu")))
    assert "TRITON_INTERPRET" in str(backend.unsupported(case(), device()))


def test_probe() -> None:
    assert str(Triton().probe().version).startswith(f"{pytest.importorskip('triton').__version__}, code ")


def test_an_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "3.3.1")
    assert Triton().probe().reason == "triton 3.3.1 is older than 3.4"
