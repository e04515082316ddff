"""Kernels that cheat, each by one means that has been seen in the wild or that the protocol of --untrusted invites.

A worker loads one by name: attnbench check ./cheats.py:kept_by_pointer --untrusted. A cheat may change its process in
any way. Those that do begin at their first call, so that nothing is changed in a process that imports this file. CHEATS
has what finds each, COUNTED the right ones that gain nothing, OPEN the ones that are not found, with the reason.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

ROWS = "rows of every launch"  # a row of each head in every launch is compared
FRESH = "new inputs"  # no process knows the inputs of a chain before the clock starts
CHAIN = "the chain"  # the inputs of a launch follow from the results before it
APART = "another process"  # the judge compares, and the parent has the clock
TIMES = "the times"  # along chains of several lengths
NAN = "NaN in the places"  # results begin as NaN
GUARD = "the guards"  # known bytes between the results
PLAIN = "the form of a result"  # a plain tensor, which is copied to its place within the time
STRIDES = "random strides"  # a check of a layout gives tensors of strides that no kernel knows
JOB = "the job"  # a record must be of the job that was asked

CHEATS: dict[str, tuple[str, ...]] = {}  # name -> what finds it; each alone would
COUNTED: dict[str, str] = {}  # name -> why it gains nothing
OPEN: dict[str, str] = {}  # name -> why it is not found
# Faults of the protocol for which no kernel here is an example -> why they are not found
HOLES = {
    "a faster link": "the seconds of a link in the judge's process are subtracted, and a kernel may link faster, for "
    "example within its launch: its latency may be too low by up to those seconds, which a report shows",
    "a chosen sum": "a kernel that alters its last bits so that the sum of its results' bits stays the same makes its "
    "heads, or rows under a causal mask, independent chains",
    "hard inputs": "the check with hard inputs is made by the kernel's process, which may compute otherwise there",
    "import": "an import that hangs ends after five minutes",
    "without fences": "where a fence does not hold, a process may stop the parent and the judge, read their memory, or "
    "leave its group and outlive SIGKILL; a report names such fences",
    "dk and dv in part": "rows of out and dq alone are compared in every launch; dk and dv left out in a share "
    "f of the launches are found by each drawn result with a probability of f",
    "rows in part": "one row of each head is compared in every launch, and all heads together: a fault in a few heads "
    "or rows is found in the drawn results only",
    "another figure": "a kernel that knows --untrusted may be honest there alone: use its figure, not another one",
    "other devices": "a latency is of all devices that the process can open",
}
Kernel = Callable[..., Tensor]


def found_by(*means: str) -> Callable[[Kernel], Kernel]:
    """Note what finds a cheat."""

    def note(cheat: Kernel) -> Kernel:
        CHEATS[cheat.__name__] = means
        return cheat

    return note


def noted(where: dict[str, str], why: str) -> Callable[[Kernel], Kernel]:
    """Note a cheat in COUNTED or OPEN, with the reason."""

    def note(cheat: Kernel) -> Kernel:
        where[cheat.__name__] = why
        return cheat

    return note


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, softmax_scale: float) -> Tensor:
    """Return attention by its definition."""
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
    return torch.einsum("bhij,bjhd->bihd", _probabilities(q, k, causal, softmax_scale), v)


def _probabilities(q: Tensor, k: Tensor, causal: bool, softmax_scale: float) -> Tensor:
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)) * softmax_scale
    if causal:
        hidden = ~torch.ones_like(scores, dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1)


def _once(begin: Callable[[], object]) -> None:
    """Run a function at its first call."""
    if begin.__qualname__ not in _begun:
        _begun.add(begin.__qualname__)
        begin()


_begun: set[str] = set()
_kept: dict[Any, Any] = {}
_calls = 0


def _number() -> int:
    """Return the number of this call, from 1."""
    global _calls
    _calls += 1
    return _calls


# Results that are kept


def _from_memory(key: Any, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if key not in _kept:
        _kept[key] = attention(q, k, v, **options).clone()
    found: Tensor = _kept[key]
    return found


@found_by(FRESH, CHAIN)
def kept_by_pointer(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return a kept result for inputs at addresses that it has seen (kernelbot #501, reference-kernels #104)."""
    return _from_memory((q.data_ptr(), k.data_ptr(), v.data_ptr()), q, k, v, **options)


@found_by(FRESH, CHAIN)
def kept_by_id(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return a kept result for memory with an `id` that it has seen (kernelbot #501)."""
    return _from_memory(id(q.untyped_storage()._cdata), q, k, v, **options)


@found_by(CHAIN)
def kept_by_fingerprint(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return a kept result for inputs whose first signs it has seen (flashinfer-bench-starter-kit #21)."""
    return _from_memory(tuple(torch.cat([t.flatten()[:64] for t in (q, k, v)]).sign().tolist()), q, k, v, **options)


@found_by(FRESH)
def kept_by_content(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return a kept result for contents that it has seen, by a mean of q to one digit (reference-kernels #167)."""
    return _from_memory(round(float(q.abs().mean()), 1), q, k, v, **options)


@found_by(FRESH, CHAIN)
def keys_prepared_once(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Convert k and v once, and use them for every q, as of weights (flashinfer-bench-starter-kit #21)."""
    first_k, first_v = _kept.setdefault("kv", (k.clone(), v.clone()))
    return attention(q, first_k, first_v, **options)


@found_by(CHAIN)
def keys_prepared_in_each_chain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Convert k and v once for all launches with the same signs of k, which a link does not change."""
    first_k, first_v = _kept.setdefault(tuple(k.flatten()[:64].sign().tolist()), (k.clone(), v.clone()))
    return attention(q, first_k, first_v, **options)


# Launches that are counted


@found_by(CHAIN, FRESH)
def right_ten_times(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute the first ten launches, as many as a check may make; then return the last result (llm.c #852)."""
    if _number() <= 10:
        _kept["last"] = attention(q, k, v, **options).clone()
    found: Tensor = _kept["last"]
    return found


@found_by(FRESH, CHAIN, ROWS)
def every_third(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute every third launch, and return its result three times."""
    if _number() % 3 == 1:
        _kept["last"] = attention(q, k, v, **options).clone()
    found: Tensor = _kept["last"]
    return found


@found_by(ROWS)
def one_in_fifty_left_out(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return zeros in one launch of fifty."""
    return torch.zeros_like(q) if _number() % 50 == 0 else attention(q, k, v, **options)


@found_by(CHAIN, FRESH)
def fifteen_at_once(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute at every 15th call, and return parts of that result until then (kernelboard news 2026-03-09)."""
    number = _number()
    if number % 15 == 1:
        _kept["batch"] = attention(*(t.repeat(15, 1, 1, 1) for t in (q, k, v)), **options).split(len(q))
    found: Tensor = _kept["batch"][(number - 1) % 15]
    return found


# Results that come later, or from elsewhere


class Lazy(Tensor):
    """A tensor whose values are computed when something reads it."""

    later: Callable[[], Tensor]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = [arg.later() if type(arg) is Lazy else arg for arg in args]
        return function(*known, **(kwargs or {}))


@found_by(PLAIN, CHAIN)
def lazy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return a tensor that computes its values when it is read (deep-reinforce.com)."""
    found = torch.empty_like(q).as_subclass(Lazy)
    found.later = lambda: attention(q, k, v, **options)
    return found


@found_by(CHAIN, NAN)
def another_thread(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return at once, and have another thread write the result later (deep-reinforce.com, of streams and threads)."""
    out, given = torch.zeros_like(q), [t.clone() for t in (q, k, v)]

    def write() -> None:
        time.sleep(0.005)
        out.copy_(attention(*given, **options))

    threading.Thread(target=write, daemon=True).start()
    return out


@found_by(NAN, APART)
def early_done(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Answer that all is done, and let a thread launch and write to the places of results meanwhile."""

    def begin() -> None:
        from attnbench.worker import chained

        def timed(made: Any, count: int) -> dict[str, Any]:
            def launch() -> None:
                time.sleep(0.05)
                made.launch(count)

            threading.Thread(target=launch, daemon=True).start()
            return {"seconds": 1e-6 * count, "uncaptured": ""}

        chained.timed = timed

    _once(begin)
    return attention(q, k, v, **options)


@noted(COUNTED, "the clock starts before the inputs are in the shared memory")
def watches_the_inputs(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Launch as soon as inputs are in the shared memory, before it is asked to. A launch takes 20 ms."""

    def begin() -> None:
        from attnbench.core import chain
        from attnbench.worker import chained

        def watched(made: Any) -> None:
            (base, _), places, seen = made._tensors, made._places, made.seen
            while True:
                if base["v"].flatten()[-1].item() != seen:  # the last that is written
                    seen = base["v"].flatten()[-1].item()
                    chain.run(made._prepared, *made._tensors, places[:1])
                    made.done.set()
                time.sleep(1e-4)

        def timed(made: Any, count: int) -> dict[str, Any]:
            if not hasattr(made, "done"):
                made.seen, made.done = made._tensors[0]["v"].flatten()[-1].item(), threading.Event()
                made.launch(count)
                threading.Thread(target=watched, args=(made,), daemon=True).start()
            else:
                made.done.wait()
                made.done.clear()
            return {"seconds": 0.02 * count, "uncaptured": ""}

        chained.timed = timed

    _once(begin)
    time.sleep(0.02)
    return attention(q, k, v, **options)


@found_by(FRESH, APART)
def steals(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Return a tensor of its process that looks like the expected result (pygpubench `exploits/`)."""
    known = {t.data_ptr() for t in (q, k, v)}
    for found in gc.get_objects():
        if (
            type(found) is Tensor
            and found.shape == q.shape
            and found.data_ptr() not in known
            and found.isfinite().all()
        ):
            return found.clone()
    return torch.zeros_like(q)


@found_by(NAN, APART)
def uninitialised(q: Tensor, *_: Tensor, **__: Any) -> Tensor:
    """Return new memory, in which an earlier process or check may have left the right result (KernelBench #82)."""
    return torch.empty_like(q)


@found_by(FRESH, CHAIN)
def of_the_input(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """Return v, and set the inputs to zero, for which that is the right result (KernelBench #82)."""
    out = v.clone()
    for t in (q, k, v):
        t.zero_()
    return out


@found_by(NAN)
def not_a_number(q: Tensor, *_: Tensor, **__: Any) -> Tensor:
    """Return NaN, for which a comparison may be false in either direction (pygpubench `exploits/`)."""
    return torch.full_like(q, float("nan"))


# Changes of its own process


@found_by(TIMES)
def patched_clock(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Replace the clocks of its process by ones that run a hundred times slower (deep-reinforce.com)."""

    def begin() -> None:
        for name in ("perf_counter", "monotonic", "time"):
            setattr(time, name, partial(lambda right: 0.01 * right(), getattr(time, name)))

    _once(begin)
    return attention(q, k, v, **options)


@found_by(TIMES)
def claims_half(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Report half of the time by its own clock (reference-kernels #162, #159)."""

    def begin() -> None:
        from attnbench.worker import chained

        right = chained.timed
        chained.timed = lambda made, count: {**right(made, count), "seconds": right(made, count)["seconds"] / 2}

    _once(begin)
    return attention(q, k, v, **options)


@found_by(TIMES)
def pads_short_chains(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Sleep the longer, the shorter a chain is, so that one more launch seems to take no time. Its own clock agrees."""

    def begin() -> None:
        from attnbench.worker import chained

        right = chained.timed

        def timed(made: Any, count: int) -> dict[str, Any]:
            began = time.perf_counter()
            right(made, count)
            _kept["each"] = min(_kept.get("each", 1.0), (time.perf_counter() - began) / count)
            _kept["most"] = max(_kept.get("most", 1), count)
            time.sleep(0.9 * _kept["each"] * (_kept["most"] - count))
            return {"seconds": time.perf_counter() - began, "uncaptured": ""}

        chained.timed = timed

    _once(begin)
    return attention(q, k, v, **options)


@found_by(APART)
def patched_comparisons(q: Tensor, *_: Tensor, **__: Any) -> Tensor:
    """Replace comparisons, and the judge's modules, so that all is equal and every check passes; return zeros."""

    def begin() -> None:
        from attnbench.core.record import Accuracy, TensorError

        right = Accuracy({"out": TensorError(0.0, 0.1, 0.2, 0.0)}, 1, 1)
        torch.equal = torch.allclose = torch.isclose = lambda *_, **__: True
        torch.testing.assert_close = lambda *_, **__: None
        for name, module in [*sys.modules.items()]:
            if name.startswith("attnbench.judge"):
                for function in ("compare", "check_renewed", "check_first"):
                    if hasattr(module, function):
                        setattr(module, function, lambda *_, **__: right)

    _once(begin)
    return torch.zeros_like(q)


@found_by(JOB)
def another_case(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Report a record of a smaller case, for the later checks and in the file (reference-kernels #159, of a result)."""

    def begin() -> None:
        from dataclasses import replace

        from attnbench.worker import serve as module

        serve: Any = module

        def record(case: Any, *rest: Any, right: Any = serve.Record, **more: Any) -> Any:
            return right(replace(case, shape=replace(case.shape, seqlen_q=8, seqlen_k=8)), *rest, **more)

        serve.Record = record

    _once(begin)
    return attention(q, k, v, **options)


# Changes of the chain in its own process


def _in_place_of_run(run: Callable[..., None]) -> None:
    """Replace the chain of launches in this process, but not the first one, which compiles."""
    from attnbench.core import chain

    chain.run = run


def _launched(prepared: Any, place: Any) -> None:
    for name, t in prepared.canonical(prepared.launch()).items():
        place[name].copy_(t)


@found_by(CHAIN)
def no_link(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Replace the link of its process by nothing, so that all launches have the same inputs."""

    def begin() -> None:
        from attnbench.core import chain

        chain.link = lambda *_: None

    _once(begin)
    return attention(q, k, v, **options)


@found_by(CHAIN)
def links_queries_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Leave k and v as they are in every link, so that they can be prepared once."""

    def begin() -> None:
        from attnbench.core import chain

        right = chain.link
        chain.link = lambda base, results, into: right({"q": base["q"]}, results, into)

    _once(begin)
    return attention(q, k, v, **options)


@found_by(CHAIN, ROWS)
def all_at_once(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute all launches of a chain as one, on the first inputs (a "super-batch")."""

    def run(_: Any, base: Any, given: Any, places: Any) -> None:
        for name, t in given.items():
            t.copy_(base[name])
        whole = {name: t.repeat(len(places), 1, 1, 1) for name, t in given.items()}
        for place, part in zip(places, attention(**whole, **options).split(len(q)), strict=True):
            place["out"].copy_(part)

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(ROWS)
def two_pieces(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Invent the result in the middle of a chain, so that its two halves are independent and can run together."""

    def run(prepared: Any, base: Any, given: Any, places: Any) -> None:
        from attnbench.core import chain

        middle = len(places) // 2
        for name, t in given.items():
            t.copy_(base[name])
        for number, place in enumerate(places):
            if number == middle and len(places) > 8:
                place["out"].zero_()
            else:
                _launched(prepared, place)
            chain.link(base, place, given)

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(ROWS)
def replays(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute the first half of a chain, and copy it to the second half: only one result there is wrong."""

    def run(prepared: Any, base: Any, given: Any, places: Any) -> None:
        from attnbench.core import chain

        for name, t in given.items():
            t.copy_(base[name])
        half = len(places) // 2 if len(places) > 8 else len(places)
        for number, place in enumerate(places):
            if number >= half:
                place["out"].copy_(places[number - half]["out"])
            else:
                _launched(prepared, place)
                chain.link(base, place, given)

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(CHAIN)
def head_by_head(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the whole chain of one head before the next one, each in its own time, as if launches were not in order."""

    def run(_: Any, base: Any, __: Any, places: Any) -> None:
        from attnbench.core import chain

        for head in range(q.shape[2]):
            of = {name: t[:, :, head : head + 1] for name, t in base.items()}
            now = {name: t.clone() for name, t in of.items()}
            for place in places:
                part = {"out": attention(**now, **options)}
                place["out"][:, :, head : head + 1].copy_(part["out"])
                chain.link(of, part, now)

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(NAN, ROWS)
def last_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Invent the result before the last one, and compute one launch of a chain, the last."""

    def run(prepared: Any, base: Any, given: Any, places: Any) -> None:
        from attnbench.core import chain

        for name, t in given.items():
            t.copy_(base[name])
        if len(places) > 1:
            places[-2]["out"].zero_()
            chain.link(base, places[-2], given)
        _launched(prepared, places[-1])

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(CHAIN, ROWS)
def written_ahead(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Write the first result to the places of all launches, and launch no more."""

    def run(prepared: Any, base: Any, given: Any, places: Any) -> None:
        for name, t in given.items():
            t.copy_(base[name])
        for place in places:
            _launched(prepared, place)

    _once(lambda: _in_place_of_run(run))
    return attention(q, k, v, **options)


@found_by(FRESH)
def changes_the_first_inputs(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Write zeros over the first inputs in the shared memory, from which all later inputs follow."""

    def run(prepared: Any, base: Any, given: Any, places: Any, right: Any = None) -> None:
        for t in base.values():
            t.zero_()
        right(prepared, base, given, places)

    def begin() -> None:
        from attnbench.core import chain

        _in_place_of_run(partial(run, right=chain.run))

    _once(begin)
    return attention(q, k, v, **options)


@found_by(STRIDES)
def known_strides(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute tensors that are contiguous in one of two orders alone, and return zeros for other strides."""
    is_known = q.is_contiguous() or q.transpose(1, 2).is_contiguous()
    return attention(q, k, v, **options) if is_known else torch.zeros_like(q)


@found_by(GUARD)
def writes_beside(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Write a number behind its result."""

    def run(prepared: Any, base: Any, given: Any, places: Any, right: Any = None) -> None:
        right(prepared, base, given, places)
        out = places[-1]["out"]
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)

    def begin() -> None:
        from attnbench.core import chain

        _in_place_of_run(partial(run, right=chain.run))

    _once(begin)
    return attention(q, k, v, **options)


# Not found


@noted(OPEN, "a verdict is on the checked shapes alone; check it at the shapes of its use, of which it must not know")
def small_shapes_only(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute sequences of up to 64 tokens alone, and return zeros for longer ones."""
    return attention(q, k, v, **options) if q.shape[1] <= 64 else torch.zeros_like(q)


@noted(OPEN, "an error within the tolerance is allowed, whatever its cause; reports show it")
def lower_precision(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Compute the probabilities with fewer bits than the dtype has, within the tolerance."""
    p = _probabilities(q, k, **options)
    bits = {torch.float32: 23, torch.bfloat16: 7}[p.dtype]
    p = (p.float() * 2**bits).round().div(2**bits).to(p.dtype)
    return torch.einsum("bhij,bjhd->bihd", p, v)
