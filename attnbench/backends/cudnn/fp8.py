"""`cudnn-fp8`: cuDNN's attention in fp8 as graphs of cudnn-frontend, with one scale per tensor.

Checked against nvidia-cudnn-frontend 1.32.0 and its samples (test/python/sdpa/fp8). cuDNN writes e4m3 on Hopper, and
bf16 from Blackwell on (cuDNN 9.13). Each row of the output is a mean of rows of v, so no value is larger than the
largest of v. With v's own scale for the output nothing is therefore clipped, and little precision is lost.

In the backward dout, the gradient of the scores ("dP") and dq, dk and dv are e5m2. The scale of dP comes from its
largest possible value, the scales of dq, dk and dv from a first backward, with a margin. The backward multiplies
exp(s - lse) by 448; in long sequences without a mask these probabilities fall below e4m3's range (docs/backends.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.cudnn.graphs import Cudnn, Graph, Tensors, mask_options, stats_shape
from attnbench.backends.limits import Limits
from attnbench.core import fp8
from attnbench.core.backend import Prepared, Signature
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

BLACKWELL = (10, 0)
GRADIENTS = ("dq", "dk", "dv")


class CudnnFp8(Cudnn):
    """cuDNN's attention in e4m3, its backward in e4m3 and e5m2."""

    name = "cudnn-fp8"
    min_version = "1.14"  # the first with the option diagonal_alignment
    efficiency = 1.1
    compiles = 1.2
    limits: ClassVar = Limits(
        dtypes=("fp8",),
        capability=(9, 0),
        headdim=(16, 256),
        headdim_multiple=16,
        empty_rows=False,
        headdim_v=True,
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if reason := fp8_refusal(case, device):
            return reason
        s, d, d_v = case.shape, case.shape.headdim, case.shape.headdim_v
        newer = _is_blackwell(device)
        if not newer and case.causal and s.seqlen_q != s.seqlen_k:
            return "its causal mask in fp8 is not bottom-right aligned when seqlen_q != seqlen_k, before Blackwell"
        if newer and max(d, d_v) > 128 and (d, d_v) != (192, 128):
            return f"headdim {d} with headdim_v {d_v}: on Blackwell up to 128, or 192-128"
        return None

    def signature(self, case: Case, device: Device) -> Signature:
        return in_8_bits(super().signature(case, device), case, device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        operands, descale = fp8.quantize_inputs(inputs)
        blackwell = torch.cuda.get_device_capability(inputs.q.device) >= BLACKWELL
        out_dtype = torch.bfloat16 if blackwell else torch.float8_e4m3fn
        scales = _forward_scales(descale, out_dtype)
        given = {**operands, **scales}
        run_forward = forward_graph(case, operands, scales, out_dtype)
        of_out = {} if blackwell else {"descale_out": descale["v"]}

        def forward() -> dict[str, Tensor]:
            return run_forward(given)

        if not case.has_backward:
            return Prepared(forward, lambda raw: {"out": raw["out"], **of_out}, reads=operands)

        assert inputs.dout is not None
        kept = forward()
        given |= _backward_scales(descale, fp8.largest_score_gradient(inputs.dout, inputs.v))
        run_backward = backward_graph(case, {**operands, **kept}, given)

        def backward(kept: Tensors) -> dict[str, Tensor]:
            return {**kept, **run_backward({**given, **kept})}

        first = backward(kept)  # with scales of 1 for dq, dk and dv
        factors = {}
        for name in GRADIENTS:
            scale = given[f"scale_{name}"].fill_(fp8.gradient_scale(first[name]))
            factors[f"descale_{name}"] = (1 / scale).view(1)
        del first

        def named(raw: Tensors) -> dict[str, Tensor]:
            return {**{name: raw[name] for name in ("out", *GRADIENTS)}, **of_out, **factors}

        if case.direction == "fwd_bwd":
            return Prepared(lambda: backward(forward()), named, forward, reads=operands)
        return Prepared(lambda: backward(kept), named, forward, reads=operands)


def fp8_refusal(case: Case, device: Device) -> str | None:
    """Return why cuDNN's attention in fp8 refuses a case, whichever library calls it; None where it may accept it."""
    if not _is_blackwell(device) and case.shape.seqlen_q == 1:
        return "cuDNN's fp8 takes no single query before Blackwell"
    if _is_blackwell(device) and case.has_backward:
        return "cuDNN's backward in fp8 is wired up for Hopper only"
    if case.has_backward and (case.shape.headdim, case.shape.headdim_v) != (128, 128):
        return "cuDNN's backward in fp8 needs headdim 128"
    return None


def _is_blackwell(device: Device) -> bool:
    """Return whether a GPU is of Blackwell or newer; a device whose capability is not known counts as older."""
    return device.capability is not None and device.capability >= BLACKWELL


def in_8_bits(found: Signature, case: Case, device: Device) -> Signature:
    """Return a signature that requires kernels with 8-bit operands, which kernel names show on Hopper only.

    The error cannot show it: a result in 8 bits has a large error whatever the operands are.
    """
    if device.capability is None or _is_blackwell(device):
        return found
    passes = {"fprop": case.has_forward, "bprop": case.has_backward}
    return replace(found, runs=tuple(f"cudnn.*{name}.*_f8" for name, runs in passes.items() if runs))


def _forward_scales(descale: Tensors, out_dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the factors of the forward by cuDNN's names, (1, 1, 1, 1) each. Probabilities are scaled by 448.

    An e4m3 output has v's scale, a bf16 output has none.
    """
    found = {f"descale_{name}": descale[name].view(1, 1, 1, 1) for name in "qkv"}
    one = found["descale_q"].new_ones(1, 1, 1, 1)
    found |= {"descale_s": one / fp8.E4M3_MAX, "scale_s": one * fp8.E4M3_MAX}
    return found | {"scale_o": one if out_dtype.itemsize > 1 else 1 / found["descale_v"]}


def _backward_scales(descale: Tensors, largest_dp: float) -> dict[str, Tensor]:
    """Return the additional factors of the backward, (1, 1, 1, 1) each; the factors of dq, dk and dv are 1."""
    of_dp = descale["v"].new_full((1, 1, 1, 1), fp8.E5M2_MAX / largest_dp)
    found = {"descale_o": descale["v"].view(1, 1, 1, 1), "descale_dout": descale["dout"].view(1, 1, 1, 1)}
    found |= {"scale_dp": of_dp, "descale_dp": 1 / of_dp}
    return found | {f"scale_{name}": of_dp.new_ones(of_dp.shape) for name in GRADIENTS}


def forward_graph(
    case: Case, operands: Tensors, scales: Tensors, out_dtype: torch.dtype
) -> Callable[[Tensors], dict[str, Tensor]]:
    """Return the launch of the forward: inputs "q", "k", "v" and `scales`, output "out" in `out_dtype`.

    Where the case has a backward there is a second output, "stats": the log-sum-exp, (batch, nheads, seqlen_q, 1).
    """
    import torch

    s = case.shape
    graph = Graph(operands["q"])
    out, stats, amax_s, amax_o = graph.graph.sdpa_fp8(
        name="sdpa_fp8",
        **{name: graph.input(name, operands[name]) for name in "qkv"},
        **{name: graph.input(name, t) for name, t in scales.items()},
        generate_stats=case.has_backward,
        attn_scale=case.softmax_scale,
        **mask_options(case, graph.cudnn, prefix=""),
    )
    graph.output("out", out, (s.batch, s.seqlen_q, s.nheads, s.headdim_v), out_dtype)
    if case.has_backward:
        graph.output("stats", stats, stats_shape(case), torch.float32, by_head=True)
    _amax_outputs(graph, amax_s=amax_s, amax_o=amax_o)
    return graph.build()


def backward_graph(case: Case, operands: Tensors, scales: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
    """Return the launch of the backward: inputs "q", "k", "v", "out", "dout", "stats" and scales, outputs in e5m2."""
    import torch

    s = case.shape
    graph = Graph(operands["q"])
    names = {"o": "out", "dO": "dout", **{name: name for name in "qkv"}}
    of_scales = {f"descale_{name}": f"descale_{name}" for name in "qkvos"}
    of_scales |= {"descale_dO": "descale_dout", "descale_dP": "descale_dp", "scale_s": "scale_s"}
    of_scales |= {"scale_dQ": "scale_dq", "scale_dK": "scale_dk", "scale_dV": "scale_dv", "scale_dP": "scale_dp"}
    dq, dk, dv, *amax = graph.graph.sdpa_fp8_backward(
        name="sdpa_fp8_backward",
        **{name: graph.input(ours, operands[ours]) for name, ours in names.items()},
        **{name: graph.input(ours, scales[ours]) for name, ours in of_scales.items()},
        stats=graph.input("stats", operands["stats"], by_head=True),
        attn_scale=case.softmax_scale,
        **mask_options(case, graph.cudnn, prefix=""),
    )
    graph.output("dq", dq, (s.batch, s.seqlen_q, s.nheads, s.headdim), torch.float8_e5m2)
    graph.output("dk", dk, (s.batch, s.seqlen_k, s.nheads_k, s.headdim), torch.float8_e5m2)
    graph.output("dv", dv, (s.batch, s.seqlen_k, s.nheads_k, s.headdim_v), torch.float8_e5m2)
    _amax_outputs(graph, **dict(zip(("amax_dq", "amax_dk", "amax_dv", "amax_dp"), amax, strict=True)))
    return graph.build()


def _amax_outputs(graph: Graph, **symbols: Any) -> None:
    """Declare the outputs of the largest absolute values, (1, 1, 1, 1) each, without which a node is refused."""
    import torch

    for name, symbol in symbols.items():
        graph.output(name, symbol, (1, 1, 1, 1), torch.float32)
