"""Rates of a CPU by numpy, for the forecast of a dry run, since importing torch for them takes seconds.

numpy's rates are near torch's: within some 15 % for a matmul, and 25 % for a copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from attnbench.core.case import Case
from attnbench.core.machine import Device

ROWS, COPIED, SECONDS = 512, 2**26, 0.1  # a matmul's rows and columns, bytes of a copy, time for each
NOTE = "forecast by numpy's matmul and copy; a run times torch's"


def suffice(device: Device, cases: Iterable[Case]) -> bool:
    """Return whether numpy's rates suffice for these cases: on a CPU, in fp32."""
    return device.kind == "cpu" and all(case.dtype == "fp32" for case in cases)


def with_numpy_rates(cpu: Device) -> Device:
    """Return the CPU with the rates of numpy's matmul in fp32 (FLOP/s) and copy (bytes/s)."""
    import numpy as np

    a = np.ones((ROWS, ROWS), np.float32)
    product = np.empty_like(a)
    source, target = np.ones(COPIED, np.uint8), np.empty(COPIED, np.uint8)
    matmul = 2 * ROWS**3 / _fastest(lambda: np.matmul(a, a, out=product))
    copy = 2 * COPIED / _fastest(lambda: np.copyto(target, source))
    return replace(cpu, matmul={"fp32": matmul}, copy=copy)


def _fastest(call: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of at least five calls, as other processes may slow some."""
    times: list[float] = []
    while len(times) < 5 or sum(times) < SECONDS:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
