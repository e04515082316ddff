"""Stand-in for cudnn-frontend 1.32.0: graphs of one attention node, planned, built and executed in that order."""

from __future__ import annotations

import enum
import math
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
}

data_type = enum.Enum("data_type", list(DTYPES))
heur_mode = enum.Enum("heur_mode", ["A", "B", "FALLBACK"])
diagonal_alignment = enum.Enum("diagonal_alignment", ["TOP_LEFT", "BOTTOM_RIGHT"])


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
        name: str = "",
        generate_stats: bool | None = None,
    ) -> tuple[Symbol, Symbol | None]:
        self.node = ("sdpa", q, k, v)
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
        use_deterministic_algorithm: bool = False,
        name: str = "",
    ) -> tuple[Symbol, Symbol, Symbol]:
        self.node = ("sdpa_backward", q, k, v, o, dO, stats)
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
        self.scale, self.results = attn_scale, (Symbol(), None, Symbol(), Symbol())
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
            if self.band[0] is diagonal_alignment.BOTTOM_RIGHT and q.dim[2] > k.dim[2]:
                raise cudnnGraphNotSupportedError("Bottom right causal mask does not support max_s_q > max_s_kv.\n")
            if self.band[1] is not None and self.band[1] <= 0:
                raise ValueError("Left bound (Sliding window length) should be greater than zero when set.")

        return advance

    def get_workspace_size(self) -> int:
        assert self.stage == len(STAGES)
        return 16

    def execute(self, tensor_dict: dict[Symbol, Tensor], workspace: Tensor, handle: Handle) -> None:
        assert handle.stream is not None
        assert workspace.numel() >= 16
        kind, *symbols = self.node
        given = [symbol.of(tensor_dict[symbol]) for symbol in symbols]
        alignment, left, right = self.band
        options = {
            "scale": self.scale,
            "left": None if left is None else left - 1,
            "right": right,
            "bottom_right": alignment is diagonal_alignment.BOTTOM_RIGHT,
        }
        q, k, v = (t.transpose(1, 2) for t in given[:3])
        if kind == "sdpa":
            out, lse = attend(q, k, v, **options)
            made = [out.transpose(1, 2), lse.unsqueeze(-1)]
        elif kind == "sdpa_backward":
            made = self._backward(q, k, v, given[3:], options)
        else:
            descale_q, descale_k, descale_v, descale_s, scale_s, scale_o = (float(t) for t in given[3:])
            assert abs(descale_s * scale_s - 1) < 1e-6
            q, k, v = q.float() * descale_q, k.float() * descale_k, v.float() * descale_v
            out = attend(q, k, v, **options)[0].transpose(1, 2)
            made = [out * scale_o, None, torch.ones(1, 1, 1, 1), out.abs().amax().view(1, 1, 1, 1)]
        for symbol, value in zip(self.results, made, strict=True):
            if symbol is not None:
                assert symbol.is_output
                assert value is not None
                symbol.of(tensor_dict[symbol]).copy_(value)

    def _backward(self, q: Tensor, k: Tensor, v: Tensor, rest: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
        """Check that out and stats are those of the forward, and return its gradients."""
        out, dout, stats = rest
        q, k, v = (t.detach().clone().requires_grad_() for t in (q, k, v))
        again, lse = attend(q, k, v, **options)
        torch.testing.assert_close(stats.squeeze(-1), lse)
        torch.testing.assert_close(out.transpose(1, 2), again)
        return [t.transpose(1, 2) for t in torch.autograd.grad(again, (q, k, v), dout.transpose(1, 2))]


def version_1_32() -> dict[str, Any]:
    enums = {"data_type": data_type, "heur_mode": heur_mode, "diagonal_alignment": diagonal_alignment}
    made = module("cudnn", pygraph=pygraph, create_handle=create_handle, set_stream=set_stream, **enums)
    made.backend_version = backend_version  # type: ignore[attr-defined]
    made.cudnnGraphNotSupportedError = cudnnGraphNotSupportedError  # type: ignore[attr-defined]
    return {"cudnn": made}
