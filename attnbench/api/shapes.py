"""`attnbench.record_shapes`: the shapes of attention in a program, as a suite."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnbench.api.arguments import DTYPES, path_of
from attnbench.core.errors import UserError
from attnbench.core.files import write_file
from attnbench.core.text import count

if TYPE_CHECKING:
    import torch

_WATCHED, _LOCK = threading.local(), threading.Lock()  # counters of each thread
_INSIDE: list[Any] = []  # calls, of all threads, while which torch's attention is replaced
MOST = 1000  # cases of a file; a longer file is no suite that could be measured


@contextlib.contextmanager
def record_shapes(path: str | Path) -> Iterator[None]:
    """Write the shapes that scaled_dot_product_attention gets in the block to a suite, a YAML file.

    The suite has each different case once, with its number of calls in a comment, the most frequent first: batch,
    lengths, heads, headdim, dtype, causal, dropout, scale, and both passes where a gradient is needed. Of tensors only
    sizes, dtype and requires_grad are read. `attnbench run --suite shapes.yaml` measures the cases.

    A comment counts the calls that no case stands for: with a tensor as mask, nested tensors, another dtype, a dropout
    of 1, a scale of 0 or below, or is_causal with unlike lengths (PyTorch aligns that mask top-left). Recorded are
    calls of this thread in eager mode; code that torch.compile compiles in the block works, and is not recorded. A
    checkpoint with use_reentrant is recorded without its gradient, and a call under vmap without the mapped dimension.

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
    calls: Counter[_Call] = Counter()
    try:
        with _watching(calls):
            yield
    finally:
        cases, left = _sorted(calls)
        if calls:
            write_file(file, _suite(cases, left))
    if not cases:
        raise UserError("; ".join([f"{file}: no call of scaled_dot_product_attention was recorded", *_left_out(left)]))


class _Call(NamedTuple):
    """What is kept of a call: the sizes of query, key and value, and the other arguments."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    dtype: torch.dtype  # the one of the computation: of autocast, where that is on
    has_mask: bool
    dropout: float
    causal: bool
    scale: float | None
    has_gradient: bool


def _watching(calls: Counter[_Call]) -> contextlib.AbstractContextManager[Any]:
    """Return a context that counts the calls of scaled_dot_product_attention that worked and were not compiled."""
    import torch
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    attention = functional.scaled_dot_product_attention
    attention = getattr(attention, "replaced", attention)  # another thread may have replaced it at this moment

    def count_call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: bool,
    ) -> None:
        needs = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        dtype, kind = query.dtype, query.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
        q, k, v = (() if query.is_nested else tuple(of.shape) for of in (query, key, value))
        calls[_Call(q, k, v, dtype, attn_mask is not None, dropout_p, is_causal, scale, needs)] += 1

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if torch.compiler.is_compiling() or func not in (attention, functional.multi_head_attention_forward):
                return func(*args, **given)
            if func is attention:
                out = func(*args, **given)
                count_call(*args, **given)
                return out
            with _inner_calls(functional, attention, count_call):  # its mode does not see what a function calls
                return func(*args, **given)

    return Watching()


@contextlib.contextmanager
def _inner_calls(functional: Any, attention: Any, count_call: Any) -> Iterator[None]:
    """Let `count_call` see the calls of this thread by a function of torch, which looks attention up by its name."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        out = attention(*args, **kwargs)
        for one in getattr(_WATCHED, "counters", ()):
            one(*args, **kwargs)
        return out

    counted.replaced = attention  # type: ignore[attr-defined]
    _WATCHED.counters = (*getattr(_WATCHED, "counters", ()), count_call)
    with _LOCK:
        _INSIDE.append(count_call)
        if len(_INSIDE) == 1:
            functional.scaled_dot_product_attention = counted
    try:
        yield
    finally:
        _WATCHED.counters = _WATCHED.counters[:-1]
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                functional.scaled_dot_product_attention = attention


def _sorted(calls: Counter[_Call]) -> tuple[Counter[str], Counter[str]]:
    """Return the calls by their case, as YAML, and the calls without a case by the reason."""
    cases: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for call, number in calls.items():
        if reason := _why_not(call):
            left[reason] += number
        else:
            cases[_block(call)] += number
    return cases, left


def _why_not(call: _Call) -> str:
    """Return why no case stands for a call; "" where one does."""
    query, key, value = call.query, call.key, call.value
    if not query:
        return "nested tensors"
    if call.has_mask:
        return "a tensor as mask"
    if str(call.dtype) not in DTYPES:
        return str(call.dtype)
    if call.causal and query[-2] != key[-2]:
        return "is_causal and unlike lengths"
    if query[:-3] != key[:-3] or key[:-1] != value[:-1] or 0 in (*query, *key, *value):
        return "broadcast or empty tensors"
    if call.dropout >= 1:
        return "a dropout of 1"
    if call.scale is not None and not 0 < call.scale < math.inf:
        return "a scale that is not above 0"
    return ""


def _block(call: _Call) -> str:
    """Return the case of a call as a block of a suite, in YAML."""
    *batch, nheads, seqlen_q, headdim = (1, 1, *call.query)
    seqlen_k, headdim_v = call.value[-2:]
    sizes: dict[str, Any] = {"batch": math.prod(batch), "nheads": nheads}
    if len(call.key) > 2 and call.key[-3] != nheads:
        sizes["nheads_k"] = call.key[-3]
    sizes["seqlen"] = seqlen_k
    if seqlen_q != seqlen_k:
        sizes["seqlen_q"] = seqlen_q
    sizes["headdim"] = headdim if headdim == headdim_v else f"{headdim}-{headdim_v}"
    sizes |= {"dtype": DTYPES[str(call.dtype)], "causal": str(bool(call.causal)).lower()}
    if call.dropout:
        sizes["dropout"] = call.dropout
    if call.scale is not None and not math.isclose(call.scale, headdim**-0.5):
        sizes["softmax_scale"] = call.scale
    if call.has_gradient:
        sizes["pass"] = "[fwd, bwd]"
    return "{" + ", ".join(f"{name}: {size}" for name, size in sizes.items()) + "}"


def _suite(cases: Counter[str], left: Counter[str]) -> str:
    """Return the content of a suite file."""
    calls = f"{count(cases.total(), 'call')} of scaled_dot_product_attention"
    fewest = len(cases) - MOST
    lines = [
        f"# {count(len(cases), 'case')} of {calls}, recorded by attnbench.record_shapes",
        *(f"# {line}" for line in _left_out(left)),
        *([f"# left out: {count(fewest, 'case')} with the fewest calls"] if fewest > 0 else ()),
        "cases:",
        *(f"- {case}  # {count(number, 'call')}" for case, number in cases.most_common(MOST)),
    ]
    return "\n".join(lines) + "\n"


def _left_out(left: Counter[str]) -> list[str]:
    return [f"left out: {count(number, 'call')} with {reason}" for reason, number in left.items()]
