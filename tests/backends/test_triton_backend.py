"""The backend `triton`: what it refuses, and its probe."""

from __future__ import annotations

import importlib.metadata

import pytest

from attnbench.backends.triton.backend import Triton
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device


def case(dtype: str = "fp16", headdim: int = 64, headdim_v: int = 64, **fields) -> Case:
    return Case(Shape(1, 8, 8, 2, 1, headdim, headdim_v), dtype, "fwd", **fields)


def device(kind: str = "cuda", capability: tuple[int, int] | None = (9, 0)) -> Device:
    return Device(kind, 0, "a device", 1 << 30, 1 << 30, capability if kind == "cuda" else None)


@pytest.mark.parametrize(
    ("c", "d", "reason"),
    [
        (case(), device(), None),
        (case(dtype="bf16", headdim=192, headdim_v=128, causal=True), device(), None),
        (case(dtype="fp32", headdim=256, headdim_v=16), device(capability=None), None),
        (case(window_size=(128, 0)), device(), None),
        (case(softcap=30.0), device(), None),
        (case(dropout_p=0.1), device(), "no dropout"),
        (case(headdim=257), device(), "headdim 257 is outside 16 to 256"),
        (case(headdim_v=8), device(), "headdim_v 8 is outside 16 to 256"),
        (case(), device(capability=(7, 5)), "7.5"),
        (case(), device("cpu"), "the interpreter is for tests"),
    ],
)
def test_what_the_backend_refuses(c: Case, d: Device, reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    said = Triton().unsupported(c, d)
    assert said is None if reason is None else reason in str(said)


def test_the_interpreter_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend = Triton()
    assert backend.unsupported(case("fp32"), device("cpu")) is None
    assert backend.unsupported(case("fp16"), device("cpu")) is None
    assert "bf16" in str(backend.unsupported(case("bf16"), device("cpu")))
    assert "TRITON_INTERPRET" in str(backend.unsupported(case(), device()))


def test_probe() -> None:
    assert Triton().probe().version == pytest.importorskip("triton").__version__


def test_an_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "3.3.1")
    assert Triton().probe().reason == "triton 3.3.1 is older than 3.4"
