"""Right and wrong methods that split a sequence over ranks, as own backends of tests/worker/test_ranks.py."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

from attnbench.backends.pytorch import sdpa
from attnbench.backends.several_devices import ulysses
from attnbench.backends.several_devices.base import SeveralDevices
from attnbench.backends.several_devices.ring import Ring as TorchRing
from attnbench.backends.several_devices.ring import _own_module
from attnbench.core import split_sequence
from attnbench.core.backend import Prepared, Probe, Signature
from attnbench.core.record import Accuracy
from attnbench.worker import judging

OWN_KEYS = 192  # tokens
KEPT = 2**26
WRONG = {  # tokens of a rank's part -> fault
    32: "out is 2 % too large",
    64: "dk is 2 % too large",
    96: "returns earlier results",
    128: "writes to its input",
    160: "leaves a row unwritten",
}


def attend(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float) -> Any:  # noqa: ARG001
    """Return causal attention of one device, for every case."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=softmax_scale)
    return out.transpose(1, 2)


class GatheredKeys(SeveralDevices):
    """Every rank gathers all keys and values; sequences are causal, in head-tail order.

    It is wrong for sequences of OWN_KEYS, where each rank sees its own keys only.
    """

    inner = "sdpa"

    def cannot_split(self, case: Any, device: Any) -> str | None:
        return None

    def on_each(self, case: Any) -> Any:
        return split_sequence.part_of(case) if case.ranks > 1 else case

    def spans(self, case: Any, rank: int) -> split_sequence.Spans:
        return split_sequence.head_tail(case.shape.seqlen_q, case.ranks, rank)

    def prepare_rank(self, case: Any, inputs: Any) -> Prepared:
        at = torch.cat([torch.arange(*span) for r in range(case.ranks) for span in self.spans(case, r)])
        own = torch.cat([torch.arange(*span) for span in self.spans(case, dist.get_rank())])
        seen = at[None] <= own[:, None]
        if case.shape.seqlen_q == OWN_KEYS:
            seen &= torch.isin(at, own)[None]

        def launch() -> Any:
            gathered = []
            for t in (inputs.k, inputs.v):
                parts = [torch.empty_like(t) for _ in range(case.ranks)]
                dist.all_gather(parts, t)
                gathered.append(torch.cat(parts, 1).transpose(1, 2))
            out = torch.nn.functional.scaled_dot_product_attention(inputs.q.transpose(1, 2), *gathered, attn_mask=seen)
            return out.transpose(1, 2)

        return Prepared(launch, lambda out: {"out": out})


class Ring(TorchRing):
    """torch's ring with SDPA's kernel for CPUs, forward only; torch's public call has no kernel for a CPU."""

    def cannot_split(self, case: Any, device: Any) -> str | None:
        return None

    def attention(self, case: Any) -> Any:
        ring, kernel = (
            _own_module()._templated_ring_attention,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
        )
        group = dist.group.WORLD
        return lambda q, k, v: ring(group, 2, kernel, q, k, v, is_causal=case.causal, scale=case.softmax_scale)[0]


class RingAlltoall(Ring):
    def __init__(self) -> None:
        super().__init__("alltoall")


class Ulysses(ulysses.Ulysses):
    """A right method; `spoil` of its subclasses changes the results of a launch, or does something else."""

    def __init__(self) -> None:
        super().__init__(sdpa.Choice())

    def prepare_rank(self, case: Any, inputs: Any) -> Prepared:
        prepared = super().prepare_rank(case, inputs)
        calls = [0]

        def launch() -> Any:
            calls[0] += 1
            self.before(calls[0], inputs)
            return self.spoil(prepared.launch(), calls[0])

        return Prepared(launch, prepared.canonical, moved=prepared.moved, compute=prepared.compute)

    def before(self, call: int, inputs: Any) -> None: ...

    def spoil(self, results: dict[str, Any], call: int) -> dict[str, Any]:
        return results


class Wrong(Ulysses):
    """Wrong in rank 1 only, in another way for each length of its part."""

    kept: Any = None

    def before(self, call: int, inputs: Any) -> None:
        if dist.get_rank() and WRONG[inputs.q.shape[1]] == "writes to its input" and call == 2:
            inputs.v[0, -1, 0, 0] += 1e-6  # too little for a result to show

    def spoil(self, results: dict[str, Any], call: int) -> dict[str, Any]:
        if not dist.get_rank():
            return results
        match WRONG[results["out"].shape[1]]:
            case "out is 2 % too large":
                results["out"] = results["out"] * 1.02
            case "dk is 2 % too large":
                results["dk"] = results["dk"] * 1.02
            case "returns earlier results":
                self.kept = self.kept if call > 2 else results
                return self.kept
            case "leaves a row unwritten":
                results["out"][0, 0, :, 0] = float("nan")
        return results


class Denies(Wrong):
    """Wrong in rank 1; rank 0 replaces the judge's verdict on it."""

    shows = True

    def prepare_rank(self, case: Any, inputs: Any) -> Prepared:
        own = judging.JudgeBeside._check

        def check(judge: Any, what: str, results: Any, **more: Any) -> Any:
            if self.shows:
                own(judge, what, results, **more)
            return Accuracy({}, 1, 1), {"of_hard": []}

        judging.JudgeBeside._check = check  # type: ignore[method-assign]
        return super().prepare_rank(case, inputs)


class Conceals(Denies):
    """Wrong in rank 1; rank 0 passes nothing to the judge."""

    shows = False


class Misnamed(Ulysses):
    """Right, but with other kernels than it declares."""

    def signature(self, case: Any, device: Any) -> Signature:
        return Signature(runs=("of_another_library",))


class Keeps(Ulysses):
    """Right; rank 1 keeps KEPT bytes, rank 0 half of them."""

    def prepare_rank(self, case: Any, inputs: Any) -> Prepared:
        self.workspace = torch.empty(KEPT // (2 - dist.get_rank()), dtype=torch.uint8)
        return super().prepare_rank(case, inputs)


class Fails(Ulysses):
    """A method in which one rank fails, in a way set by the seqlen, while rank 0 waits for it."""

    def before(self, call: int, inputs: Any) -> None:
        if not dist.get_rank():
            return
        match inputs.q.shape[1]:
            case 64:
                os._exit(3)
            case 128:
                raise ValueError("of the library")
            case 256:
                raise MemoryError("no more memory")
            case 512:
                time.sleep(600)


class InOneProcess(Ulysses):
    """A method whose library only the process can import that creates a file first."""

    def probe(self) -> Probe:
        try:
            os.close(os.open(os.environ["ATTNBENCH_TEST_FIRST"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return Probe(reason="fails at import")
        return super().probe()
