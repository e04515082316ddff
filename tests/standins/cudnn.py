"""Stand-in for cudnn-frontend 1.32.0: graphs of one attention node, planned, built and executed in that order."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from standins import function, modules
from standins.attend import alibi_slopes, attend

VERSIONS = {"nvidia-cudnn-frontend": "1.32.0"}
STAGES = ["validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans"]
DTYPES = {
    "HALF": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "FLOAT": torch.float32,
    "FP8_E4M3": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
    "INT32": torch.int32,
    "INT64": torch.int64,
}
LARGEST_E5M2 = 57344

data_type = enum.Enum("data_type", list(DTYPES))
heur_mode = enum.Enum("heur_mode", ["A", "B", "FALLBACK"])
diagonal_alignment = enum.Enum("diagonal_alignment", ["TOP_LEFT", "BOTTOM_RIGHT"])


class cudnnGraphNotSupportedError(RuntimeError):  # noqa: N801
    pass


class Symbol:
    """A tensor of a graph, with shape and strides before memory is bound to it; set_X(value) sets X."""

    def __init__(self, dim: list[int] | None = None, stride: list[int] | None = None, dtype: Any = None) -> None:
        self.dim, self.stride, self.data_type, self.output = dim or [], stride or [], dtype, False
        self.ragged_offset: Symbol | None = None

    def __getattr__(self, name: str) -> Callable[[Any], Symbol]:
        field = name.removeprefix("set_")
        if field == name or field not in vars(self):
            raise AttributeError(name)
        return lambda value: (setattr(self, field, value), self)[1]

    def of(self, t: Tensor) -> Tensor:
        """Return the bound memory with the shape and strides that the graph declared."""
        assert DTYPES[self.data_type.name] == t.dtype
        assert math.prod(self.dim) == t.numel()
        return t.as_strided(self.dim, self.stride)

    def part_of(self, t: Tensor, offsets: list[int], b: int, length: int) -> Tensor:
        """Return sequence b of a ragged batch, (1, nheads, seqlen, headdim); all sequences must fill the memory."""
        assert DTYPES[self.data_type.name] == t.dtype
        assert offsets[-1] == t.numel()
        assert offsets[b + 1] - offsets[b] == length * self.stride[2]
        assert length <= self.dim[2]
        return t.as_strided((1, self.dim[1], length, self.dim[3]), self.stride, offsets[b])


MASK = (
    "attn_scale=None, diagonal_alignment=None, diagonal_band_left_bound=None, diagonal_band_right_bound=None, "
    "use_padding_mask=False, seq_len_q=None, seq_len_kv=None, use_alibi_mask=False, sink_token=None"
)
MASK_FP8 = "attn_scale=None, diagonal_alignment=None, left_bound=None, right_bound=None"
ABSENT = ("seq_len_q", "paged_attention_k_table", "sink_token", "dSink_token")
ABSENT += ("use_alibi_mask", "max_total_seq_len_q", "stats", "descale_q", "generate_stats")


def _add(of: Any) -> tuple[Symbol | None, ...]:
    """Add the node of a graph, with None for parameters that its kind lacks, and return its results."""
    node = SimpleNamespace(**{**dict.fromkeys(ABSENT), **vars(of)})
    node.left = vars(of).get("left_bound", vars(of).get("diagonal_band_left_bound"))
    node.right = vars(of).get("right_bound", vars(of).get("diagonal_band_right_bound"))
    count = (3 if node.stats else 2) + (0 if node.descale_q is None else 4 if node.stats else 2)
    results: list[Symbol | None] = [Symbol() for _ in range(count)]
    if not node.stats and not node.generate_stats:
        results[1] = None
    of.self.node, of.self.results = node, results
    return (*results,)


class pygraph:  # noqa: N801
    def __init__(self, **options: Any) -> None:
        assert {*options} == {"io_data_type", "intermediate_data_type", "compute_data_type", "handle"}
        self.stage = 0

    tensor = function(
        "self, dim, stride=None, data_type=None, is_virtual=False, is_pass_by_value=False, ragged_offset=None, "
        "reordering_type=None, name='', uid=None",
        lambda of: Symbol(of.dim, of.stride, of.data_type),
    )
    sdpa = function(
        f"self, q, k, v, *, is_inference=None, {MASK}, paged_attention_k_table=None, paged_attention_v_table=None, "
        "paged_attention_max_seq_len_kv=None, name='', generate_stats=None",
        _add,
    )
    sdpa_backward = function(
        f"self, q, k, v, o, dO, stats, *, {MASK}, max_total_seq_len_q=None, max_total_seq_len_kv=None, "
        "use_deterministic_algorithm=False, dSink_token=None, name=''",
        _add,
    )
    sdpa_fp8 = function(
        "self, q, k, v, descale_q, descale_k, descale_v, descale_s, scale_s, scale_o, *, is_inference=None, "
        f"{MASK_FP8}, name='', generate_stats=None",
        _add,
    )
    sdpa_fp8_backward = function(
        "self, q, k, v, o, dO, stats, descale_q, descale_k, descale_v, descale_o, descale_dO, descale_s, descale_dP, "
        f"scale_s, scale_dQ, scale_dK, scale_dV, scale_dP, *, {MASK_FP8}, name=''",
        _add,
    )

    def __getattr__(self, name: str) -> Any:
        if name not in STAGES:
            raise AttributeError(name)

        def advance(*_: Any) -> None:
            assert STAGES[self.stage] == name, f"{name} out of turn"
            self.stage += 1
            for message, holds in self._rules().items():
                if not holds:
                    raise cudnnGraphNotSupportedError(message)

        return advance

    def _rules(self) -> dict[str, bool]:
        """Return the frontend's rules for a graph, by its messages."""
        node, bottom_right = self.node, self.node.diagonal_alignment is diagonal_alignment.BOTTOM_RIGHT
        (batch, heads, rows, _), keys, ragged = node.q.dim, node.k.dim[2], node.q.ragged_offset is not None
        padded, tables = node.seq_len_q is not None, node.paged_attention_k_table
        sinks = [symbol for symbol in (node.sink_token, node.dSink_token) if symbol is not None]
        rules = {
            "Ragged offsets are only supported with padding mask.": not ragged or padded,
            "Paged caches can only be used in combination with padding mask": tables is None or padded,
            "max_total_seq_len_q is only supported with packed layout": not node.max_total_seq_len_q or ragged,
            "Bottom right causal mask does not support max_s_q > max_s_kv.\n": not bottom_right
            or padded
            or rows <= keys,
            "diagonal_band_right_bound needs to be set to 0; no bottom right": not node.use_alibi_mask
            or (node.right == 0 and not bottom_right),
            "decode only mode, i.e. s_q == 1, not supported with sink_token": not sinks or rows > 1,
            "ragged offsets and a sink token requires cuDNN 9.26": not (sinks and ragged and node.stats),
            "sink_token must be (1, H_q, 1, 1)": all(symbol.dim == [1, heads, 1, 1] for symbol in sinks),
            "Left bound (Sliding window length) should be greater than zero when set.": (node.left or 1) > 0,
        }
        if tables is not None:
            pages = -(-node.paged_attention_max_seq_len_kv // keys)
            rules["Paged cache load: block table size"] = tables.dim == [batch, 1, pages, 1]
        return rules

    def get_workspace_size(self) -> int:
        assert self.stage == len(STAGES)
        return 16

    def execute(self, tensor_dict: dict[Symbol, Tensor], workspace: Tensor, handle: Any) -> None:
        assert handle.stream is not None
        assert workspace.numel() >= 16
        node = self.node
        options: dict[str, Any] = {"scale": node.attn_scale, "left": node.left and node.left - 1, "right": node.right}
        options["bottom_right"] = node.diagonal_alignment is diagonal_alignment.BOTTOM_RIGHT
        if node.use_alibi_mask:
            options |= {"slopes": alibi_slopes(node.q.dim[1]), "signed": True}
        if node.sink_token is not None:
            options["sink"] = tensor_dict[node.sink_token].flatten()
        for views in self._sequences(tensor_dict):
            given = {n: views[of] for n, of in vars(node).items() if isinstance(of, Symbol) and of in views}
            if node.descale_q is not None:
                made = _fp8_backward(given, options) if node.stats else _fp8_forward(given, options)
            elif node.stats:
                dsink = None if node.dSink_token is None else tensor_dict[node.dSink_token]
                made = _backward(given, options, dsink)
            else:
                made = _forward(given, options)
            for symbol, value in zip(self.results, made, strict=True):
                if symbol is not None:
                    assert symbol.output
                    views[symbol].copy_(value)

    def _sequences(self, tensors: dict[Symbol, Tensor]) -> Iterator[dict[Symbol, Tensor]]:
        """Yield the bound tensors as the graph sees them: all together, or each sequence if there are lengths."""
        node = self.node
        if node.seq_len_q is None:
            yield {symbol: symbol.of(t) for symbol, t in tensors.items()}
            return
        lengths = [symbol.of(tensors[symbol]).flatten().tolist() for symbol in (node.seq_len_q, node.seq_len_kv)]
        caches = {} if node.paged_attention_k_table is None else {node.k: node.paged_attention_k_table}
        if caches:
            caches[node.v] = node.paged_attention_v_table
        of_keys = {node.k, node.v, *(self.results[1:] if node.stats else ())}
        used = [node.q, node.k, node.v, *filter(None, (*self.results, node.stats))]
        used += [node.o, node.dO] if node.stats else []
        for b, both in enumerate(zip(*lengths, strict=True)):
            views = {}
            for symbol in used:
                length = both[symbol in of_keys]
                if table := caches.get(symbol):
                    pool = symbol.of(tensors[symbol])
                    pages = table.of(tensors[table])[b].flatten()[: -(-length // pool.shape[2])]
                    views[symbol] = pool[pages.long()].transpose(0, 1).flatten(1, 2)[None, :, :length]
                elif symbol.ragged_offset is None:
                    views[symbol] = symbol.of(tensors[symbol])[b : b + 1]
                else:
                    starts = symbol.ragged_offset.of(tensors[symbol.ragged_offset]).flatten().tolist()
                    views[symbol] = symbol.part_of(tensors[symbol], starts, b, length)
            yield views


Given = dict[str, Tensor]  # parameter of a node -> tensor (batch, nheads, seqlen, headdim)


def _forward(given: Given, options: dict[str, Any]) -> list[Tensor]:
    out, lse = attend(*(given[name].transpose(1, 2) for name in "qkv"), **options)
    return [out.transpose(1, 2), lse.unsqueeze(-1)]


def _backward(given: Given, options: dict[str, Any], dsink: Tensor | None, rtol: float = 0.016) -> list[Tensor]:
    """Return the gradients of a forward with results `o` and `stats`, and fill the gradient of the sink."""
    leaves = [given[name].transpose(1, 2).detach().clone().requires_grad_() for name in "qkv"]
    if dsink is not None:
        leaves.append(options["sink"].detach().clone().requires_grad_())
        options = options | {"sink": leaves[3]}
    again, lse = attend(*leaves[:3], **options)
    torch.testing.assert_close(given["stats"].squeeze(-1), lse)
    torch.testing.assert_close(given["o"].transpose(1, 2), again, rtol=rtol, atol=rtol / 8)
    found = torch.autograd.grad(again, leaves, given["dO"].transpose(1, 2))
    if dsink is not None:
        dsink.view(-1).copy_(found[3])
    return [t.transpose(1, 2) for t in found[:3]]


def _fp8_forward(given: Given, options: dict[str, Any]) -> list[Tensor]:
    assert float(given["descale_s"] * given["scale_s"]) == pytest.approx(1)
    out, lse = _forward(_widened(given, *"qkv"), options)
    return [out * given["scale_o"], lse, torch.ones(1, 1, 1, 1), _amax(out)]


def _fp8_backward(given: Given, options: dict[str, Any]) -> list[Tensor]:
    """Return dq, dk and dv with their scales, and the largest values of these and of the gradient of the scores."""
    assert given["dO"].dtype == torch.float8_e5m2
    assert given["q"].shape[-1] == given["v"].shape[-1] == 128
    for name in ("s", "dP"):
        assert float(given[f"descale_{name}"] * given[f"scale_{name}"]) == pytest.approx(1)
    wide = _widened(given, "q", "k", "v", "o", "dO")
    found = _backward(wide, options, None, rtol=0.07)
    v = wide["v"].repeat_interleave(wide["q"].shape[1] // wide["v"].shape[1], dim=1)
    dp = wide["dO"] @ v.mT
    assert float(dp.abs().max() * given["scale_dP"]) <= LARGEST_E5M2
    scaled = [t * given[f"scale_d{name}"] for t, name in zip(found, "QKV", strict=True)]
    return [*(t.clamp(-LARGEST_E5M2, LARGEST_E5M2) for t in scaled), *map(_amax, found), _amax(dp)]


def _widened(given: Given, *names: str) -> Given:
    """Return all tensors, with those of 8 bits multiplied by their factors."""
    return given | {name: given[name].float() * given[f"descale_{name}"] for name in names}


def _amax(t: Tensor) -> Tensor:
    return t.detach().abs().amax().view(1, 1, 1, 1)


def version_1_32() -> dict[str, ModuleType]:
    contents = {
        "data_type": data_type,
        "heur_mode": heur_mode,
        "diagonal_alignment": diagonal_alignment,
        "pygraph": pygraph,
        "create_handle": lambda: SimpleNamespace(stream=None),
        "set_stream": lambda handle, stream: setattr(handle, "stream", stream),
        "backend_version": lambda: 91900,
        "cudnnGraphNotSupportedError": cudnnGraphNotSupportedError,
    }
    return modules({"cudnn": contents})
