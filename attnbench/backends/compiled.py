"""`flex`, `compile`: what torch.compile makes of attention: FlexAttention, and eager attention written plainly.

Checked against torch 2.11 and 2.13. Each is compiled for the one shape at hand (dynamic=False) and the compile time
is in the first call. Inductor names its Triton kernels, "triton_tem" for FlexAttention's template; an uncompiled
FlexAttention runs none, and Inductor's rewriting of eager attention into SDPA would show as a flash kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import BackendBase, autograd_prepared, scores_workspace
from attnbench.backends.installed import Limits
from attnbench.backends.masks import block_mask, block_mask_workspace, visible
from attnbench.core.backend import Prepared, Probe, Signature, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


class Compiler:
    """Readies torch.compile for a case."""

    def __init__(self) -> None:
        self._last: Case | None = None

    @staticmethod
    def load(found: Probe) -> Probe:
        """The same. Imports Inductor where that can be used, for a second and a half: like every library when its
        backend is loaded, not in a call."""
        if found.usable:
            import torch._inductor.config  # noqa: F401
        return found

    def ready(self, case: Case) -> None:
        """Forgets what was compiled for other cases: past a few of them it would compile for any shape, or no more.

        A backward that is timed again and again keeps its graph, so its buffers may not be given away.
        """
        import torch._dynamo
        import torch._functorch.config

        if case != self._last:
            torch._dynamo.reset()
        self._last = case
        torch._functorch.config.donated_buffer = case.direction != "bwd"


class Compiled(BackendBase):
    """What both have."""

    limits: ClassVar[Limits]

    def __init__(self) -> None:
        self._compiler = Compiler()

    def probe(self) -> Probe:
        return self._compiler.load(super().probe())

    def unsupported(self, case: Case, device: Device) -> str | None:
        return self.limits.refuses(case, device)


class Flex(Compiled):
    name = "flex"
    efficiency = 0.5
    checked: ClassVar[tuple[str, ...]] = ("torch 2.11", "torch 2.13")
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"), headdim=(16, 256), multiple=1, headdim_v=True, window=True, softcap=True
    )

    def workspace(self, case: Case) -> Workspace:
        return block_mask_workspace(case)

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=("triton_tem",))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        self._compiler.ready(case)
        compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        options: dict[str, Any] = {
            "score_mod": _softcap(case.softcap) if case.softcap else None,
            "block_mask": block_mask(case, inputs.q.device),
            "scale": case.softmax_scale,
            "enable_gqa": case.shape.nheads != case.shape.nheads_k,
        }

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out: Tensor = compiled(q, k, v, **options)
            return out

        return autograd_prepared(case, inputs, call, layout="bhsd")


class Compile(Compiled):
    name = "compile"
    efficiency = 0.5
    checked: ClassVar[tuple[str, ...]] = ("torch 2.11", "torch 2.13")
    verified: ClassVar = ("NVIDIA H200, torch 2.11",)
    limits: ClassVar = Limits(
        dtypes=("bf16", "fp16", "fp32"),
        capability=(7, 0),
        headdim=(1, 2**20),
        multiple=1,
        headdim_v=True,
        window=True,
        softcap=True,
    )

    def workspace(self, case: Case) -> Workspace:
        return scores_workspace(case, copies_fwd=2, copies_bwd=4)

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=("triton_(per|red|poi)_fused",), never=("flash|fmha|sdpa|scaled_dot_product",))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        self._compiler.ready(case)
        attention = torch.compile(eager, dynamic=False, fullgraph=True)
        s = case.shape
        seen = visible(case, inputs.q.device)
        if seen is not None:
            seen = seen.repeat(s.nheads // s.nheads_k, 1)
        blind = None if seen is None or bool(seen.any(-1).all()) else ~seen.any(-1, keepdim=True)

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rows = q.view(s.batch * s.nheads_k, -1, s.headdim)  # heads that share a key head become its rows
            keys, values = k.flatten(0, 1), v.flatten(0, 1)
            out: Tensor = attention(rows, keys, values, seen, blind, case.softmax_scale, case.softcap)
            return out.view(s.batch, s.nheads, s.seqlen_q, s.headdim_v)

        return autograd_prepared(case, inputs, call, layout="bhsd")


def eager(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, blind: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """softmax(q k^T * scale, masked) v of (batch * nheads_k, rows, headdim); rows in `blind` get 0."""
    import torch

    scores = torch.bmm(q, k.transpose(1, 2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    probabilities = torch.softmax(scores, dim=-1)
    if blind is not None:
        probabilities = probabilities.masked_fill(blind, 0.0)
    return torch.bmm(probabilities, v)


def _softcap(cap: float) -> Any:
    import torch

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:  # noqa: ARG001
        return cap * torch.tanh(score / cap)

    return score_mod
