"""A chain of launches, by which a kernel is checked and timed from outside its process.

The first launch reads inputs that nobody could know before. Each later one reads the same inputs with their low bits
changed by the last results (`link`): a launch can begin only when the one before it has ended, its k and v are as new
as its q, and no result is worth keeping. The link is public and cheap, and changes no value by more than a quarter, so
that inputs keep their distribution along the chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
        (not case.has_forward, "a backward alone"),
    ):
        if holds:
            return f"no chain of launches with {what}"
    return None


def link(base: Tensors, results: Tensors, into: Tensors) -> None:
    """Write the inputs of the next launch: those of the first, with low mantissa bits changed by the last results.

    base, into: inputs by name; results: contiguous results by name, of the dtype of the inputs. Where a result has
    another shape than an input, it is repeated with an odd period, so that no two rows change alike.
    """
    import torch

    changes = {name: _low_bits(t) for name, t in results.items()}
    for name, first in base.items():
        source = next(source for source in SOURCES[name] if source in changes)
        change, old = changes[source], first.view(changes[source].dtype)
        if results[source].shape == first.shape:
            torch.bitwise_xor(old, change.view(old.shape), out=into[name].view(old.dtype))
            continue
        flat = old.reshape(-1)
        new = torch.empty_like(flat)
        period = min(len(flat), len(change))
        if period < len(flat):
            period -= 1 - period % 2
        whole = len(flat) // period * period
        torch.bitwise_xor(flat[:whole].view(-1, period), change[:period], out=new[:whole].view(-1, period))
        torch.bitwise_xor(flat[whole:], change[: len(flat) - whole], out=new[whole:])
        into[name].view(old.dtype).copy_(new.view(old.shape))


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


def _low_bits(t: Tensor) -> Tensor:
    """Return the low bits of the mantissas of a tensor, as a flat tensor of integers."""
    import torch

    dtype, mantissa = {
        torch.bfloat16: (torch.int16, 7),
        torch.float16: (torch.int16, 10),
        torch.float32: (torch.int32, 23),
    }[t.dtype]
    return torch.bitwise_and(t.view(dtype).view(-1), 2 ** (mantissa - FREE_BITS) - 1)


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
