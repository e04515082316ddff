"""Comparison of a cell's results bit by bit: over launches, over processes, and of one sequence without its batch.

Right results may differ in their last bits from launch to launch, where a kernel adds by atomics, or with the size of
the batch, where the number of parts of a sum depends on it. All launches here are on the inputs of the case, and each
result is compared as bytes. A backward that is timed alone has the `out` of one forward, which is left out.
"""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from attnbench.core import pages
from attnbench.core.backend import Backend, Inputs, Prepared, refusal
from attnbench.core.case import Case
from attnbench.core.machine import Device
from attnbench.core.record import Bitwise
from attnbench.judge import inputs
from attnbench.worker import failures

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LAUNCHES = 8  # launches that are compared; fewer of long calls
MAX_SECONDS = 10.0  # most seconds of these launches, of which there are at least two
OF_ALL = ("sink", "page_table", "descale")  # inputs that belong to no single sequence


def compare(backend: Backend, case: Case, given: Inputs, prepared: Prepared, device: Device, seconds: float) -> Bitwise:
    """Return how the results of a call, prepared on `given`, compare bit by bit. Another process is not compared here.

    `seconds` is the time of one launch; 0 where it is not known.
    """
    launches = max(2, min(LAUNCHES, int(MAX_SECONDS / seconds) if seconds else LAUNCHES))
    first = {name: t.clone() for name, t in _results(case, prepared).items()}
    differing = dict.fromkeys(first, 0)
    for _ in range(launches - 1):
        for name, t in _results(case, prepared).items():
            differing[name] += not _same(t, first[name])
    differs, untried = _alone(backend, case, given, first, device)
    return Bitwise(launches, differing, {name: _digest(t) for name, t in first.items()}, differs, untried)


def digests(backend: Backend, case: Case, seed: int, device: torch.device) -> dict[str, str]:
    """Return the digests of the results of one launch on the case's inputs, as `Bitwise` has them."""
    prepared = backend.prepare(case, inputs.make(case, str(device), seed))
    return {name: _digest(t) for name, t in _results(case, prepared).items()}


def not_alone(case: Case) -> str:
    """Return why no sequence of a case can be computed without its batch; "" where one can."""
    if case.shape.batch == 1:
        return "its batch has one sequence"
    if case.dropout_p:
        return "dropout draws other random numbers for a sequence alone"
    if case.dtype == "fp8":
        return "inputs in fp8 have one scale for the whole batch"
    if case.append:
        return "a call that appends changes the cache"
    if case.is_ragged and not (case.is_paged and case.has_like_queries):
        return "a sequence of a ragged batch is a dense case alone, which another call computes"
    return ""


def last_sequence(case: Case, given: Inputs) -> tuple[Case, Inputs]:
    """Return the last sequence of a batch as a case of its own, and its part of the inputs, as views where possible."""
    (*_, (_, seqlen_q, seqlen_k)) = case.sequences
    alone = replace(case, lengths=(), shape=replace(case.shape, batch=1, seqlen_q=seqlen_q, seqlen_k=seqlen_k))
    if given.page_table is not None:
        table = given.page_table[-1:, : alone.pages[0]].contiguous()
        return alone, replace(given, q=pages.queries(case, given.q)[-1:], page_table=table)
    named = {of.name: getattr(given, of.name) for of in fields(given) if of.name not in OF_ALL}
    return alone, replace(given, **{name: t[-1:] for name, t in named.items() if t is not None})


def _alone(
    backend: Backend, case: Case, given: Inputs, batch: dict[str, Tensor], device: Device
) -> tuple[tuple[str, ...], str]:
    """Return the results of the last sequence that differ where it is computed alone, and why it was not computed."""
    if why := not_alone(case):
        return (), why
    alone, own = last_sequence(case, given)
    if why := refusal(backend, alone, device) or "":
        return (), f"alone it is refused: {why}"
    try:
        prepared = backend.prepare(alone, own)
        results = _results(alone, prepared)
    except Exception as error:
        return (), f"alone it fails: {failures.reason(error, '')}"
    part = {name: pages.queries(case, t) if case.is_paged else t for name, t in batch.items() if name != "dsink"}
    return tuple(name for name, t in part.items() if not _same(t[-1:], results[name])), ""


def _results(case: Case, prepared: Prepared) -> dict[str, Tensor]:
    """Launch, and return the results that the launch computed."""
    found = prepared.canonical(prepared.launch())
    return {name: t.detach() for name, t in found.items() if case.has_forward or name != "out"}


def _same(one: Tensor, other: Tensor) -> bool:
    import torch

    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(t: Tensor) -> Tensor:
    """Return the bytes of a tensor in the order of its elements, whatever its strides."""
    import torch

    return t.resolve_neg().reshape(-1).contiguous().view(torch.uint8)


def _digest(t: Tensor) -> str:
    taken = _bytes(t).cpu()
    return hashlib.blake2b((ctypes.c_ubyte * taken.numel()).from_address(taken.data_ptr()), digest_size=16).hexdigest()
