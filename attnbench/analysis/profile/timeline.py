"""The rows of the timeline of one call: the kernels with a row of their own, their names, the bytes each moves."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnbench.core.activity import Activity
from attnbench.run.profile.profile import Profile

MAX_ROWS = 16
FEW_ROWS = 8  # up to this number all are shown, however short
SMALL = 0.01  # share of the timeline; shorter activities share a row
MAX_NAME = 44  # characters

# C++ templates that wrap a kernel, and arguments of theirs that do not tell which kernel it is
WRAPPERS = re.compile(
    r"\w*elementwise_kernel\w*|reduce_kernel|device_kernel|[kK]ernel\d*|gpu_kernel_impl\w*|enable_\w+|ReduceOp|"
    r"(A|B)?(Una|Bina)ryFunctor|func_wrapper_t|[aA]rray|BFloat16|Half|bfloat16_t|half_t|\w*OffsetCalculator|"
    r"TensorIterator\w*|void|float|double|int|bool|char|unsigned|long|lambda|operator|const"
)


def split_by_length(activities: Sequence[Activity], length: float) -> tuple[list[Activity], list[Activity]]:
    """Return the activities that have a row of their own in a call of `length` seconds, and those that share a row."""
    if len(activities) <= FEW_ROWS:
        return list(activities), []
    longest = sorted(activities, key=lambda a: -a.seconds)[:MAX_ROWS]
    own = [a for a in activities if a in longest and a.seconds >= SMALL * length]
    return own, [a for a in activities if a not in own]


def kernel_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces, parameters and template arguments.

    For a template that wraps any function, as torch's elementwise_kernel, return the first argument that names the
    function.
    """
    if name.startswith(("Memset", "Memcpy")):
        return name
    text = re.sub(r"\(anonymous namespace\)::|<unnamed>::", "", name).removeprefix("void ")  # CUPTI's name, ncu's
    base = re.sub(r"[<(].*", "", text).rpartition("::")[2]
    if not WRAPPERS.fullmatch(base):
        return base
    arguments = re.findall(r"(?<!\w)[A-Za-z_]\w*(?!\w|::)", text[text.index(base) + len(base) :])
    return next((word for word in arguments if not WRAPPERS.fullmatch(word)), base)


def shortened(text: str, width: int) -> str:
    """Return text of at most `width` characters, its middle left out: both ends tell kernels apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def traffic_by_activity(profile: Profile) -> dict[Activity, float]:
    """Return the HBM bytes of each kernel; empty unless ncu saw the same kernels as the timeline."""
    kernels = [a for a in profile.activities if not a.name.startswith(("Memset", "Memcpy"))]
    if profile.traffic is None or len(kernels) != len(profile.traffic.kernels):
        return {}
    return {a: k.read + k.written for a, k in zip(kernels, profile.traffic.kernels, strict=True)}
