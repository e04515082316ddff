"""What backends share: defaults for the protocol, and `autograd_prepared` for anything differentiable by torch."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from attnbench.core.backend import Prepared, Probe, Signature, Unsupported, Workspace
from attnbench.core.case import ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

Layout = Literal["bshd", "bhsd"]


class BackendBase:
    """Defaults: needs torch only, supports what the subclass does not refuse, allocates nothing large."""

    name = ""
    efficiency = 0.4  # of a matmul's rate, roughly: for the forecast of time only
    starts_compiler = False  # for minutes, as nvcc, in a first call: its jobs have longer before they count as hung
    verified: ClassVar[tuple[str, ...]] = ()  # the hardware, with versions, on which it gave right results
    asks: ClassVar[str] = ""  # whose own check may refuse, in `prepare` or the first launch, what `unsupported` takes

    def __init_subclass__(cls) -> None:
        """A subclass runs other kernels: `verified` is what it says itself."""
        super().__init_subclass__()
        cls.verified = vars(cls).get("verified", ())

    def probe(self) -> Probe:
        try:
            return Probe(version=f"torch {importlib.metadata.version('torch')}")
        except importlib.metadata.PackageNotFoundError:
            return Probe(reason="torch is not installed", install="pip install torch")

    def unsupported(self, case: Case, device: Device) -> str | None:
        return None

    def workspace(self, case: Case) -> Workspace:
        return Workspace()

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature()

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        raise NotImplementedError


def no_extras(case: Case, *, dropout: bool = False) -> str | None:
    """The reason for backends that know full and causal masks only, no fp8, and perhaps dropout."""
    if case.dtype == "fp8":
        return "no fp8"
    if case.window_size != (None, None):
        return "no sliding window"
    if case.softcap:
        return "no softcap"
    return "no dropout" if case.dropout_p and not dropout else None


def autograd_prepared(
    case: Case, inputs: Inputs, fn: Callable[[Tensor, Tensor, Tensor], Tensor], layout: Layout = "bshd"
) -> Prepared:
    """The closures for a function that autograd can differentiate.

    `fn` takes q, k, v and returns out, all in `layout`: (batch, seqlen, nheads, headdim) or
    (batch, nheads, seqlen, headdim), contiguous; copies into that layout are made here, not in the launch.
    Gradients come from torch.autograd.grad, which returns new tensors: nothing accumulates, nothing is to clear.
    """
    import torch

    def arrange(t: Tensor) -> Tensor:
        return t if layout == "bshd" else t.transpose(1, 2).contiguous()

    def view(t: Tensor) -> Tensor:
        return t if layout == "bshd" else t.transpose(1, 2)

    q, k, v = (arrange(t).detach() for t in (inputs.q, inputs.k, inputs.v))

    def forward() -> Tensor:
        return fn(q, k, v)

    if not case.has_backward:
        return Prepared(launch=forward, canonical=lambda out: {"out": view(out)}, reads={"q": q, "k": k, "v": v})

    if inputs.dout is None:
        raise ValueError("a backward needs inputs.dout")
    dout = arrange(inputs.dout)
    reads = {"q": q, "k": k, "v": v, "dout": dout}
    for t in (q, k, v):
        t.requires_grad_()

    def grads(out: Tensor, *, keep: bool) -> tuple[Tensor, ...]:
        if not out.requires_grad:
            raise Unsupported("not differentiable: its output has no gradient")
        return torch.autograd.grad(out, (q, k, v), dout, retain_graph=keep)

    def named(out: Tensor, dq: Tensor, dk: Tensor, dv: Tensor) -> dict[str, Tensor]:
        return {"out": view(out.detach()), "dq": view(dq), "dk": view(dk), "dv": view(dv)}

    if case.direction == "fwd_bwd":

        def both() -> tuple[Tensor, ...]:
            out = forward()
            return (out, *grads(out, keep=False))

        return Prepared(both, canonical=lambda raw: named(*raw), forward=forward, reads=reads)

    out = forward()  # once: the timed backward runs over this graph again and again
    return Prepared(lambda: grads(out, keep=True), canonical=lambda raw: named(out, *raw), forward=forward, reads=reads)


def scores_workspace(case: Case, *, copies_fwd: float, copies_bwd: float, what: str = "scores") -> Workspace:
    """The forecast for implementations that write the seqlen_q x seqlen_k score matrix to memory.

    `copies` are how many of them are alive at the peak; each is taken to be written once and read once or twice.
    """
    s = case.shape
    one = s.batch * s.nheads * s.seqlen_q * s.seqlen_k * ITEMSIZE[case.dtype]
    copies = copies_bwd if case.has_backward else copies_fwd
    return Workspace(nbytes=int(one * copies), what=what, passes=3.0, dense=True)


def sees_no_key(case: Case) -> bool:
    """Whether some query sees no key at all: the first, where there are more queries than keys to their right."""
    right = 0 if case.causal else case.window_size[1]
    return right is not None and case.shape.seqlen_q - case.shape.seqlen_k > right
