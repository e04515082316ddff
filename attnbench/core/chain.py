"""A chain of launches, by which a kernel is checked and timed from outside its process.

The first launch reads inputs that nobody could know before. Each later one reads the same inputs with their low bits
changed by the last results (`link`): its k and v are as new as its q, and no result is worth keeping. A sum of all last
results changes every element, or else one head, or with a causal mask the first rows, could run ahead of the others. So
a launch can begin only when the one before it has ended, unless a kernel alters its results so that the sum is known.
The link is public and cheap, and changes no value by more than a quarter, or of the least normal one, so that inputs
keep their distribution along the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import masks
from attnbench.core.case import Case
from attnbench.core.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Prepared

Tensors = Mapping[str, "Tensor"]

FREE_BITS = 2  # highest bits of a mantissa that a link leaves alone
SOURCES = {"q": ("dq", "out"), "k": ("dk", "out"), "v": ("dv", "out"), "dout": ("out",)}  # input -> results, best first


def refusal(case: Case) -> str | None:
    """Return why a chain of a case is not possible; None where it is."""
    if not case.is_softmax or case.step:
        return "a chain of launches takes softmax attention alone"
    for holds, what in (
        (case.is_paged or case.is_ragged or case.append, "pages or ragged batches"),
        (case.dropout_p, "dropout"),
        (case.dtype == "fp8" or case.cache_dtype != "same", "8-bit inputs"),
        (case.ranks > 1, "several devices"),
        (case.latent or case.sink or case.shared_prefix, "latent rows, sinks or a shared prefix"),
        (case.data != "normal", f"data {case.data}"),
        (masks.is_own(case.mask), "a mask of a person's own code, which would run in the judge"),
        (not case.has_forward, "a backward alone"),
    ):
        if holds:
            return f"no chain of launches with {what}"
    return None


def link(base: Tensors, results: Tensors, into: Tensors) -> None:
    """Write the inputs of the next launch: those of the first, with low mantissa bits changed by the last results.

    base, into: inputs by name; results: dense results by name, of the dtype of the inputs. Where a result has another
    shape than an input, it is repeated with an odd period, so that no two rows change alike; its elements are then
    taken in their order in memory, and so are the input's.
    """
    import torch

    changes = _low_bits(results)
    for name, first in base.items():
        source = next(source for source in SOURCES[name] if source in changes)
        old = first.view(changes[source].dtype)
        if results[source].shape == first.shape:
            torch.bitwise_xor(old, changes[source], out=into[name].view(old.dtype))
            continue
        order = order_of(old) or [*range(old.dim())]
        flat, change = old.permute(order).reshape(-1), _flat(changes[source])
        new = torch.empty_like(flat)
        period = min(len(flat), len(change))
        if period < len(flat):
            period -= 1 - period % 2
        whole = len(flat) // period * period
        torch.bitwise_xor(flat[:whole].view(-1, period), change[:period], out=new[:whole].view(-1, period))
        torch.bitwise_xor(flat[whole:], change[: len(flat) - whole], out=new[whole:])
        place = into[name].view(old.dtype).permute(order)
        place.copy_(new.view(place.shape))


def run(prepared: Prepared, base: Tensors, given: Tensors, places: Sequence[Tensors]) -> None:
    """Launch once for each of `places`, each launch on the inputs that follow from the results of the one before.

    base: the first inputs; given: the memory that `prepared` reads; places: the memory of each launch's results.
    """
    for name, t in given.items():
        t.copy_(base[name])
    for number, place in enumerate(places, start=1):
        for name, t in prepared.canonical(prepared.launch()).items():
            place[name].copy_(t)
        if number < len(places):
            link(base, place, given)


def _low_bits(results: Tensors) -> dict[str, Tensor]:
    """Return the low bits of the mantissas of results, as integers, each changed by the sum of all results' bits."""
    import torch

    dtype, mantissa = {
        torch.bfloat16: (torch.int16, 7),
        torch.float16: (torch.int16, 10),
        torch.float32: (torch.int32, 23),
    }[next(iter(results.values())).dtype]
    bits = {name: t.view(dtype) for name, t in results.items()}
    total = torch.stack([t.sum() for t in bits.values()]).sum()
    low = torch.bitwise_and(total, 2 ** (mantissa - FREE_BITS) - 1).to(dtype)
    return {name: torch.bitwise_xor(t, low).bitwise_and_(2 ** (mantissa - FREE_BITS) - 1) for name, t in bits.items()}


class Chain:
    """A prepared call with the memory of a chain of launches; on a GPU each chain is captured once in a CUDA graph."""

    def __init__(self, prepared: Prepared, base: Tensors, given: Tensors, places: Sequence[Tensors]) -> None:
        """Take what `run` takes, and launch twice, so that all is compiled."""
        self._prepared, self._tensors, self._places = prepared, (base, given), places
        self._graphs: dict[int, Any] = {}
        self.uncaptured = ""  # why the chains are launched one by one on a GPU; "" where they are captured
        self._run(min(2, len(places)))

    def launch(self, count: int) -> None:
        """Launch `count` times, and wait for the device. The first chain of a length takes longer."""
        import torch

        if not self._places[0]["out"].is_cuda:
            self._run(count)
            return
        if count not in self._graphs and not self.uncaptured:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    self._run(count)
                self._graphs[count] = graph
            except Exception as error:
                self.uncaptured = one_line(str(error))[:200] or type(error).__name__
                torch.cuda.synchronize()
        if count in self._graphs:
            self._graphs[count].replay()
        else:
            self._run(count)
        torch.cuda.synchronize()

    def _run(self, count: int) -> None:
        run(self._prepared, *self._tensors, self._places[:count])


def order_of(t: Tensor) -> list[int] | None:
    """Return the dimensions of a dense tensor in their order in memory; None for a tensor with gaps or overlaps."""
    strides = t.stride()
    order = sorted(range(t.dim()), key=lambda dim: (-strides[dim], -t.shape[dim]))
    return order if t.permute(order).is_contiguous() else None


def in_order(t: Tensor, order: Sequence[int]) -> Tensor:
    """Return a tensor of the same values, with its dimensions in this order in memory. Raises ValueError for none."""
    if sorted(order) != list(range(t.dim())):
        raise ValueError(f"{order} is no order of {t.dim()} dimensions")
    back = sorted(range(t.dim()), key=lambda dim: order[dim])
    return t.permute(*order).contiguous().permute(*back)


def _flat(t: Tensor) -> Tensor:
    """Return the elements of a dense tensor in their order in memory."""
    return t.permute(order_of(t) or [*range(t.dim())]).reshape(-1)
