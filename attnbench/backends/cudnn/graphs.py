"""`cudnn`: cuDNN's attention as graphs of cudnn-frontend, forward and backward; fp8.py has the graphs in fp8.

Checked against nvidia-cudnn-frontend 1.32.0 and its samples (50_sdpa_forward, 51_sdpa_backward).
`prepare` validates, plans and builds the graphs and allocates their workspace; a launch allocates the outputs and
executes. Tensors are (batch, seqlen, nheads, headdim) in memory; a graph sees them as (batch, nheads, seqlen, headdim).
cuDNN's causal mask is aligned top-left unless bottom-right is set, which needs seqlen_q <= seqlen_k. The sequences of a
ragged batch lie one after the other, and a graph sees each tensor as (batch, nheads, longest seqlen, headdim), with the
offset at which each sequence begins and a padding mask that ends it (test/python/sdpa/fp16.py).

In a cache of pages a graph sees k and v as (pages, nheads_k, page_size, headdim), the page table as (batch, 1, most
pages of a sequence, 1), and a padding mask (samples/python/53_sdpa_decode_with_paged_caches,
cudnn/sdpa/graph_analyzer.py).

A sink is (1, nheads, 1, 1) in float32, and so is its gradient (test/python/sdpa/fp16.py; frontend 1.14, cuDNN 9.13);
the log-sum-exp includes it. ALiBi has the slopes of its paper and the bias slope * (key - query), aligned top-left, and
needs a causal mask (include/cudnn_frontend/utils/attn_score_modifiers.h, _sdpa_validate.py).

`block_mask` is not wired up: it hides whole tiles of 128 x 128 and no single pairs, only the forward of the "unified"
node takes it, before cuDNN 9.21 without any other mask, and 9.19 plans no graph with it on an H200. The frontend's
modules block_sparse_attention and flex_attention are not wired up either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import BHSD, Paste
from attnbench.backends.shared.libraries import Library, installed_version
from attnbench.backends.shared.masks import effective_window
from attnbench.core.backend import Prepared, Probe, Unsupported, cu_seqlens
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.pages import queries

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

Tensors = Mapping[str, "Tensor"]
AMPERE, BLACKWELL_RTX = 8, 12  # major compute capabilities


CALL = """\
handle, dtype = cudnn.create_handle(), cudnn.data_type.BFLOAT16  # HALF for fp16
cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(q.device).cuda_stream)
graph = cudnn.pygraph(
    io_data_type=dtype, intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT,
    handle=handle,
)
given = {graph.tensor(dim=list(t.shape), stride=list(t.stride()), data_type=dtype): t for t in (q, k, v)}
like_q, like_k, like_v = given
result, _ = graph.sdpa(
    q=like_q, k=like_k, v=like_v, generate_stats=False, attn_scale=q.size(-1) ** -0.5{options}
)
out = q.new_empty(*q.shape[:-1], v.size(-1))
result.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(dtype)
graph.validate()
graph.build_operation_graph()
graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
graph.check_support()
graph.build_plans()  # so far once, what follows in each call
workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device=q.device)
graph.execute({**given, result: out}, workspace, handle=handle)"""
BOTTOM_RIGHT = "diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT"


class Cudnn(Library):
    name = "cudnn"
    paste = Paste(
        ("import cudnn", "import torch"),
        {"dense": BHSD + CALL},
        causal="diagonal_band_right_bound=0",
        unequal=f"{BOTTOM_RIGHT}, diagonal_band_right_bound=0",
        window=f"{BOTTOM_RIGHT}, diagonal_band_left_bound={{keys}},\n    diagonal_band_right_bound={{right}}",
        open_side="None",
        alibi="use_alibi_mask=True",
    )
    efficiency = 0.65
    compiles = 0.6
    runtime_checker = "cuDNN"
    module = "cudnn"
    distributions: ClassVar = ("nvidia-cudnn-frontend",)
    install = "pip install nvidia-cudnn-frontend"
    min_version = "1.13"  # the first with the argument generate_stats
    limits: ClassVar = Limits(
        headdim_v=True,
        window=True,
        empty_rows=False,
        sink=True,
        alibi=True,
        ragged=True,
        page_sizes=(1,),
    )
    forward_kernels = "cudnn.*(fprop|sdpa)|sdpa_?fwd|prefill"
    backward_kernels = "cudnn.*(bprop|sdpa)|sdpa_?bwd"

    def probe(self) -> Probe:
        """Return the versions of the frontend and of cuDNN, which comes with torch.

        torch is imported first, so that its cuDNN is loaded. Otherwise the frontend loads the system's, the process has
        two, and results can be wrong: fp8 with 9.14 beside torch's 9.19.
        """
        if installed_version(self.distributions):  # the import of torch takes seconds
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
        if case.window_size != (None, None) and any(of.seqlen_q > of.seqlen_k for of in case.sequences):
            return "its sliding window needs seqlen_q <= seqlen_k"
        if case.sink and case.shape.seqlen_q == 1:
            return "no attention sink for one query a sequence"
        if case.alibi and (reason := alibi_refusal(case)):
            return reason
        major = device.capability[0] if device.capability else None
        if case.is_ragged and case.has_backward and major in (AMPERE, BLACKWELL_RTX):
            return "ragged batches are forward only on Ampere, Ada and Blackwell RTX, without a packed log-sum-exp"
        if case.layout == "packed" and case.has_backward:
            return "its gradients are three tensors here, not the one of packed inputs"
        return None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        if case.is_paged:
            return _prepare_paged(case, inputs)
        packing = Packing(case, inputs.q.device) if case.is_ragged else None
        run_forward = forward_graph(case, inputs, packing)
        run_backward = backward_graph(case, inputs, packing) if case.has_backward else None
        given = {**inputs.values, **_sink(inputs)}
        given |= packing.tensors() if packing else {}
        plan = packing.tensors if packing else None

        def forward() -> Tensors:
            return run_forward(given)

        reads = _reads(given)
        if run_backward is None:
            return Prepared(forward, lambda raw: {"out": raw["out"]}, plan=plan, reads=reads)

        def backward(kept: Tensors) -> Tensors:
            return {**kept, **run_backward({**given, **kept})}

        def named(raw: Tensors) -> Tensors:
            of_sink = {"dsink": raw["dsink"].view(-1)} if case.sink else {}
            return {name: raw[name] for name in ("out", "dq", "dk", "dv")} | of_sink

        if case.direction == "fwd_bwd":
            return Prepared(lambda: backward(forward()), named, forward=forward, plan=plan, reads=reads)
        kept = forward()
        return Prepared(lambda: backward(kept), named, forward=forward, plan=plan, reads=reads)


class Packing:
    """The lengths and offsets of the sequences of a ragged batch, in the tensors from which graphs read them."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        self.strides: set[tuple[str, int]] = set()  # (side, elements of a token) of the offsets that graphs read

    def tensors(self) -> dict[str, Tensor]:
        """Return the lengths, (batch, 1, 1, 1), and the offsets in elements, (batch + 1, 1, 1, 1), by their names.

        A side is "q" (for q, out, dq and dout) or "k" (for k, v, dk and dv).
        """
        starts = dict(zip("qk", cu_seqlens(self.case, self.device), strict=True))
        starts = {side: t.long().view(-1, 1, 1, 1) for side, t in starts.items()}
        found = {f"seqlen_{side}": t.diff(dim=0).int() for side, t in starts.items()}
        return found | {offsets_name(side, stride): starts[side] * stride for side, stride in self.strides}

    def longest(self, side: str) -> int:
        """Return the length of the longest sequence."""
        return self.case.shape.seqlen_k if side == "k" else self.case.shape.seqlen_q

    def options(self, graph: Graph) -> dict[str, Any]:
        """Declare the lengths as inputs of the graph, and return the options of an sdpa node that name them."""
        import torch

        lengths = torch.empty(self.case.shape.batch, 1, 1, 1, dtype=torch.int32, device="meta")
        return {
            "use_padding_mask": True,
            "seq_len_q": graph.plain_input("seqlen_q", lengths),
            "seq_len_kv": graph.plain_input("seqlen_k", lengths),
        }


def offsets_name(side: str, stride: int) -> str:
    """Return the name of the offsets of tensors whose tokens are `stride` elements apart."""
    return f"offsets_{side}_{stride}"


class Graph:
    """One cuDNN graph whose tensors have names.

    Declare inputs and outputs with `input` and `output`, then `build` returns the launch.
    """

    def __init__(self, like: Tensor, packing: Packing | None = None) -> None:
        import cudnn

        self.cudnn = cudnn
        self.packing = packing
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

    def input(self, name: str, t: Tensor, *, by_head: bool = False) -> Any:
        """Declare an input with the shape, strides and dtype of t, and return cuDNN's tensor for it.

        t is (batch, seqlen, nheads, headdim), or (batch, nheads, seqlen, headdim) with `by_head`, as the graph sees it.
        """
        dim, stride = self._as_seen(name, t, by_head)
        self.symbols[name] = self.graph.tensor(
            dim=dim, stride=stride, data_type=_data_type(self.cudnn, t.dtype), name=name
        )
        self._place(name, stride)
        return self.symbols[name]

    def plain_input(self, name: str, t: Tensor) -> Any:
        """Declare an input of one value or one per sequence, such as lengths and offsets."""
        self.symbols[name] = self.graph.tensor(
            dim=list(t.shape), stride=list(t.stride()), data_type=_data_type(self.cudnn, t.dtype), name=name
        )
        return self.symbols[name]

    def plain_output(self, name: str, like: Tensor) -> Any:
        """Declare an output to pass to a node, with the shape and dtype of `like`, contiguous."""
        self.outputs[name] = (tuple(like.shape), like.dtype)
        return self.plain_input(name, like).set_output(True)

    def output(
        self, name: str, symbol: Any, shape: tuple[int, int, int, int], dtype: torch.dtype, *, by_head: bool = False
    ) -> None:
        """Declare an output. `shape` is its contiguous shape in memory; `by_head` is as in `input`."""
        import torch

        dim, stride = self._as_seen(name, torch.empty(shape, device="meta"), by_head)
        symbol.set_output(True).set_dim(dim).set_stride(stride)
        symbol.set_data_type(_data_type(self.cudnn, dtype))
        self.symbols[name], self.outputs[name] = symbol, (shape, dtype)
        self._place(name, stride)

    def _as_seen(self, name: str, t: Tensor, by_head: bool) -> tuple[list[int], list[int]]:
        """Return shape and strides of a tensor as the graph sees it; with offsets the batch's stride has no effect."""
        seen = t if by_head else t.transpose(1, 2)
        dim, stride = list(seen.shape), list(seen.stride())
        if self.packing:
            dim[0], dim[2] = self.packing.case.shape.batch, self.packing.longest(_side(name))
            stride[0] = dim[2] * stride[2]
        return dim, stride

    def _place(self, name: str, stride: list[int]) -> None:
        """Give a tensor of a ragged batch the offsets at which its sequences begin."""
        import torch

        if not self.packing:
            return
        place = (_side(name), stride[2])
        self.packing.strides.add(place)
        offsets = offsets_name(*place)
        if offsets not in self.symbols:
            entries = self.packing.case.shape.batch + 1
            self.plain_input(offsets, torch.empty(entries, 1, 1, 1, dtype=torch.int64, device="meta"))
        self.symbols[name].set_ragged_offset(self.symbols[offsets])

    def build(self) -> Callable[[Tensors], dict[str, Tensor]]:
        """Plan and build the graph, and return its launch, which takes inputs and returns outputs by name.

        The launch ignores inputs that the graph has not declared.

        Raises Unsupported where cuDNN refuses the graph.
        """
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


def forward_graph(case: Case, inputs: Inputs, packing: Packing | None = None) -> Callable[[Tensors], dict[str, Tensor]]:
    """Return the launch of the forward: inputs "q", "k", "v", output "out".

    Where the case has a backward there is a second output, "stats": the log-sum-exp, (batch, nheads, seqlen_q, 1), or
    (1, total_q, nheads, 1) of a ragged batch.
    """
    import torch

    s = case.extent
    graph = Graph(inputs.q, packing)
    out, stats = graph.graph.sdpa(
        name="sdpa",
        q=graph.input("q", inputs.q),
        k=graph.input("k", inputs.k),
        v=graph.input("v", inputs.v),
        generate_stats=case.has_backward,
        attn_scale=case.softmax_scale,
        **mask_options(case, graph.cudnn),
        **_sink_options(graph, inputs),
        **(packing.options(graph) if packing else {}),
    )
    graph.output("out", out, (s.batch, s.seqlen_q, s.nheads, s.headdim_v), inputs.q.dtype)
    if case.has_backward:
        graph.output("stats", stats, stats_shape(case), torch.float32, by_head=packing is None)
    return graph.build()


def _prepare_paged(case: Case, inputs: Inputs) -> Prepared:
    """Return the call of a paged case. Queries have offsets where their number differs between sequences."""
    s, table = case.shape, inputs.page_table
    assert table is not None
    like = case.has_like_queries
    packing = Packing(case, inputs.q.device)
    graph = Graph(inputs.q, None if like else packing)
    q = queries(case, inputs.q) if like else inputs.q
    tables = {f"page_table_{side}": table.view(s.batch, 1, -1, 1) for side in "kv"}
    out, _ = graph.graph.sdpa(
        name="sdpa",
        q=graph.input("q", q),
        k=graph.plain_input("k", inputs.k.transpose(1, 2)),
        v=graph.plain_input("v", inputs.v.transpose(1, 2)),
        generate_stats=False,
        attn_scale=case.softmax_scale,
        **{f"paged_attention_{name[-1]}_table": graph.plain_input(name, t) for name, t in tables.items()},
        paged_attention_max_seq_len_kv=s.seqlen_k,
        **mask_options(case, graph.cudnn),
        **_sink_options(graph, inputs),
        **packing.options(graph),
    )
    graph.output("out", out, (*q.shape[:3], s.headdim_v), q.dtype)
    run = graph.build()
    given = {"q": q, "k": inputs.k, "v": inputs.v, **_sink(inputs), **tables, **packing.tensors()}
    named = (*inputs.q.shape[:3], s.headdim_v)
    return Prepared(
        lambda: run(given), lambda raw: {"out": raw["out"].view(named)}, plan=packing.tensors, reads=_reads(given)
    )


def _sink(inputs: Inputs) -> Tensors:
    """Return the sink as cuDNN takes it, (1, nheads, 1, 1) in float32, by its name."""
    return {} if inputs.sink is None else {"sink": inputs.sink.float().view(1, -1, 1, 1)}


def _reads(given: Tensors) -> Tensors:
    """Return the copies that a launch reads, for Prepared.reads."""
    return {name: t.view(-1) for name, t in given.items() if name == "sink"}


def _sink_options(graph: Graph, inputs: Inputs) -> dict[str, Any]:
    """Return the option of an sdpa node that names the sink."""
    sink = _sink(inputs)
    return {"sink_token": graph.plain_input("sink", sink["sink"])} if sink else {}


def alibi_refusal(case: Case) -> str | None:
    """Return why cuDNN's ALiBi (causal, aligned top-left) differs from the case's; None where it is the same."""
    if not case.causal or case.shape.seqlen_q == 1:
        return "its ALiBi is causal only, with more queries than one"
    return None if case.has_equal_lengths else "its ALiBi is aligned top-left, so that seqlen_q must equal seqlen_k"


def backward_graph(
    case: Case, inputs: Inputs, packing: Packing | None = None
) -> Callable[[Tensors], dict[str, Tensor]]:
    """Return the launch of the backward: inputs "q", "k", "v", "out", "stats", "dout", outputs "dq", "dk", "dv"."""
    import torch

    s, dtype = case.extent, inputs.q.dtype
    graph = Graph(inputs.q, packing)
    assert inputs.dout is not None
    stats = torch.empty(stats_shape(case), device="meta")
    out = torch.empty(s.batch, s.seqlen_q, s.nheads, s.headdim_v, device="meta", dtype=dtype)
    totals = {"max_total_seq_len_q": s.seqlen_q, "max_total_seq_len_kv": s.seqlen_k}  # they size the workspace
    of_sink = {"dSink_token": graph.plain_output("dsink", _sink(inputs)["sink"])} if case.sink else {}
    dq, dk, dv = graph.graph.sdpa_backward(
        name="sdpa_backward",
        q=graph.input("q", inputs.q),
        k=graph.input("k", inputs.k),
        v=graph.input("v", inputs.v),
        o=graph.input("out", out),
        dO=graph.input("dout", inputs.dout),
        stats=graph.input("stats", stats, by_head=packing is None),
        attn_scale=case.softmax_scale,
        **mask_options(case, graph.cudnn),
        **_sink_options(graph, inputs),
        **of_sink,
        **(packing.options(graph) | {name: -(-n // 64) * 64 for name, n in totals.items()} if packing else {}),
    )
    graph.output("dq", dq, (s.batch, s.seqlen_q, s.nheads, s.headdim), dtype)
    graph.output("dk", dk, (s.batch, s.seqlen_k, s.nheads_k, s.headdim), dtype)
    graph.output("dv", dv, (s.batch, s.seqlen_k, s.nheads_k, s.headdim_v), dtype)
    return graph.build()


def stats_shape(case: Case) -> tuple[int, int, int, int]:
    """Return the shape of the log-sum-exp in memory: heads before tokens, in packed sequences tokens before heads."""
    s = case.extent
    return (1, s.seqlen_q, s.nheads, 1) if case.is_ragged else (s.batch, s.nheads, s.seqlen_q, 1)


def _side(name: str) -> str:
    """Return "q" for a tensor with the sequences of the queries, "k" for one with the sequences of the keys."""
    return "k" if name in ("k", "v", "dk", "dv") else "q"


@functools.cache
def _handle() -> Any:
    """Return the cuDNN handle of this process; each launch sets its stream."""
    import cudnn

    return cudnn.create_handle()


def mask_options(case: Case, cudnn: Any, prefix: str = "diagonal_band_") -> dict[str, Any]:
    """Return the mask options of an sdpa node. cuDNN's left bound includes the diagonal, window_size does not."""
    left, right = effective_window(case)
    if left is None and right is None:
        return {}
    names = cudnn.diagonal_alignment
    mask: dict[str, Any] = {"diagonal_alignment": names.TOP_LEFT if case.has_equal_lengths else names.BOTTOM_RIGHT}
    if case.alibi:
        mask["use_alibi_mask"] = True
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
        torch.float8_e5m2: "FP8_E5M2",
        torch.int32: "INT32",
        torch.int64: "INT64",
    }
    return getattr(cudnn.data_type, names[dtype])
