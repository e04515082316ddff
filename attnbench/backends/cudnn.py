"""`cudnn`, `cudnn-fp8`: cuDNN's attention as graphs of cudnn-frontend, forward and backward.

Checked against nvidia-cudnn-frontend 1.32.0 and its samples (50_sdpa_forward, 51_sdpa_backward, test/python/sdpa/fp8).
Graphs are validated, planned and built outside of what is timed, with their workspace; a launch allocates the outputs
and executes. Tensors stay (batch, seqlen, nheads, headdim) in memory; a graph sees them as (batch, nheads, seqlen,
headdim). Causal is aligned top-left unless told bottom-right, which wants seqlen_q <= seqlen_k.

In fp8 cuDNN writes e4m3 on Hopper, bf16 from Blackwell on (cuDNN 9.13). Each row of the output is a mean of rows of v,
so no value exceeds v's largest: with v's own scale for the output nothing is cut off, and little is lost below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Layout
from attnbench.backends.installed import Library, Limits, installed_version
from attnbench.backends.masks import band
from attnbench.core.backend import Prepared, Probe, Signature, Unsupported
from attnbench.core.case import Case
from attnbench.core.fp8 import LARGEST, quantized
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

Tensors = Mapping[str, "Tensor"]
BLACKWELL = (10, 0)


class Cudnn(Library):
    name = "cudnn"
    efficiency = 0.65
    asks = "cuDNN"
    module = "cudnn"
    distributions: ClassVar = ("nvidia-cudnn-frontend",)
    install = "pip install nvidia-cudnn-frontend"
    oldest = "1.13"  # generate_stats
    needs: ClassVar = ("pygraph",)
    checked: ClassVar = ("1.32.0",)
    verified: ClassVar = ("NVIDIA H200, cudnn-frontend 1.32.0, cuDNN 9.19",)
    limits: ClassVar = Limits(headdim_v=True, window=True, empty_rows=False)
    forward_kernels = "cudnn.*(fprop|sdpa)|sdpa_?fwd|prefill"
    backward_kernels = "cudnn.*(bprop|sdpa)|sdpa_?bwd"

    def probe(self) -> Probe:
        """The frontend is importable without cuDNN, which torch brings along.

        torch comes first, so that the process has one cuDNN: before it the frontend loads the system's. That was 9.14
        on an H200's host, and all six fp8 cells were wrong; with torch's own, 9.19, they are right.
        """
        if installed_version(self.distributions):  # else torch's import, of seconds, would be in vain
            import torch  # noqa: F401
        found = super().probe()
        if not found.usable:
            return found
        import cudnn

        try:
            n = int(cudnn.backend_version())
        except Exception as error:
            reason = f"cudnn-frontend finds no cuDNN: {' '.join(str(error).split())}"
            return Probe(reason=reason, install="pip install nvidia-cudnn-cu13  # or -cu12, as torch's CUDA")
        return Probe(version=f"{found.version}, cuDNN {n // 10000}.{n // 100 % 100}.{n % 100}")

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.window_size != (None, None) and case.shape.seqlen_q > case.shape.seqlen_k:
            return "its sliding window wants seqlen_q <= seqlen_k"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        run_forward = forward_graph(case, inputs)
        q, k, v, dout = inputs.q, inputs.k, inputs.v, inputs.dout
        if not case.has_backward:
            return Prepared(lambda: run_forward({"q": q, "k": k, "v": v}), lambda raw: {"out": raw["out"]})
        if dout is None:
            raise ValueError("a backward needs inputs.dout")
        run_backward = backward_graph(case, inputs)

        def forward() -> Tensors:
            return run_forward({"q": q, "k": k, "v": v})

        def backward(kept: Tensors) -> Tensors:
            return {**kept, **run_backward({"q": q, "k": k, "v": v, "dout": dout, **kept})}

        def named(raw: Tensors) -> Tensors:
            return {name: raw[name] for name in ("out", "dq", "dk", "dv")}

        if case.direction == "fwd_bwd":
            return Prepared(lambda: backward(forward()), named, forward=forward)
        kept = forward()
        return Prepared(lambda: backward(kept), named, forward=forward)


class CudnnFp8(Cudnn):
    """e4m3 with one scale per tensor, forward."""

    name = "cudnn-fp8"
    oldest = "1.14"  # diagonal_alignment
    verified: ClassVar = ("NVIDIA H200, cudnn-frontend 1.32.0, cuDNN 9.19",)
    efficiency = 1.1
    limits: ClassVar = Limits(
        dtypes=("fp8",),
        capability=(9, 0),
        headdim=(16, 256),
        multiple=16,
        backward=False,
        empty_rows=False,
        headdim_v=True,
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        d, d_v = case.shape.headdim, case.shape.headdim_v
        newer = device.capability is not None and device.capability >= BLACKWELL
        if newer and max(d, d_v) > 128 and (d, d_v) != (192, 128):
            return f"headdim {d} with headdim_v {d_v}: on Blackwell to 128, or 192-128"
        return None

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(runs=(self.forward_kernels,))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        import torch

        operands, descale = quantized(inputs)
        if torch.cuda.get_device_capability(inputs.q.device) >= BLACKWELL:
            run = fp8_graph(case, operands, descale, torch.bfloat16)
            return Prepared(run, lambda raw: {"out": raw["out"]}, reads=operands)
        run = fp8_graph(case, operands, descale, torch.float8_e4m3fn)
        return Prepared(run, lambda raw: {"out": raw["out"], "descale_out": descale["v"]}, reads=operands)


class Graph:
    """One graph from its making to its execution, by names: `input` and `output` declare, `build` gives the launch."""

    def __init__(self, like: Tensor) -> None:
        import cudnn

        self.cudnn = cudnn
        self.device = like.device
        self.handle = _handle()
        self.graph = cudnn.pygraph(
            io_data_type=_data_type(cudnn, like.dtype),
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=self.handle,
        )
        self.symbols: dict[str, Any] = {}
        self.outputs: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def input(self, name: str, t: Tensor, layout: Layout = "bshd") -> Any:
        """Declares an input like t; the graph sees (batch, nheads, seqlen, headdim)."""
        seen = t.transpose(1, 2) if layout == "bshd" else t
        self.symbols[name] = self.graph.tensor(
            dim=list(seen.shape), stride=list(seen.stride()), data_type=_data_type(self.cudnn, t.dtype), name=name
        )
        return self.symbols[name]

    def output(
        self, name: str, symbol: Any, shape: tuple[int, int, int, int], dtype: torch.dtype, layout: Layout = "bshd"
    ) -> None:
        """`shape` is that in memory, contiguous."""
        import torch

        seen = torch.empty(shape, device="meta")
        seen = seen.transpose(1, 2) if layout == "bshd" else seen
        symbol.set_output(True).set_dim(list(seen.shape)).set_stride(list(seen.stride()))
        symbol.set_data_type(_data_type(self.cudnn, dtype))
        self.symbols[name], self.outputs[name] = symbol, (shape, dtype)

    def build(self) -> Callable[[Tensors], dict[str, Tensor]]:
        """Plans and builds. The launch takes the inputs by name and returns the outputs. Raises Unsupported."""
        import torch

        graph, cudnn, handle, device = self.graph, self.cudnn, self.handle, self.device
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.check_support()
            graph.build_plans()
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
            raise Unsupported(f"cuDNN refuses: {' '.join(str(error).split())[:300]}") from None
        workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=device)
        symbols, outputs = self.symbols, self.outputs

        def launch(given: Tensors) -> dict[str, Tensor]:
            results = {n: torch.empty(shape, dtype=dtype, device=device) for n, (shape, dtype) in outputs.items()}
            stream = torch.cuda.current_stream(device).cuda_stream
            cudnn.set_stream(handle=handle, stream=stream)
            bound = {symbols[n]: t for n, t in (*given.items(), *results.items()) if n in symbols}
            graph.execute(bound, workspace, handle=handle)
            return results

        return launch


def forward_graph(case: Case, inputs: Inputs) -> Callable[[Tensors], dict[str, Tensor]]:
    """{"q", "k", "v"} -> {"out"}; before a backward also "stats", the log-sum-exp, (batch, nheads, seqlen_q, 1)."""
    import torch

    s = case.shape
    graph = Graph(inputs.q)
    out, stats = graph.graph.sdpa(
        name="sdpa",
        q=graph.input("q", inputs.q),
        k=graph.input("k", inputs.k),
        v=graph.input("v", inputs.v),
        generate_stats=case.has_backward,
        attn_scale=case.softmax_scale,
        **_mask(case, graph.cudnn),
    )
    graph.output("out", out, (s.batch, s.seqlen_q, s.nheads, s.headdim_v), inputs.q.dtype)
    if case.has_backward:
        graph.output("stats", stats, (s.batch, s.nheads, s.seqlen_q, 1), torch.float32, layout="bhsd")
    return graph.build()


def backward_graph(case: Case, inputs: Inputs) -> Callable[[Tensors], dict[str, Tensor]]:
    """{"q", "k", "v", "out", "stats", "dout"} -> {"dq", "dk", "dv"}."""
    import torch

    s, dtype = case.shape, inputs.q.dtype
    graph = Graph(inputs.q)
    assert inputs.dout is not None
    stats = torch.empty(s.batch, s.nheads, s.seqlen_q, 1, device="meta")
    dq, dk, dv = graph.graph.sdpa_backward(
        name="sdpa_backward",
        q=graph.input("q", inputs.q),
        k=graph.input("k", inputs.k),
        v=graph.input("v", inputs.v),
        o=graph.input("out", inputs.dout),
        dO=graph.input("dout", inputs.dout),
        stats=graph.input("stats", stats, layout="bhsd"),
        attn_scale=case.softmax_scale,
        **_mask(case, graph.cudnn),
    )
    graph.output("dq", dq, (s.batch, s.seqlen_q, s.nheads, s.headdim), dtype)
    graph.output("dk", dk, (s.batch, s.seqlen_k, s.nheads_k, s.headdim), dtype)
    graph.output("dv", dv, (s.batch, s.seqlen_k, s.nheads_k, s.headdim_v), dtype)
    return graph.build()


def fp8_graph(
    case: Case, operands: Tensors, descale: Tensors, out_dtype: torch.dtype
) -> Callable[[], dict[str, Tensor]]:
    """The launch. Probabilities are scaled by 448; the output as v is where it is e4m3, else not."""
    import torch

    s = case.shape
    one = torch.ones(1, 1, 1, 1, device=operands["q"].device)
    scales = {f"descale_{name}": factor.view(1, 1, 1, 1) for name, factor in descale.items()}
    scales |= {"descale_s": one / LARGEST, "scale_s": one * LARGEST}
    scales["scale_o"] = one if out_dtype.itemsize > 1 else one / scales["descale_v"]
    graph = Graph(operands["q"])
    out, _, amax_s, amax_o = graph.graph.sdpa_fp8(
        name="sdpa_fp8",
        **{name: graph.input(name, t) for name, t in operands.items()},
        **{name: graph.input(name, t) for name, t in scales.items()},
        generate_stats=False,
        attn_scale=case.softmax_scale,
        **_mask(case, graph.cudnn, prefix=""),
    )
    graph.output("out", out, (s.batch, s.seqlen_q, s.nheads, s.headdim_v), out_dtype)
    graph.output("amax_s", amax_s, (1, 1, 1, 1), torch.float32)
    graph.output("amax_o", amax_o, (1, 1, 1, 1), torch.float32)
    launch = graph.build()
    given = {**operands, **scales}
    return lambda: launch(given)


@functools.cache
def _handle() -> Any:
    """One for the process, whose stream is set at each launch."""
    import cudnn

    return cudnn.create_handle()


def _mask(case: Case, cudnn: Any, prefix: str = "diagonal_band_") -> dict[str, Any]:
    """The band of keys that a query sees. cuDNN's left bound counts the diagonal, ours does not."""
    left, right = band(case)
    if left is None and right is None:
        return {}
    equal = case.shape.seqlen_q == case.shape.seqlen_k
    names = cudnn.diagonal_alignment
    mask: dict[str, Any] = {"diagonal_alignment": names.TOP_LEFT if equal else names.BOTTOM_RIGHT}
    if left is not None:
        mask[f"{prefix}left_bound"] = left + 1
    if right is not None:
        mask[f"{prefix}right_bound"] = right
    return mask


def _data_type(cudnn: Any, dtype: torch.dtype) -> Any:
    import torch

    names = {
        torch.bfloat16: "BFLOAT16",
        torch.float16: "HALF",
        torch.float32: "FLOAT",
        torch.float8_e4m3fn: "FP8_E4M3",
    }
    return getattr(cudnn.data_type, names[dtype])
