"""`attnbench.record_shapes`: the shapes of attention in a program, as a suite."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.api.arguments import DTYPES, path_of
from attnbench.core.errors import UserError
from attnbench.core.files import write_file
from attnbench.core.text import count

if TYPE_CHECKING:
    import torch

MOST = 1000  # cases of a file; a longer file is no suite that could be measured


@contextlib.contextmanager
def record_shapes(path: str | Path) -> Iterator[None]:
    """Write the shapes that scaled_dot_product_attention gets in the block to a suite, a YAML file.

    The suite has each different case once, with its number of calls in a comment, the most frequent first: batch,
    lengths, heads, headdim, dtype, causal, dropout, scale, and both passes where a gradient is needed. Of tensors only
    sizes, dtype and requires_grad are read. `attnbench run --suite shapes.yaml` measures the cases.

    A comment counts the calls that no case stands for: with a tensor as mask, nested tensors, another dtype, or
    is_causal with unlike lengths (PyTorch aligns that mask top-left). Recorded are calls of this thread in eager mode;
    code that torch.compile compiles in the block works, and is not recorded.

    path: a name that ends in .yaml; a file of that name is replaced.

    >>> import attnbench, pathlib, torch
    >>> q = torch.ones(1, 2, 16, 64)
    >>> with attnbench.record_shapes("shapes.yaml"):
    ...     _ = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> print(pathlib.Path("shapes.yaml").read_text().splitlines()[-1])
    - {batch: 1, nheads: 2, seqlen: 16, headdim: 64, dtype: fp32, causal: true}  # 1 call

    Raises UserError for another name, a file that cannot be written, and where no call was recorded.
    """
    file = path_of(path)
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"{file}: a suite is a YAML file; give a name that ends in .yaml")
    write_file(file, "cases: []  # nothing is recorded yet\n")  # raises now what would cost the record at the end
    seen = _Seen()
    try:
        with _watching(seen):
            yield
    finally:
        if seen.cases or seen.left:
            write_file(file, seen.suite())
    if not seen.cases:
        left = "".join(f"; {line}" for line in seen.left_out())
        raise UserError(f"{file}: no call of scaled_dot_product_attention was recorded{left}")


def _watching(seen: _Seen) -> contextlib.AbstractContextManager[Any]:
    """Return a context that counts the calls of scaled_dot_product_attention that worked and were not compiled."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    attention = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = attention(*args, **kwargs)
        seen.count(*args, **kwargs)
        return out

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is attention and not torch.compiler.is_compiling():
                return counted(*args, **(kwargs or {}))
            if func is not functional.multi_head_attention_forward or torch.compiler.is_compiling():
                return func(*args, **(kwargs or {}))
            functional.scaled_dot_product_attention = counted  # while a function runs, its mode does not see its calls
            try:
                return func(*args, **(kwargs or {}))
            finally:
                functional.scaled_dot_product_attention = attention

    return Watching()


class _Seen:
    """The cases of the calls of scaled_dot_product_attention."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()  # block of a suite, as YAML -> calls
        self.left: Counter[str] = Counter()  # why calls are left out -> calls

    def count(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Count a call, of which the arguments are the ones of scaled_dot_product_attention."""
        import torch

        device, dtype = query.device.type, query.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        if query.is_nested:
            self.left["nested tensors"] += 1
        elif attn_mask is not None:
            self.left["a tensor as mask"] += 1
        elif str(dtype) not in DTYPES:
            self.left[str(dtype)] += 1
        elif is_causal and query.shape[-2] != key.shape[-2]:
            self.left["is_causal and unlike lengths"] += 1
        elif query.shape[:-3] != key.shape[:-3] or key.shape[:-1] != value.shape[:-1] or 0 in query.shape + key.shape:
            self.left["broadcast or empty tensors"] += 1
        else:
            *batch, nheads, seqlen_q, headdim = (1, 1, *query.shape)
            sizes: dict[str, Any] = {"batch": math.prod(batch), "nheads": nheads}
            if query.dim() > 2 and key.shape[-3] != nheads:
                sizes["nheads_k"] = key.shape[-3]
            sizes["seqlen"] = key.shape[-2]
            if seqlen_q != key.shape[-2]:
                sizes["seqlen_q"] = seqlen_q
            values = value.shape[-1]
            sizes["headdim"] = headdim if headdim == values else f"{headdim}-{values}"
            sizes |= {"dtype": DTYPES[str(dtype)], "causal": str(bool(is_causal)).lower()}
            if dropout_p:
                sizes["dropout"] = dropout_p
            if scale and not math.isclose(scale, headdim**-0.5):
                sizes["softmax_scale"] = scale
            if torch.is_grad_enabled() and any(of.requires_grad for of in (query, key, value)):
                sizes["pass"] = "[fwd, bwd]"
            self.cases["{" + ", ".join(f"{name}: {size}" for name, size in sizes.items()) + "}"] += 1

    def suite(self) -> str:
        """Return the content of a suite file."""
        lines = [
            f"# {count(len(self.cases), 'case')} of {count(self.cases.total(), 'call')} of "
            "scaled_dot_product_attention, recorded by attnbench.record_shapes",
            *(f"# {line}" for line in self.left_out()),
            "cases:",
            *(f"- {case}  # {count(calls, 'call')}" for case, calls in self.cases.most_common(MOST)),
        ]
        return "\n".join(lines) + "\n"

    def left_out(self) -> Iterator[str]:
        """Yield a line for each reason why calls have no case in the suite."""
        for reason, calls in self.left.items():
            yield f"left out: {count(calls, 'call')} with {reason}"
        if len(self.cases) > MOST:
            yield f"left out: {count(len(self.cases) - MOST, 'case')} with the fewest calls"
