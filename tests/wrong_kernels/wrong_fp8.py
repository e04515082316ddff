"""fp8 backends on any device: a right one, like a library with e4m3 kernels, and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from right_attention import attention, probabilities, weigh
from torch import Tensor

from attnbench.backends.base import BackendBase
from attnbench.core.backend import Inputs, Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.fp8 import quantize_inputs, round_probabilities
from attnbench.core.machine import Device

Tensors = Mapping[str, Tensor]
E4M3 = torch.float8_e4m3fn


@dataclass
class Fp8Backend(BackendBase):
    """Right: e4m3 operands and probabilities, sums in float32; out in bf16, or in e4m3 with v's scale as cuDNN returns
    it.
    """

    narrow_out: bool = False
    name = "fp8"

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=("bmm<float>",))  # in place of an e4m3 product

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        operands, descale = self.quantize_inputs(inputs)
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            wide = {name: t.float() * descale[name] for name, t in operands.items()}
            out = self.attend(wide, options)
            return (out / descale["v"]).to(E4M3) if self.narrow_out else out.bfloat16()

        def canonical(out: Tensor) -> dict[str, Tensor]:
            return {"out": out, "descale_out": descale["v"]} if self.narrow_out else {"out": out}

        return Prepared(launch, canonical, reads=operands)

    def quantize_inputs(self, inputs: Inputs) -> tuple[Tensors, Tensors]:
        return quantize_inputs(inputs)

    def attend(self, wide: Tensors, options: dict[str, Any]) -> Tensor:
        return weigh(round_probabilities(probabilities(wide["q"], wide["k"], **options)), wide["v"])


class NarrowerOperands(Fp8Backend):
    """Rounds the operands in `names` further, or in another way, after reading them."""

    def __init__(self, names: str, narrow: Callable[[Tensor], Tensor]) -> None:
        self.names = names
        self.narrow = narrow

    def attend(self, wide: Tensors, options: dict[str, Any]) -> Tensor:
        return super().attend({n: self.narrow(t) if n in self.names else t for n, t in wide.items()}, options)


def mantissa(bits: int) -> Callable[[Tensor], Tensor]:
    """Return a function that rounds to so many bits of mantissa, with any exponent."""

    def narrow(t: Tensor) -> Tensor:
        fraction, exponent = torch.frexp(t)
        return torch.ldexp((fraction * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponent)

    return narrow


class ClippedOperands(Fp8Backend):
    """Scales by half of the largest value, so that some are cut off, as with the scale of another tensor."""

    def quantize_inputs(self, inputs: Inputs) -> tuple[Tensors, Tensors]:
        operands, descale = quantize_inputs(inputs)
        half = {name: factor / 2 for name, factor in descale.items()}
        cut = {name: (getattr(inputs, name) / half[name]).clamp(-448, 448).to(E4M3) for name in operands}
        return cut, half


class MissingScale(Fp8Backend):
    """Leaves out the scale of one operand."""

    def __init__(self, name: str) -> None:
        self.forgotten = name

    def quantize_inputs(self, inputs: Inputs) -> tuple[Tensors, Tensors]:
        operands, descale = quantize_inputs(inputs)
        return operands, {**descale, self.forgotten: torch.ones_like(descale["q"])}


class ComputesInBf16(Fp8Backend):
    """Computes from the inputs in bf16. With `unused_copies` it makes e4m3 copies and claims to read them."""

    def __init__(self, unused_copies: bool, noise: float = 0.0) -> None:
        self.unused_copies = unused_copies
        self.noise = noise

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            out = attention(inputs.q.float(), inputs.k.float(), inputs.v.float(), **options)
            return (out * (1 + self.noise * torch.randn_like(out))).bfloat16()

        return Prepared(
            launch, lambda out: {"out": out}, reads=quantize_inputs(inputs)[0] if self.unused_copies else {}
        )


class AddsRemainders(Fp8Backend):
    """Reads e4m3 copies, and adds the difference to the inputs to them."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        operands, descale = quantize_inputs(inputs)
        rest = {name: getattr(inputs, name).float() - t.float() * descale[name] for name, t in operands.items()}
        options = {"causal": case.causal, "softmax_scale": case.softmax_scale}

        def launch() -> Tensor:
            return attention(*(t.float() * descale[n] + rest[n] for n, t in operands.items()), **options).bfloat16()

        return Prepared(launch, lambda out: {"out": out}, reads=operands)


class ScalesInCanonical(Fp8Backend):
    """Scales the output in `canonical`, which is not timed."""

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        prepared = super().prepare(case, inputs)
        return Prepared(prepared.launch, lambda out: {"out": out * 1.0}, reads=prepared.reads)
