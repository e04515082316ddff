"""`transformer-engine`, through a stand-in with its interface."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from attnbench.core.case import Case, Shape
from standins import install, transformer_engine
from standins.contract import HOPPER, TURING, backend, cases, check

PLAIN = Case(Shape(1, 64, 64, 2, 2, 64, 64), "bf16", "fwd")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, transformer_engine.version_2_20(), transformer_engine.VERSIONS)


@pytest.mark.usefixtures("stand_in")
@cases("transformer-engine")
def test_contract(name: str, case: Case) -> None:
    check(backend(name), case)


def test_what_it_refuses() -> None:
    made = backend("transformer-engine")
    assert made.unsupported(replace(PLAIN, dtype="fp32"), HOPPER) == "no fp32, only bf16 and fp16"
    assert made.unsupported(replace(PLAIN, softcap=30.0), HOPPER) == "no softcap"
    assert "8.0 or newer" in str(made.unsupported(PLAIN, TURING))
    assert made.unsupported(replace(PLAIN, shape=Shape(1, 64, 64, 4, 2, 192, 128)), HOPPER) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            ImportError("libcudart.so.12: cannot open shared object file: No such file or directory"),
            "built for another CUDA: libcudart.so.12 is not found",
        ),
        (OSError("/x/y.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"), "built for another torch"),
        (
            RuntimeError("Found empty `transformer-engine` meta package\ninstalled"),
            "fails at import: RuntimeError: Found",
        ),
        (ModuleNotFoundError("No module named 'transformer_engine'", name="transformer_engine"), "is not installed"),
        (
            ModuleNotFoundError("No module named 'onnxscript'", name="onnxscript"),
            "needs onnxscript, which is not installed",
        ),
    ],
)
def test_an_error_at_import_becomes_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "transformer_engine":
                raise error

    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    probe = backend("transformer-engine").probe()
    assert probe.reason is not None
    assert reason in probe.reason
    assert "\n" not in probe.reason
    assert probe.install is not None
    assert "transformer-engine[pytorch]" in probe.install
    assert ("--force-reinstall" in probe.install) == (not reason.startswith("is not installed"))


@pytest.mark.parametrize(
    ("causal", "window", "taken"),
    [(False, (8, 8), True), (False, (8, None), False), (False, (None, 8), False), (True, (8, None), True)],
)
def test_a_window_without_causal_must_have_both_sides(
    causal: bool, window: tuple[int | None, int | None], taken: bool
) -> None:
    case = replace(PLAIN, causal=causal, window_size=window)
    said = backend("transformer-engine").unsupported(case, HOPPER)
    assert said is None if taken else said == "its window has both sides, or is causal"
