"""One call drawn in text: its kernels by name, a bar for each, the memory in use below."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.analysis.profile.profile import Activity

MAX_ROWS = 16
FEW_ROWS = 8  # up to here all are shown, however short
SMALL = 0.01  # of the timeline; shorter ones share a row
UTF_LEVELS, ASCII_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#"

# C++ templates that wrap a kernel, and arguments of theirs that say nothing of it
WRAPPERS = re.compile(
    r"\w*elementwise_kernel\w*|reduce_kernel|device_kernel|[kK]ernel\d*|gpu_kernel_impl\w*|enable_\w+|ReduceOp|"
    r"(A|B)?(Una|Bina)ryFunctor|func_wrapper_t|[aA]rray|BFloat16|Half|bfloat16_t|half_t|\w*OffsetCalculator|"
    r"TensorIterator\w*|void|float|double|int|bool|char|unsigned|long|lambda|operator|const"
)


def selected(activities: Sequence[Activity], length: float) -> tuple[list[Activity], list[Activity]]:
    """Those that get a row of their own, and the short ones that share one."""
    if len(activities) <= FEW_ROWS:
        return list(activities), []
    longest = sorted(activities, key=lambda a: -a.seconds)[:MAX_ROWS]
    own = [a for a in activities if a in longest and a.seconds >= SMALL * length]
    return own, [a for a in activities if a not in own]


def kernel_name(name: str) -> str:
    """A kernel's name without return type, namespaces, parameters and template arguments.

    Of a template that wraps any function, as torch's elementwise_kernel, the first argument that tells which.
    """
    if name.startswith(("Memset", "Memcpy")):
        return name
    text = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    base = re.sub(r"[<(].*", "", text).rpartition("::")[2]
    if not WRAPPERS.fullmatch(base):
        return base
    arguments = re.findall(r"(?<!\w)[A-Za-z_]\w*(?!\w|::)", text[text.index(base) + len(base) :])
    return next((word for word in arguments if not WRAPPERS.fullmatch(word)), base)


def shortened(text: str, width: int) -> str:
    """With its middle left out where it is too long: both ends tell kernels apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def bar(start: float, end: float, length: float, width: int, *, utf: bool) -> str:
    """A bar from `start` to `end` on an axis of `width` characters for `length`, in halves of one, at least a half."""
    first = min(2 * width - 1, round(2 * width * start / length))
    last = max(first + 1, min(2 * width, round(2 * width * end / length)))
    if not utf:
        return (" " * (first // 2) + "=" * max(1, -(-last // 2) - first // 2)).ljust(width)
    cells = (((2 * i >= first) and (2 * i < last), (2 * i + 1 >= first) and (2 * i + 1 < last)) for i in range(width))
    return "".join("━" if left and right else "╸" if left else "╺" if right else " " for left, right in cells)


def sparkline(steps: Sequence[tuple[float, int]], length: float, width: int, *, utf: bool) -> str:
    """The most of a step function in each of `width` parts of [0, length], as heights; something is never nothing."""
    levels = UTF_LEVELS if utf else ASCII_LEVELS
    top = max((nbytes for _, nbytes in steps), default=0)
    if top <= 0:
        return " " * width
    text = ""
    for column in range(width):
        since, until = length * column / width, length * (column + 1) / width if column + 1 < width else math.inf
        held = next((nbytes for at, nbytes in reversed(steps) if at <= since), 0)
        most = max([held, *(nbytes for at, nbytes in steps if since < at < until)])
        text += levels[max(1, round(most / top * (len(levels) - 1)))] if most > 0 else levels[0]
    return text
