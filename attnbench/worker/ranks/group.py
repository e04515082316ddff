"""The group of ranks in a worker: torch.distributed's default group, and the ranks' agreements on the host."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(minutes=30)  # longest wait in a collective; the parent's limit for a job is far shorter


@dataclass(frozen=True)
class Place:
    """The number of this process among the ranks, and how they find each other; from the parent."""

    rank: int
    ranks: int
    rendezvous: str  # path of a file, not yet existing, by which the ranks find each other


class RankGroup:
    """The ranks of one worker. All methods but `of_each` are collectives: every rank must call them in one order."""

    def __init__(self, place: Place, device: Any) -> None:
        """Join the group: NCCL between GPUs, gloo on the host. Raises torch.distributed's errors."""
        import torch
        import torch.distributed as dist

        self.rank, self.ranks = place.rank, place.ranks
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host, whose name may not resolve
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            torch.set_num_threads(max(1, torch.get_num_threads() // place.ranks))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{place.rendezvous}",
            rank=place.rank,
            world_size=place.ranks,
            timeout=PATIENCE,
        )
        self._host = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._each: dict[float, tuple[float, ...]] = {}  # seconds of the slowest rank -> seconds of each rank
        self._token = torch.zeros(1, device=device)
        self._dist = dist
        self.barrier()

    def barrier(self) -> None:
        """Let the devices wait for each other, in stream order, so that all start the next work together."""
        self._dist.all_reduce(self._token)

    def most(self, value: float) -> float:
        """Return the largest value of any rank."""
        return max(map(float, self.all(value)))

    def all(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank. pickle must take them."""
        found: list[Any] = [None] * self.ranks
        self._dist.all_gather_object(found, value, group=self._host)
        return found

    def first(self, value: Any) -> Any:
        """Return the value of rank 0."""
        found = [value]
        self._dist.broadcast_object_list(found, src=0, group=self._host)
        return found[0]

    def slowest(self, samples: Sequence[float]) -> list[float]:
        """Return for each call the seconds of the slowest rank."""
        of_calls = list(zip(*self.all(list(samples)), strict=True))
        self._each.update((max(of_call), of_call) for of_call in of_calls)
        return [max(of_call) for of_call in of_calls]

    def of_each(self, slowest: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the seconds of each rank for calls that `slowest` returned."""
        found = list(zip(*(self._each[seconds] for seconds in slowest), strict=True))
        self._each.clear()
        return found

    def clock(self) -> float:
        """Return the seconds of rank 0's clock, so that all ranks stop at the same time."""
        return float(self.first(time.monotonic()))
