"""Shared by all backends: defaults for the protocol, and `autograd_prepared` for what torch can differentiate."""

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
    """Defaults for a backend that needs only torch, supports every case, and allocates nothing large."""

    name = ""
    efficiency = 0.4  # rough fraction of a matmul's rate, for the forecast of time only
    starts_compiler = False  # a first call may compile for minutes (nvcc); its jobs then have a longer timeout
    verified: ClassVar[tuple[str, ...]] = ()  # hardware and versions on which its results were right
    # The library that checks cases itself, where it may refuse in `prepare` or the first launch a case that
    # `unsupported` accepts; "" where there is none.
    runtime_checker: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # `verified` must not be inherited: a subclass runs other kernels.
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


def basic_features_only(case: Case, *, dropout: bool = False) -> str | None:
    """Return why a backend without fp8, windows and softcap cannot run the case, or None where it can.

    `dropout` says whether the backend has dropout.
    """
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
    """Return the prepared call of a function that autograd can differentiate, or that is forward only.

    `fn` takes q, k, v and returns out, all contiguous in `layout`: "bshd" is (batch, seqlen, nheads, headdim), "bhsd"
    is (batch, nheads, seqlen, headdim). Copies into that layout are made here and are not timed. Gradients come from
    torch.autograd.grad, which returns new tensors, so nothing accumulates and nothing must be cleared.

    The launch raises Unsupported where the case has a backward and the output of `fn` has no gradient.
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

    out = forward()  # every timed backward runs over this one graph
    return Prepared(lambda: grads(out, keep=True), canonical=lambda raw: named(out, *raw), forward=forward, reads=reads)


def scores_workspace(case: Case, *, copies_fwd: float, copies_bwd: float, what: str = "scores") -> Workspace:
    """Return the workspace of an implementation that writes the seqlen_q x seqlen_k score matrix to memory.

    `copies_fwd` and `copies_bwd` are how many such matrices are alive at the peak, without and with a backward. Each
    is assumed to be written one time and read two times.
    """
    s = case.shape
    one = s.batch * s.nheads * s.seqlen_q * s.seqlen_k * ITEMSIZE[case.dtype]
    copies = copies_bwd if case.has_backward else copies_fwd
    return Workspace(nbytes=int(one * copies), what=what, passes=3.0, dense=True)


def has_empty_rows(case: Case) -> bool:
    """Return whether some query sees no key at all, so that its row of probabilities is empty.

    Where the right side is limited and seqlen_q > seqlen_k, the first queries stand before the first key.
    """
    right = 0 if case.causal else case.window_size[1]
    return right is not None and case.shape.seqlen_q - case.shape.seqlen_k > right
