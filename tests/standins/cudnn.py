"""Stand-in for cudnn-frontend 1.32.0: graphs of one attention node, planned, built and executed in that order."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from standins import module
from standins.attend import attend

VERSIONS = {"nvidia-cudnn-frontend": "1.32.0"}
STAGES = ["validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans"]
DTYPES = {
    "HALF": torch.float16,
    "BFLOAT16": torch.bfloat16,
    "FLOAT": torch.float32,
    "FP8_E4M3": torch.float8_e4m3fn,
    "FP8_E5M2": torch.float8_e5m2,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
}

data_type = enum.Enum("data_type", list(DTYPES))
heur_mode = enum.Enum("heur_mode", ["A", "B", "FALLBACK"])
diagonal_alignment = enum.Enum("diagonal_alignment", ["TOP_LEFT", "BOTTOM_RIGHT"])
attention_implementation = enum.Enum("attention_implementation", ["AUTO", "COMPOSITE", "UNIFIED"])
TILE = 128


class cudnnGraphNotSupportedError(RuntimeError):  # noqa: N801
    pass


class Handle:
    stream: int | None = None


def backend_version() -> int:
    return 91900


def create_handle() -> Handle:
    return Handle()


def set_stream(handle: Handle, stream: int) -> None:
    handle.stream = stream


class Symbol:
    """A tensor of a graph, known by its shape and strides before memory is bound to it."""

    def __init__(self, dim: list[int] | None = None, stride: list[int] | None = None, dtype: Any = None) -> None:
        self.dim, self.stride, self.dtype, self.is_output = dim, stride, dtype, False
        self.offsets: Symbol | None = None

    def set_output(self, value: bool) -> Symbol:
        self.is_output = value
        return self

    def set_dim(self, dim: list[int]) -> Symbol:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Symbol:
        self.stride = stride
        return self

    def set_data_type(self, dtype: Any) -> Symbol:
        self.dtype = dtype
        return self

    def set_ragged_offset(self, offsets: Symbol) -> Symbol:
        self.offsets = offsets
        return self

    def part_of(self, t: Tensor, offsets: list[int], b: int, length: int) -> Tensor:
        """Return sequence b of a ragged batch, (1, nheads, seqlen, headdim); all sequences together fill the memory."""
        assert self.dim is not None
        assert self.stride is not None
        assert DTYPES[self.dtype.name] == t.dtype
        assert offsets[-1] == t.numel() == t.untyped_storage().nbytes() // t.element_size()
        assert offsets[b + 1] - offsets[b] == length * self.stride[2]
        assert length <= self.dim[2]
        _, heads, _, last = self.dim
        return t.as_strided((1, heads, length, last), self.stride, offsets[b])

    def of(self, t: Tensor) -> Tensor:
        """Return the bound memory with the shape and strides that the graph declared."""
        assert self.dim is not None
        assert self.stride is not None
        assert DTYPES[self.dtype.name] == t.dtype
        assert math.prod(self.dim) == t.numel()
        return t.as_strided(self.dim, self.stride)


class pygraph:  # noqa: N801
    def __init__(
        self,
        name: str = "",
        io_data_type: Any = None,
        intermediate_data_type: Any = None,
        compute_data_type: Any = None,
        handle: Handle | None = None,
    ) -> None:
        self.stage = 0
        self.lengths: tuple[Symbol | None, Symbol | None] | None = None
        self.totals: tuple[int | None, int | None] = (None, None)
        self.tables: tuple[Symbol | None, Symbol | None] = (None, None)
        self.longest: int | None = None
        self.block_mask: Symbol | None = None
        self.unified = False
        self.sink: Symbol | None = None
        self.dsink: Symbol | None = None
        self.alibi = False

    def tensor(
        self,
        dim: list[int],
        stride: list[int] | None = None,
        data_type: Any = None,
        is_virtual: bool = False,
        is_pass_by_value: bool = False,
        ragged_offset: Any = None,
        reordering_type: Any = None,
        name: str = "",
        uid: int | None = None,
    ) -> Symbol:
        return Symbol(dim, stride, data_type)

    def sdpa(
        self,
        q: Symbol,
        k: Symbol,
        v: Symbol,
        *,
        is_inference: bool | None = None,
        attn_scale: float | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Symbol | None = None,
        seq_len_kv: Symbol | None = None,
        paged_attention_k_table: Symbol | None = None,
        paged_attention_v_table: Symbol | None = None,
        paged_attention_max_seq_len_kv: int | None = None,
        use_alibi_mask: bool = False,
        sink_token: Symbol | None = None,
        block_mask: Symbol | None = None,
        implementation: Any = attention_implementation.AUTO,
        name: str = "",
        generate_stats: bool | None = None,
    ) -> tuple[Symbol, Symbol | None]:
        self.block_mask, self.unified = block_mask, implementation is attention_implementation.UNIFIED
        self.tables, self.longest = (paged_attention_k_table, paged_attention_v_table), paged_attention_max_seq_len_kv
        self.lengths = (seq_len_q, seq_len_kv) if use_padding_mask else None
        self.node, self.sink, self.dsink, self.alibi = ("sdpa", q, k, v), sink_token, None, use_alibi_mask
        self.band = (diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound)
        self.scale, self.results = attn_scale, (Symbol(), Symbol() if generate_stats else None)
        return self.results

    def sdpa_backward(
        self,
        q: Symbol,
        k: Symbol,
        v: Symbol,
        o: Symbol,
        dO: Symbol,  # noqa: N803
        stats: Symbol,
        *,
        attn_scale: float | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        use_padding_mask: bool = False,
        seq_len_q: Symbol | None = None,
        seq_len_kv: Symbol | None = None,
        max_total_seq_len_q: int | None = None,
        max_total_seq_len_kv: int | None = None,
        use_deterministic_algorithm: bool = False,
        use_alibi_mask: bool = False,
        sink_token: Symbol | None = None,
        dSink_token: Symbol | None = None,  # noqa: N803
        name: str = "",
    ) -> tuple[Symbol, Symbol, Symbol]:
        self.lengths = (seq_len_q, seq_len_kv) if use_padding_mask else None
        self.totals = (max_total_seq_len_q, max_total_seq_len_kv)
        self.node = ("sdpa_backward", q, k, v, o, dO, stats)
        self.sink, self.dsink, self.alibi = sink_token, dSink_token, use_alibi_mask
        self.band = (diagonal_alignment, diagonal_band_left_bound, diagonal_band_right_bound)
        self.scale, self.results = attn_scale, (Symbol(), Symbol(), Symbol())
        return self.results

    def sdpa_fp8(
        self,
        q: Symbol,
        k: Symbol,
        v: Symbol,
        descale_q: Symbol,
        descale_k: Symbol,
        descale_v: Symbol,
        descale_s: Symbol,
        scale_s: Symbol,
        scale_o: Symbol,
        *,
        is_inference: bool | None = None,
        attn_scale: float | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        name: str = "",
        generate_stats: bool | None = None,
    ) -> tuple[Symbol, Symbol | None, Symbol, Symbol]:
        self.node = ("sdpa_fp8", q, k, v, descale_q, descale_k, descale_v, descale_s, scale_s, scale_o)
        self.band = (diagonal_alignment, left_bound, right_bound)
        self.scale, self.results = attn_scale, (Symbol(), Symbol() if generate_stats else None, Symbol(), Symbol())
        return self.results

    def sdpa_fp8_backward(
        self,
        q: Symbol,
        k: Symbol,
        v: Symbol,
        o: Symbol,
        dO: Symbol,  # noqa: N803
        stats: Symbol,
        descale_q: Symbol,
        descale_k: Symbol,
        descale_v: Symbol,
        descale_o: Symbol,
        descale_dO: Symbol,  # noqa: N803
        descale_s: Symbol,
        descale_dP: Symbol,  # noqa: N803
        scale_s: Symbol,
        scale_dQ: Symbol,  # noqa: N803
        scale_dK: Symbol,  # noqa: N803
        scale_dV: Symbol,  # noqa: N803
        scale_dP: Symbol,  # noqa: N803
        *,
        attn_scale: float | None = None,
        diagonal_alignment: Any = diagonal_alignment.TOP_LEFT,
        left_bound: int | None = None,
        right_bound: int | None = None,
        name: str = "",
    ) -> tuple[Symbol, ...]:
        factors = (descale_q, descale_k, descale_v, descale_o, descale_dO, descale_s, descale_dP)
        factors += (scale_s, scale_dQ, scale_dK, scale_dV, scale_dP)
        self.node = ("sdpa_fp8_backward", q, k, v, o, dO, stats, *factors)
        self.band = (diagonal_alignment, left_bound, right_bound)
        self.scale, self.results = attn_scale, tuple(Symbol() for _ in range(7))
        return self.results

    def __getattr__(self, name: str) -> Any:
        if name not in STAGES:
            raise AttributeError(name)

        def advance(*_: Any) -> None:
            assert STAGES[self.stage] == name, f"{name} out of turn"
            self.stage += 1
            _, q, k, *_rest = self.node
            assert q.dim is not None
            assert k.dim is not None
            self._check_pages(q, k)
            if (q.offsets is not None or k.offsets is not None) and self.lengths is None:
                raise cudnnGraphNotSupportedError("Ragged offsets are only supported with padding mask.")
            if any(self.totals) and q.offsets is None:
                raise cudnnGraphNotSupportedError("max_total_seq_len_q is only supported with packed layout")
            if self.band[0] is diagonal_alignment.BOTTOM_RIGHT and self.lengths is None and q.dim[2] > k.dim[2]:
                raise cudnnGraphNotSupportedError("Bottom right causal mask does not support max_s_q > max_s_kv.\n")
            if self.alibi and (self.band[2] != 0 or self.band[0] is diagonal_alignment.BOTTOM_RIGHT):
                raise cudnnGraphNotSupportedError("diagonal_band_right_bound needs to be set to 0; no bottom right")
            if self.sink is not None:
                self._check_sink(q)
            if self.block_mask is not None:
                self._check_block_mask(q, k)
            if self.band[1] is not None and self.band[1] <= 0:
                raise ValueError("Left bound (Sliding window length) should be greater than zero when set.")

        return advance

    def _check_block_mask(self, q: Symbol, k: Symbol) -> None:
        assert q.dim is not None
        assert k.dim is not None
        assert self.block_mask is not None
        if not self.unified:
            raise cudnnGraphNotSupportedError("Composite SDPA node doesn't support Block_mask input")
        if self.band[1:] != (None, None):
            raise cudnnGraphNotSupportedError("Left bound or right bound for unified SDPA node requires cuDNN 9.21.0")
        if self.sink is not None:
            raise cudnnGraphNotSupportedError("Unified SDPA node doesn't yet support inputs other than Q, K, V")
        rows, columns = (-(-n // TILE) for n in (q.dim[2], k.dim[2]))
        assert self.block_mask.dim == [*q.dim[:2], rows, -(-columns // 8)]
        assert self.block_mask.dtype is data_type.UINT8

    def _check_sink(self, q: Symbol) -> None:
        assert q.dim is not None
        assert self.sink is not None
        if q.dim[2] == 1:
            raise cudnnGraphNotSupportedError("decode only mode, i.e. s_q == 1, not supported with sink_token")
        if self.node[0] == "sdpa_backward" and q.offsets is not None:
            raise cudnnGraphNotSupportedError("SDPA backward with ragged offsets and a sink token requires cuDNN 9.26")
        for symbol in filter(None, (self.sink, self.dsink)):
            assert symbol.dim == [1, q.dim[1], 1, 1], "sink_token must be (1, H_q, 1, 1)"
            assert symbol.dtype is data_type.FLOAT
        assert self.dsink is None or self.dsink.is_output

    def _check_pages(self, q: Symbol, k: Symbol) -> None:
        for table in self.tables:
            if table is None:
                continue
            assert self.longest is not None
            assert table.dim is not None
            assert q.dim is not None
            assert k.dim is not None
            if self.lengths is None:
                raise cudnnGraphNotSupportedError("Paged caches can only be used in combination with padding mask")
            pages = -(-self.longest // k.dim[2])
            if table.dim != [q.dim[0], 1, pages, 1] or table.dtype is not data_type.INT32:
                raise ValueError("Paged cache load: block table size must equal ceil(s_kv/block_size)")

    def _visible(self, tiles: Tensor, q: Symbol, k: Symbol) -> Tensor:
        """Return which pairs a block mask leaves, (batch, nheads, seqlen_q, seqlen_k)."""
        assert q.dim is not None
        assert k.dim is not None
        kept = ((tiles[..., None] >> torch.arange(8)) & 1).bool().flatten(-2)
        return kept.repeat_interleave(TILE, 2).repeat_interleave(TILE, 3)[:, :, : q.dim[2], : k.dim[2]]

    def get_workspace_size(self) -> int:
        assert self.stage == len(STAGES)
        return 16

    def execute(self, tensor_dict: dict[Symbol, Tensor], workspace: Tensor, handle: Handle) -> None:
        assert handle.stream is not None
        assert workspace.numel() >= 16
        kind, *symbols = self.node
        alignment, left, right = self.band
        options: dict[str, Any] = {
            "scale": self.scale,
            "left": None if left is None else left - 1,
            "right": right,
            "bottom_right": alignment is diagonal_alignment.BOTTOM_RIGHT,
        }
        if self.alibi:
            options |= {"slopes": torch.tensor(_slopes(symbols[0].dim[1])), "signed": True}
        if self.block_mask is not None:
            options["visible"] = self._visible(tensor_dict[self.block_mask], *symbols[:2])
        if self.sink is not None:
            options["sink"] = self.sink.of(tensor_dict[self.sink]).flatten()
        for views in self._sequences(tensor_dict):
            given = [views[symbol] for symbol in symbols]
            q, k, v = (t.transpose(1, 2) for t in given[:3])
            if kind == "sdpa":
                out, lse = attend(q, k, v, **options)
                made = [out.transpose(1, 2), lse.unsqueeze(-1)]
            elif kind == "sdpa_backward":
                made, dsink = self._backward(q, k, v, given[3:], options)
                if self.dsink is not None:
                    assert dsink is not None
                    self.dsink.of(tensor_dict[self.dsink]).copy_(dsink.view(1, -1, 1, 1))
            elif kind == "sdpa_fp8_backward":
                made = self._fp8_backward(given, options)
            else:
                descale_q, descale_k, descale_v, descale_s, scale_s, scale_o = (float(t) for t in given[3:])
                assert abs(descale_s * scale_s - 1) < 1e-6
                q, k, v = q.float() * descale_q, k.float() * descale_k, v.float() * descale_v
                out, lse = attend(q, k, v, **options)
                made = [out.transpose(1, 2) * scale_o, lse.unsqueeze(-1), torch.ones(1, 1, 1, 1), _amax(out)]
            for symbol, value in zip(self.results, made, strict=True):
                if symbol is not None:
                    assert symbol.is_output
                    assert value is not None
                    views[symbol].copy_(value)

    def _fp8_backward(self, given: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """Return dq, dk and dv with their scales, and the largest of each and of the gradient of the scores."""
        q, k, v, out, dout, stats = given[:6]
        assert dout.dtype == torch.float8_e5m2
        assert q.shape[-1] == v.shape[-1] == 128
        *descale, descale_s, descale_dp, scale_s, scale_dq, scale_dk, scale_dv, scale_dp = (float(t) for t in given[6:])
        assert abs(descale_s * scale_s - 1) < 1e-6
        assert abs(descale_dp * scale_dp - 1) < 1e-6
        wide = [(t.float() * of).transpose(1, 2) for t, of in zip((q, k, v, out, dout), descale, strict=True)]
        leaves = [t.requires_grad_() for t in wide[:3]]
        again, lse = attend(*leaves, **options)
        torch.testing.assert_close(stats.squeeze(-1), lse)
        torch.testing.assert_close(wide[3], again, rtol=0.07, atol=0.01)
        found = torch.autograd.grad(again, leaves, wide[4])
        heads = wide[0].shape[2] // wide[2].shape[2]
        dp = wide[4].transpose(1, 2) @ wide[2].repeat_interleave(heads, dim=2).permute(0, 2, 3, 1)
        assert float(dp.detach().abs().max()) * scale_dp <= 57344
        scaled = [(t.transpose(1, 2) * of, of) for t, of in zip(found, (scale_dq, scale_dk, scale_dv), strict=True)]
        return [*(t.clamp(-57344, 57344) for t, _ in scaled), *(_amax(t / of) for t, of in scaled), _amax(dp)]

    def _sequences(self, tensors: dict[Symbol, Tensor]) -> Iterator[dict[Symbol, Tensor]]:
        """Yield the bound tensors as the graph sees them: at once, or of each sequence of a ragged batch."""
        _, *given = self.node
        used = [*given, *(symbol for symbol in self.results if symbol is not None)]
        if self.lengths is None:
            yield {symbol: symbol.of(tensors[symbol]) for symbol in used}
            return
        lengths = []
        for symbol in self.lengths:
            assert symbol is not None
            assert symbol.dtype is data_type.INT32
            lengths.append(symbol.of(tensors[symbol]).flatten().tolist())
        for total, of in zip(self.totals, lengths, strict=True):
            assert total is None or total >= sum(of)
        if self.tables[0] is not None:
            yield from self._paged(tensors, lengths)
            return
        keys = {*given[1:3], *(self.results[1:] if self.node[0] == "sdpa_backward" else ())}
        for b in range(len(lengths[0])):
            views = {}
            for symbol in used:
                assert symbol.offsets is not None
                starts = symbol.offsets.of(tensors[symbol.offsets]).flatten().tolist()
                assert len(starts) == len(lengths[0]) + 1
                length = lengths[symbol in keys][b]
                views[symbol] = symbol.part_of(tensors[symbol], starts, b, length)
            yield views

    def _paged(self, tensors: dict[Symbol, Tensor], lengths: list[list[int]]) -> Iterator[dict[Symbol, Tensor]]:
        """Yield the tensors of each sequence, k and v gathered from their pages."""
        _, q, *caches = self.node
        out = self.results[0]
        starts = None if q.offsets is None else q.offsets.of(tensors[q.offsets]).flatten().tolist()
        for b, (rows, keys) in enumerate(zip(*lengths, strict=True)):
            views = {}
            for symbol in (q, out):
                t = tensors[symbol]
                views[symbol] = symbol.of(t)[b : b + 1] if starts is None else symbol.part_of(t, starts, b, rows)
                assert views[symbol].shape[2] == rows
            for symbol, table in zip(caches, self.tables, strict=True):
                assert table is not None
                pool = symbol.of(tensors[symbol])
                used = -(-keys // pool.shape[2])
                pages = pool[table.of(tensors[table])[b].flatten()[:used].long()]
                views[symbol] = pages.transpose(0, 1).flatten(1, 2)[None, :, :keys]
            yield views

    def _backward(
        self, q: Tensor, k: Tensor, v: Tensor, rest: list[Tensor], options: dict[str, Any]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Check that out and stats are those of the forward, and return its gradients, and that of the sink."""
        out, dout, stats = rest
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        q, k, v = leaves
        if self.sink is not None:
            leaves.append(options["sink"].detach().clone().requires_grad_())
            options = options | {"sink": leaves[3]}
        again, lse = attend(q, k, v, **options)
        torch.testing.assert_close(stats.squeeze(-1), lse)
        torch.testing.assert_close(out.transpose(1, 2), again)
        found = torch.autograd.grad(again, leaves, dout.transpose(1, 2))
        return [t.transpose(1, 2) for t in found[:3]], found[3] if self.sink is not None else None


def _amax(t: Tensor) -> Tensor:
    return t.detach().abs().amax().view(1, 1, 1, 1)


def _slopes(heads: int) -> list[float]:
    """Return cuDNN's slopes of ALiBi (get_alibi_slope in cudnn_frontend_utils.h)."""
    n = 2 ** int(math.log2(heads))
    powers = [i + 1.0 for i in range(n)] + [(i + 1) * 0.5 for i in range(0, 2 * (heads - n), 2)]
    return [float(2.0 ** (-8.0 * power / n)) for power in powers]


def version_1_32() -> dict[str, Any]:
    enums = {"data_type": data_type, "heur_mode": heur_mode, "diagonal_alignment": diagonal_alignment}
    enums["attention_implementation"] = attention_implementation
    made = module("cudnn", pygraph=pygraph, create_handle=create_handle, set_stream=set_stream, **enums)
    made.backend_version = backend_version  # type: ignore[attr-defined]
    made.cudnnGraphNotSupportedError = cudnnGraphNotSupportedError  # type: ignore[attr-defined]
    return {"cudnn": made}
