"""The judge's side of a chain of launches (core/chain.py) of a kernel that may cheat.

The kernel's process gets shared memory alone: the inputs of the first launch, drawn from the operating system for each
chain, and a place for the results of each launch. Results are copied out of this memory before a reference is
computed, and the same inputs never come twice, so that knowing a reference is worth nothing. A launch is compared on
the inputs that follow from the results of the launch before it, as its own process left them. In every launch one row
of each head is compared: with one wrong result among many, the launches after it could run at the same time as those
before it, or their results could be copies of earlier ones. Requests ("do"):

    {"do": "chain", "case": {...}, "bytes": n, "orders": {...}} -> {"base": tensors, "places": [tensors, ...],
         "is_plain": whether all are contiguous}, in place of an earlier chain: as many launches as have results of n
         bytes, from 2 to MOST_LAUNCHES. All tensors have the orders in memory that the kernel states; copies to another
         order are the kernel's own time
    {"do": "draw"}                         -> {}; new inputs are drawn, and NaN is in all places
    {"do": "release"}                      -> {}; these inputs are in the shared memory, drawn now if they were not
    {"do": "keep", "launches": n}          -> {}; the last result of a chain of n launches is kept, and some others, and
         a row of each head in every launch is compared
    {"do": "rule"}                         -> {"accuracy": {...}, "launch": n, "checked": n}: the first wrong of all
         kept results or rows, and the number of its launch from 1; of the last kept result where all are right
    {"do": "link", "launches": n, "plain": false} -> {}; a chain of n launches that compute nothing has run here; with
         "plain" on contiguous tensors: links of unlike orders cost more, and a kernel may state orders that it has not
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.core import chain
from attnbench.core.backend import Inputs, Prepared
from attnbench.core.case import Case
from attnbench.core.json import from_json, to_json
from attnbench.core.record import Accuracy, TensorError
from attnbench.core.renewed_inputs import Renewal
from attnbench.core.shared_tensors import Arena
from attnbench.judge import inputs, make_check
from attnbench.judge.exact_attention import ROW_RESULTS, compute_reference
from attnbench.judge.row_sample import RowSample, draw_seed
from attnbench.judge.tolerance import expected_results, summation_error

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REQUESTS = ("chain", "draw", "release", "keep", "rule", "link")
MOST_LAUNCHES = 1000
DRAWN = 3  # results of a chain that are kept beside the last one, drawn at random
GUARD = 4096  # bytes before and after each launch's results, which nothing may write
SEED_BITS = 62
MOST_SHIFT = 2**16  # bytes
WIDE = 4.0  # error of one row over eager's; results of other inputs, however near, are off by far more
KEPT_BYTES = {"cuda": 2**32, "cpu": 2**28}  # of kept results, above which they are compared at once
ROWS_BYTES = {"cuda": 2**30, "cpu": 2**24}  # of the inputs of launches of which rows are compared at once

Results = Mapping[str, "Tensor"]
Orders = Mapping[str, Sequence[int] | None]  # by tensor: its dimensions in their order in memory; None: as they are


class ChainJudge:
    """The chains of one case at a time on one device."""

    def __init__(self, device: torch.device, arena: Arena | None = None) -> None:
        self._device = device
        self._arena = arena or Arena(device)
        self._draw = random.SystemRandom()

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        match request["do"]:
            case "chain":
                return self._begin(from_json(Case, request["case"]), request["bytes"], request["orders"])
            case "draw":
                self._draw_inputs()
                return {}
            case "release":
                self._release()
                return {}
            case "keep":
                self._keep(request["launches"])
                return {}
            case "rule":
                accuracy, launch, checked = self._rule()
                return {"accuracy": to_json(accuracy), "launch": launch, "checked": checked}
            case "link":
                self._link(plain=request["plain"]).launch(request["launches"])
                return {}
            case other:
                raise ValueError(f"unknown request of the judge of chains {other!r}")

    def _begin(self, case: Case, nbytes: int, orders: Mapping[str, Orders]) -> dict[str, Any]:
        import torch

        self._case, self._order = case, orders["inputs"] if case.layout == "native" else {}
        self._kept: list[tuple[int, int, Results | None, Results]] = []
        self._drawn: Results | None = None  # inputs that are not yet released
        self._compared: tuple[Accuracy, int] | None = None  # first wrong result, else the last; number of its launch
        self._checked = 0  # results compared
        self._wrong_rows: tuple[Accuracy, int] | None = None  # of the first launch with a wrong row, by its number
        self._arena.reset()
        given = self._made(secrets.randbits(SEED_BITS))
        shift = torch.empty(1 + secrets.randbelow(MOST_SHIFT), dtype=torch.uint8, device=self._device)
        self._arena.reserve({"shift": shift})  # the same case has other addresses each time
        described, self._base = self._arena.place(given.values)
        sources = {"out": given.q, "dq": given.q, "dk": given.k, "dv": given.v}
        like = {name: sources[name].new_empty(sources[name].shape) for name in expected_results(case)}
        like["out"] = given.q.new_empty((*given.q.shape[:-1], case.shape.headdim_v))
        like = {name: _in_order(t, orders["results"].get(name)) for name, t in like.items()}
        self._pattern = torch.randint(256, (GUARD,), dtype=torch.uint8, device=self._device)
        self._places, self._guards, places = [], [], []
        count = nbytes // sum(t.numel() * t.element_size() for t in like.values())
        for _ in range(max(2, min(count, MOST_LAUNCHES))):
            described_place, tensors = self._arena.reserve({**like, "guard": self._pattern})
            self._guards.append(tensors.pop("guard").copy_(self._pattern))
            self._places.append(tensors)
            places.append({**described_place, "tensors": {name: described_place["tensors"][name] for name in like}})
        self._chains_of_links: dict[bool, chain.Chain] = {}
        is_plain = all(t.is_contiguous() for of in (self._base, self._places[0]) for t in of.values())
        return {"base": described, "places": places, "is_plain": is_plain}

    def _made(self, seed: int) -> Inputs:
        made = inputs.make(self._case, str(self._device), seed)
        return made.with_values({name: _in_order(t, self._order.get(name)) for name, t in made.values.items()})

    def _draw_inputs(self) -> None:
        self._seed = secrets.randbits(SEED_BITS)
        for place in self._places:
            for t in place.values():
                t.fill_(float("nan"))
        self._drawn = self._made(self._seed).values
        self._wait()

    def _release(self) -> None:
        if self._drawn is None:
            self._draw_inputs()
        assert self._drawn
        for name, t in self._drawn.items():
            self._base[name].copy_(t)
        self._drawn = None
        self._wait()

    def _keep(self, launches: int) -> None:
        """Copy the last result, and some others, with the results before them."""
        others = range(launches - 1)
        numbers = [launches - 1, *self._draw.sample(others, min(DRAWN, len(others)))]
        for number in numbers:
            before = _copied(self._places[number - 1]) if number else None
            self._kept.append((self._seed, number, before, _copied(self._places[number])))
        self._wait()
        if self._wrong_rows is None:
            self._wrong_rows = self._compare_rows(launches)
        if 2 * len(self._kept) * sum(t.nbytes for t in self._places[0].values()) > KEPT_BYTES[self._device.type]:
            self._compare_kept()

    def _compare_rows(self, launches: int) -> tuple[Accuracy, int] | None:
        """Compare a row of each head in every launch; return the first wrong launch with its number, from 1.

        The batch entries of several launches are compared at once, and each launch has its own error.
        """
        import torch

        first, drawn = self._made(self._seed), torch.Generator().manual_seed(draw_seed())
        s, most = self._case.shape, max(1, ROWS_BYTES[self._device.type] // first.nbytes)
        for start in range(0, launches, most):
            numbers = range(start, min(start + most, launches))
            given = [self._following(first, self._places[number - 1] if number else None) for number in numbers]
            inputs = first.with_values({name: torch.cat([of.values[name] for of in given]) for name in first.values})
            case = replace(self._case, shape=replace(s, batch=s.batch * len(numbers)))
            pairs = torch.arange(case.shape.batch * s.nheads_k)
            rows = torch.randint(s.seqlen_q, (len(pairs), 1, s.nheads // s.nheads_k), generator=drawn)
            batch, head, rows = (t.to(self._device) for t in (pairs // s.nheads_k, pairs % s.nheads_k, rows))
            sample = RowSample(batch, head, rows, all_pairs=True, all_rows=s.seqlen_q == 1)
            reference = compute_reference(case, inputs, sample, rows_only=True)
            for name in [name for name in ROW_RESULTS if name in self._places[0]]:
                results = torch.cat([self._places[number][name] for number in numbers])
                exact = torch.cat([part.exact[name] for part in reference.parts])
                ours = torch.cat([part.select(case, name, results) for part in reference.parts]).to(exact.dtype)
                error, size = (t.view(len(numbers), -1).square().mean(1) for t in (ours - exact, exact))
                eager = reference.relative_eager_error(name)
                share = WIDE * eager + torch.finfo(results.dtype).eps + summation_error(case)
                allowed = share * (size + size.mean()).sqrt()
                if len(wrong := (~(error.sqrt() <= allowed)).nonzero()):
                    off, most_off, of = (float(t[wrong[0]]) for t in (error.sqrt(), allowed, size.sqrt()))
                    where = "in the root mean square of one row of each head"
                    found = TensorError(off, eager * of, most_off, off / of if of else off, where)
                    return Accuracy({name: found}, 1, s.batch * s.nheads), start + int(wrong[0]) + 1
        return None

    @staticmethod
    def _following(first: Inputs, before: Results | None) -> Inputs:
        """Return the inputs of the launch after the results `before`, of the first launch without them."""
        import torch

        if before is None:
            return first
        into = {name: torch.empty_like(t) for name, t in first.values.items()}
        chain.link(first.values, before, into)
        return first.with_values(into)

    def _compare_kept(self) -> None:
        """Compare the kept results, and forget them."""
        if not self._kept:
            return
        first_seed = self._kept[0][0]
        check = make_check(self._case, self._made(first_seed), first_seed)
        for seed, number, before, results in self._kept:
            self._checked += 1
            if self._compared is None or self._compared[0].ok:
                given = self._following(self._made(seed), before)
                self._compared = check.check_renewed(Renewal(seed, number), given, results), number + 1
        self._kept.clear()

    def _rule(self) -> tuple[Accuracy, int, int]:
        import torch

        self._compare_kept()
        assert self._compared
        accuracy, launch = self._compared
        if accuracy.ok and self._wrong_rows:
            accuracy, launch = self._wrong_rows
        if accuracy.ok and any(not torch.equal(guard, self._pattern) for guard in self._guards):
            accuracy = Accuracy({}, 0, 0, flaws=("it writes beside the memory of its results",))
        return accuracy, launch, self._checked

    def _link(self, *, plain: bool) -> chain.Chain:
        """Return the chain of a call that computes nothing, on the same places; `plain`: all tensors are contiguous."""
        if plain not in self._chains_of_links:
            given, base, places, results = self._made(0).values, self._base, self._places, _copied(self._places[0])
            if plain:
                given, base, results = ({n: t.contiguous() for n, t in of.items()} for of in (given, base, results))
                places = [{n: _contiguous_in_place(t) for n, t in of.items()} for of in places]
            for t in results.values():
                t.normal_()
            idle = Prepared(lambda: results, lambda found: found)
            self._chains_of_links[plain] = chain.Chain(idle, base, given, places)
        return self._chains_of_links[plain]

    def _wait(self) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _in_order(t: Tensor, order: Sequence[int] | None) -> Tensor:
    return t if order is None else chain.in_order(t, order)


def _contiguous_in_place(t: Tensor) -> Tensor:
    """Return a contiguous tensor of the same shape, in the memory of a dense one."""
    return t.as_strided(t.shape, t.new_empty(t.shape, device="meta").stride())


def _copied(results: Results) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in results.items()}
