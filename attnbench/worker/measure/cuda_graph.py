"""CUDA graph replay: many launches in one graph, its time over their number.

The host plays no part, and one pair of events spans all launches, so the gap between event and kernel vanishes; the gap
between kernels stays. Nothing can be flushed between launches without being timed, so L2 is made cold another way: the
launches take turns over copies of the inputs, as many as together exceed twice its size, and each keeps its results.
"""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.core import stats
from attnbench.core.sizes import format_bytes
from attnbench.worker.measure import l2_cache
from attnbench.worker.measure.sampling import do_nothing

if TYPE_CHECKING:
    import torch

    from attnbench.worker.measure.cuda_events import EventTimer

MAX_COPIES = 512
MIN_SECONDS = 2e-3  # of work in one graph, at least
MAX_LAUNCHES = 1000


class NotCapturable(Exception):
    """The launch cannot be captured, or its copies do not fit. The message says why.

    `broken`: torch's allocator and random generators are still in the state of a capture; only a new process helps.
    """

    def __init__(self, reason: str, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


def copies_needed(nbytes: int, l2_bytes: int) -> int:
    """How many sets of operands of `nbytes` make L2 cold for the next one of the circle. Raises NotCapturable."""
    needed = 1 + math.ceil(2 * l2_bytes / max(1, nbytes))
    if needed > MAX_COPIES:
        raise NotCapturable(f"L2 is cold only with {needed} copies of its operands, over {MAX_COPIES}")
    return needed


def check_memory(nbytes: int) -> None:
    """Raises NotCapturable where `nbytes` are not free: a capture that runs out of memory leaves a broken allocator."""
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if nbytes > 0.9 * free:
        raise NotCapturable(f"the copies of its operands need {format_bytes(nbytes)}, {format_bytes(free)} free")


class GraphTimer:
    """A captured graph of launches; use `samples` while it lives, then drop it."""

    name = "graph"

    def __init__(self, events: EventTimer, make: Callable[[], Sequence[Callable[[], Any]]], estimate: float) -> None:
        """`make()` gives the launches, one per copy of the inputs, prepared on the stream that is current then.

        `estimate` is the seconds of one. Raises NotCapturable.
        """
        import torch

        self._events = events
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                launches = list(make())
                for launch in launches:
                    launch()  # lazy work (handles, workspaces, tuning) cannot be captured
            torch.cuda.synchronize()
            count = max(len(launches), min(MAX_LAUNCHES, math.ceil(MIN_SECONDS / estimate)))
            self.launches = len(launches) * math.ceil(count / len(launches))
            kept: dict[int, Any] = {}
            with torch.cuda.graph(self._graph, stream=stream):
                for i in itertools.islice(itertools.cycle(range(len(launches))), self.launches):
                    kept[i] = launches[i]()  # results of a copy live until its next turn: outputs are cold too
            self._alive = (launches, kept)
        except torch.cuda.OutOfMemoryError:
            raise NotCapturable("the copies of its operands do not fit in memory", broken=True) from None
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise NotCapturable(f"it cannot be captured in a CUDA graph: {why}", broken=True) from None
        self._graph.replay()
        torch.cuda.synchronize()

    def samples(self, n: int) -> list[float]:
        """Seconds of a launch, each averaged over one replay of the graph: as many replays as make n launches."""
        before, self._events.before = self._events.before, do_nothing
        try:
            return [t / self.launches for t in self._events.samples(self._graph.replay, max(1, n // self.launches))]
        finally:
            self._events.before = before

    def close(self) -> None:
        del self._graph, self._alive
        gc.collect()


def l2_state(events: EventTimer, device: torch.device, l2_bytes: int, bandwidth: float) -> str:
    """ "cold" or "warm": how launches in turns over copies find their operands; as cache.state for the others."""
    nbytes, _ = l2_cache.make_reader(device, l2_bytes)

    def replayed(count: int) -> float:
        timer = GraphTimer(events, lambda: [l2_cache.make_reader(device, l2_bytes)[1] for _ in range(count)], 10e-6)
        try:
            return stats.median(timer.samples(10 * timer.launches))
        finally:
            timer.close()

    turns, cached = replayed(copies_needed(nbytes, l2_bytes)), replayed(1)
    return "cold" if turns - cached > l2_cache.MIN_GAIN * nbytes / bandwidth else "warm"
