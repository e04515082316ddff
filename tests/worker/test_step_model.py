"""A small step of a model on a CPU, with transformers, right and with planted faults."""

from __future__ import annotations

from typing import Any

import pytest

from attnbench import backends
from attnbench.core.case import Case, Shape
from attnbench.core.flops import heads_of
from attnbench.core.policy import Policy
from attnbench.worker import environment

pytest.importorskip("transformers", minversion="5.0", reason="a step needs transformers 5")
torch = pytest.importorskip("torch")

QUICK = Policy(warmup_s=0.0, min_samples=3, max_seconds=0.01)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("", {}),
    "mistral": ("", {"window_size": (31, 0)}),
    "mixtral": (" experts=4 taken=2", {}),
    "qwen3_moe": (" experts=4 taken=2", {}),
    "gemma2": (" tied=1 windows=32/0", {"window_size": (31, 0), "softcap": 50.0}),
    "gpt_oss": (" experts=4 taken=2 windows=32/0", {"window_size": (31, 0), "sink": True}),
    "deepseek_v3": (" experts=8 taken=2 shared=1 expert=64 dense=1 q_rank=48 k_rank=64 rope=16", {}),
}


def case(arch: str = "llama", phase: str = "prefill", seqlen: int = 96) -> Case:
    sizes, rest = ARCHITECTURES[arch]
    heads = (4, 4, 48, 32) if arch == "deepseek_v3" else (4, 2, 32, 32)
    text = f"{phase} small 2/4 arch={arch} hidden=128 intermediate=256 vocab=512{sizes}"
    shape = Shape(2, 1 if phase == "decode" else seqlen, seqlen, *heads)
    return Case(shape, "bf16", "fwd_bwd" if phase == "train" else "fwd", True, step=text, **rest)


@pytest.fixture(scope="module")
def measurer() -> Any:
    from attnbench.worker.measure_cell import CellMeasurer

    return CellMeasurer(environment.describe(environment.resolve_device("cpu")).device)


def measure(measurer: Any, name: str, of: Case, *, timed: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = measurer.measure(backends.load(name, backends.BACKENDS[name]), of, QUICK, timed=timed)
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_model_has_the_parameters_that_its_flops_count(arch: str) -> None:
    from attnbench.worker.step.model import StepModel

    of = case(arch)
    model = StepModel(of, torch.device("cpu"), 1).model
    small = ("norm", "bias", "sinks")
    found = sum(p.numel() for name, p in model.named_parameters() if not any(word in name for word in small))
    assert of.model_step
    assert found == of.model_step.weights(heads_of(of)) + of.model_step.outside


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_training_step_is_right_in_every_layer(arch: str, measurer: Any) -> None:
    found = measure(measurer, "step-eager", case(arch, "train"))
    assert found["status"] == "ok", found.get("reason")
    assert {"out", "dq", "dk", "dv", "logits", "gradients"} == found["accuracy"].errors.keys()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_timed_step_has_the_share_of_attention(phase: str, measurer: Any) -> None:
    found = measure(measurer, "step-sdpa", case("mistral", phase), timed=True)
    assert found["status"] == "ok", found.get("reason")
    traced, attention = (found["measurements"][name].values[0] for name in ("step_traced", "attention"))
    assert 0 < attention < traced


def test_a_silent_fallback_is_a_wrong_kernel(measurer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent fallback is a wrong kernel: torch's math computes the attention of `step-sdpa-flash`, correctly."""
    own = torch.nn.functional.scaled_dot_product_attention

    def math(q: Any, k: Any, v: Any, **options: Any) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        torch.backends.cuda.enable_math_sdp(True)
        with sdpa_kernel(SDPBackend.MATH):
            return own(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", math)
    found = measure(measurer, "step-sdpa-flash", case())
    assert found["status"] == "wrong-kernel", found
    assert "forward 1 of 2" in found["reason"]


@pytest.mark.parametrize(
    ("fault", "phase", "error"),
    [
        (lambda q, k, v: (q * 1.1, k, v), "prefill", "out"),
        (lambda q, k, v: (q, k, v.roll(1, dims=2)), "prefill", "out"),
        (lambda q, k, v: (q, k.detach(), v), "train", "dk"),
    ],
)
def test_wrong_attention_is_wrong(
    fault: Any, phase: str, error: str, measurer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = torch.nn.functional.scaled_dot_product_attention
    planted = lambda q, k, v, **options: own(*fault(q, k, v), **options)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", planted)
    found = measure(measurer, "step-sdpa", case(phase=phase))
    assert found["status"] == "wrong", found
    assert not found["accuracy"].errors[error].ok


def test_a_window_that_is_not_the_cases_is_wrong(measurer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window with one key more than the case's, passed to transformers, is wrong."""
    from attnbench.worker.step import model

    own = model.configuration

    def wider(of: Case) -> Any:
        found = own(of)
        found.sliding_window += 1
        return found

    monkeypatch.setattr(model, "configuration", wider)
    found = measure(measurer, "step-eager", case("mistral"))
    assert found["status"] == "wrong", found
    assert not found["accuracy"].errors["out"].ok
