"""The CUDA graph timer: the time of a replay of a graph of many launches, divided by their number.

The host takes no part in a replay, and one pair of events spans all launches, so that the gap between event and kernel
vanishes; the gap between kernels remains. A flush between the launches would be timed with them. L2 is therefore made
cold in another way: the launches take turns over copies of the inputs that together exceed twice the size of L2, and
each copy keeps its results.
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
MIN_GAIN = 0.3  # least gain of reading a cached operand, as a share of the time from memory
MIN_SECONDS = 2e-3  # least seconds of work in one graph
MAX_LAUNCHES = 1000  # launches in one graph, unless there are more copies


class NotCapturable(Exception):
    """A launch cannot be captured, or its copies do not fit in memory. The message says why.

    With `broken` torch's allocator and random generators stay in the state of a capture; only a new process helps.
    """

    def __init__(self, reason: str, broken: bool = False) -> None:
        super().__init__(reason)
        self.broken = broken


def copies_needed(nbytes: int, l2_bytes: int) -> int:
    """Return the number of copies of `nbytes` over which launches take turns so that each finds L2 cold.

    Raises NotCapturable where more than MAX_COPIES are needed.
    """
    needed = 1 + math.ceil(2 * l2_bytes / max(1, nbytes))
    if needed > MAX_COPIES:
        raise NotCapturable(f"a cold L2 needs {needed} copies of its operands, more than {MAX_COPIES}")
    return needed


def check_memory(nbytes: int) -> None:
    """Raise NotCapturable where `nbytes` are not free on the device.

    It is asked before a capture, because a capture that runs out of memory breaks torch's allocator.
    """
    import torch

    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if nbytes > 0.9 * free:
        raise NotCapturable(f"the copies of its operands need {format_bytes(nbytes)}, {format_bytes(free)} free")


class GraphTimer:
    """A captured graph of launches, timed by its replays. Call `close` when done."""

    def __init__(self, events: EventTimer, make: Callable[[], Sequence[Callable[[], Any]]], estimate: float) -> None:
        """Capture the launches that `make()` returns, one per copy of the inputs, prepared on the then current stream.

        `estimate` is the seconds of one launch. Raises NotCapturable.
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
                    kept[i] = launches[i]()  # results live until the copy's next turn, so that outputs are cold too
            self._alive = (launches, kept)
        except torch.cuda.OutOfMemoryError:
            raise NotCapturable("the copies of its operands do not fit in memory", broken=True) from None
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise NotCapturable(f"it cannot be captured in a CUDA graph: {why}", broken=True) from None
        self._graph.replay()
        torch.cuda.synchronize()

    def samples(self, n: int) -> list[float]:
        """Return seconds per launch, one value per replay of the graph, with as many replays as n launches need."""
        before, self._events.before = self._events.before, do_nothing
        try:
            return [t / self.launches for t in self._events.samples(self._graph.replay, max(1, n // self.launches))]
        finally:
            self._events.before = before

    def close(self) -> None:
        """Free the graph and the tensors that its launches keep alive."""
        del self._graph, self._alive
        gc.collect()


def l2_state(events: EventTimer, device: torch.device, l2_bytes: int, bandwidth: float) -> str:
    """Return "cold" or "warm", the state of L2 for launches that take turns over copies.

    Compares replays over many copies with replays of one copy.
    """
    nbytes, _ = l2_cache.make_reader(device, l2_bytes)

    def replayed(count: int) -> float:
        timer = GraphTimer(events, lambda: [l2_cache.make_reader(device, l2_bytes)[1] for _ in range(count)], 10e-6)
        try:
            return stats.median(timer.samples(10 * timer.launches))
        finally:
            timer.close()

    over_copies, cached = replayed(copies_needed(nbytes, l2_bytes)), replayed(1)
    return "cold" if over_copies - cached > MIN_GAIN * nbytes / bandwidth else "warm"
