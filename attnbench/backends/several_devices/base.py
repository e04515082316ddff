"""Base classes of backends that compute one sequence on several devices, around a backend of one device.

With one rank they call only the backend of one device, so that the baseline is the same call. A worker of several
ranks is a process for each device. torch.distributed's default group joins the processes before `prepare`
(worker/ranks/group.py), and every rank makes the same calls in the same order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnbench.backends import BACKENDS, load
from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.core import split_sequence
from attnbench.core.backend import Prepared, Probe, Signature, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from attnbench.core.backend import Inputs


def _of_inner(name: str) -> Any:
    """Return a property that reads the named attribute of the backend that computes on each device."""
    return property(lambda backend: getattr(backend.on_one, name))


class SeveralDevices(BackendBase):
    """A method that splits a sequence over the ranks, around the backend `inner` that computes on each."""

    several = True

    @property
    def inner(self) -> str:
        """The name of the backend that computes on each device, as in the map of backends."""
        raise NotImplementedError

    @cached_property
    def on_one(self) -> BackendBase:
        """The backend that computes on each device."""
        found = load(self.inner, BACKENDS[self.inner])
        assert isinstance(found, BackendBase)
        return found

    efficiency, compiles, starts_compiler, runtime_checker, probe_imports, distributions, uses = map(
        _of_inner,
        ("efficiency", "compiles", "starts_compiler", "runtime_checker", "probe_imports", "distributions", "uses"),
    )

    def probe(self) -> Probe:
        return self.on_one.probe()

    def installed(self) -> Probe | None:
        return self.on_one.installed()

    def unsupported(self, case: Case, device: Device) -> str | None:
        if case.dtype == "fp8":
            return "no fp8 over several devices"
        if case.ranks > 1 and (reason := self.cannot_split(case, device)):
            return reason
        return self.on_one.unsupported(self.on_each(case), device)

    def workspace(self, case: Case) -> Workspace:
        return self.on_one.workspace(self.on_each(case))

    def signature(self, case: Case, device: Device) -> Signature:
        return self.on_one.signature(self.on_each(case), device)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        return self.on_one.prepare(case, inputs) if case.ranks == 1 else self.prepare_rank(case, inputs)

    def cannot_split(self, case: Case, device: Device) -> str | None:
        """Return why this method cannot split the sequence of a case over its ranks, or None where it can."""
        raise NotImplementedError

    def on_each(self, case: Case) -> Case:
        """Return the case that `inner` computes on each device; with one rank the same case."""
        raise NotImplementedError

    def prepare_rank(self, case: Case, inputs: Inputs) -> Prepared:
        """Return the prepared call of this rank, whose `inputs` are the tokens at the positions `spans`."""
        raise NotImplementedError

    def spans(self, case: Case, rank: int) -> split_sequence.Spans:
        """Return the positions of the sequence whose queries and keys a rank holds."""
        return split_sequence.contiguous(case.shape.seqlen_q, case.ranks, rank)


class RingAttention(SeveralDevices):
    """Ring attention: every rank keeps its queries and passes keys and values on (Liu et al., arXiv 2310.01889).

    A causal sequence is split in head-tail order (rank i has the parts i and 2 * ranks - 1 - i of 2 * ranks), which
    balances the work; other sequences are split into contiguous parts.
    """

    def on_each(self, case: Case) -> Case:
        return case if case.ranks == 1 else split_sequence.part_of(case)

    def spans(self, case: Case, rank: int) -> split_sequence.Spans:
        split = split_sequence.head_tail if case.causal else split_sequence.contiguous
        return split(case.shape.seqlen_q, case.ranks, rank)

    def prepare_rank(self, case: Case, inputs: Inputs) -> Prepared:
        prepared = autograd_prepared(split_sequence.part_of(case), inputs, self.attention(case), self.order)

        def compute() -> Any:
            with self.nothing_moved():
                return prepared.launch()

        return replace(prepared, moved=self.bytes_moved(case, inputs), compute=compute)

    def bytes_moved(self, case: Case, inputs: Inputs) -> int:
        """Return the bytes that a rank sends, from the rank's own `inputs`.

        By default keys and values go to every other rank, in the forward and again in the backward, and their
        gradients go around the whole ring in float32.
        """
        keys = inputs.k.nbytes + inputs.v.nbytes
        moved = (case.ranks - 1) * keys * (case.has_forward + case.has_backward)
        return moved + (case.ranks * keys * 4 // inputs.k.element_size() if case.has_backward else 0)

    def attention(self, case: Case) -> Callable[[Any, Any, Any], Any]:
        """Return attention of this rank's q, k and v over all ranks."""
        raise NotImplementedError

    def nothing_moved(self) -> AbstractContextManager[None]:
        """Return a context in which the ring moves nothing: each rank computes with the keys and values that it holds.

        They have the size of the ones that would arrive. Their values do not matter to the time.
        """
        raise NotImplementedError
