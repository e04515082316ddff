"""The error of each layer's attention, against exact attention of the same q, k, v and gradient of the output.

The results of a whole model in 16 bits reveal only gross errors of a kernel; these errors reveal small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.core.case import Case
from attnbench.core.flops import attention_of
from attnbench.core.record import TensorError
from attnbench.worker.step.attention_calls import on_backward
from attnbench.worker.step.exact_model import attend, excess, gradients, row_error

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 64  # compared positions of each layer


class LayerErrors:
    """The errors of the layers of one launch, by result. `check` replaces each layer's attention."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.found: dict[str, list[TensorError]] = {"out": []}
        if case.has_backward:
            self.found |= {"dq": [], "dk": [], "dv": []}

    def check(self, call: Callable[..., Any], module: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        """Return the result of `call` for q, k and v, and compare it and later its gradients."""
        import torch

        of, sink = attention_of(self.case, module.layer_idx), getattr(module, "sinks", None)
        wide = torch.float64 if self.case.dtype == "fp32" else torch.float32
        given: Any = [t.detach() for t in (q, k, v)]
        widened: Any = [t.to(wide) for t in given]
        dout: list[Tensor] = []

        def take(*grads: Tensor) -> None:
            exact = gradients(of, widened, sink, dout[0])
            eager = gradients(of, given, sink, dout[0])
            for name, *three in zip(("dq", "dk", "dv"), grads, exact, eager, strict=True):
                self._add(name, *(t.transpose(1, 2) for t in three))

        give_out, take_in = on_backward(dout.append, take)
        out, *rest = call(*(take_in(q, k, v) if q.requires_grad else (q, k, v)))
        with torch.no_grad():
            rows = sampled_rows(out)
            exact, eager = (attend(of, qkv[0], qkv[1], qkv[2], sink, rows) for qkv in (widened, given))
            self._add("out", out[:, rows], exact, eager)
        return (give_out(out) if out.requires_grad else out, *rest)

    def _add(self, name: str, found: Tensor, exact: Tensor, eager: Tensor) -> None:
        """Compare tensors of (batch, seqlen, heads, headdim), at some positions."""
        import torch

        with torch.no_grad():
            rows = sampled_rows(found)[1 if name == "dq" else 0 :]  # with one key there is no gradient except rounding
            ours, right, usual = (t[:, rows].flatten(2) for t in (found, exact, eager))
            self.found[name].append(row_error(self.case, ours, right, usual, what="position"))

    def worst(self) -> dict[str, TensorError]:
        """Return the error of the worst layer of each result: the largest error over its tolerance."""
        return {
            name: max(errors, key=lambda e: excess(e.max_error / e.tolerance))
            for name, errors in self.found.items()
            if errors
        }

    def flaws(self) -> tuple[str, ...]:
        """Return faults other than errors: attention that was not called in each layer."""
        assert self.case.model_step
        layers = self.case.model_step.layers
        return tuple(
            f"attention gave {name} {len(errors)} times in {layers} layers"
            for name, errors in self.found.items()
            if len(errors) != layers
        )


def sampled_rows(tensor: Tensor) -> Tensor:
    """Return ROWS of the positions, the second dimension, evenly spread, with the first and the last."""
    import torch

    last = tensor.shape[1] - 1
    rows: Tensor = torch.linspace(0, last, min(ROWS, last + 1), device=tensor.device).round().long().unique()
    return rows
