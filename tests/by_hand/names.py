"""What tables and pages say of a case in words (docs/ragged.md, docs/masks.md)."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from .raw import DEFAULTS, Case

SPELLED = 6  # runs of one length that are written out
SAID = {"dropout_p": "dropout", "scale": "softmax_scale"}
ELSEWHERE = {"causal", "window_size", "lengths", "mask"}  # what other words tell


def size(number: int) -> str:
    """Return 16384 as "16k"."""
    if number and number % 1048576 == 0:
        return f"{number // 1048576}m"
    return f"{number // 1024}k" if number and number % 1024 == 0 else str(number)


def headdim(case: Case) -> str:
    return str(case.headdim) if case.headdim == case.headdim_v else f"{case.headdim}-{case.headdim_v}"


def heads(case: Case) -> str:
    return str(case.nheads) if case.nheads == case.nheads_k else f"{case.nheads}/{case.nheads_k}"


def mask(case: Case) -> str:
    left, right = ("open" if side is None else side for side in case.window_size)
    window = f"window ({left}, {right})" if {left, right} != {"open"} else ""
    return " ".join(filter(None, ("causal" if case.causal else "", window, case.mask))) or "full"


def extras(case: Case) -> list[str]:
    """Return what else of a case is not the default, "softcap 30"."""
    found = []
    for name, usual in DEFAULTS.items():
        value: Any = case.fields[name]
        if name not in ELSEWHERE and value != usual:
            said = f"{value:.6g}" if isinstance(usual, float) else str(value)
            found.append(SAID.get(name, name) + ("" if value is True else f" {said}"))
    return found


def pattern(case: Case) -> str:
    """Return the lengths of a ragged batch: by the name of their distribution, else as a list."""
    if not case.lengths:
        return ""
    each = [(q, k) for number, q, k in case.lengths for _ in range(number)]
    keys, most = [k for _, k in each], max(q for q, _ in each)
    for name in ("uniform", "longtail", "bimodal", "documents", "zipf"):
        drawn = quantiles(name, len(each), sum(keys) // len(each))
        if sorted(keys) == sorted(drawn) and all(q == k or q == min(most, k) for q, k in each):
            order = {True: "/ascending"}.get(keys == sorted(keys), "")
            return name + (order or ("/descending" if keys == sorted(keys, reverse=True) else ""))
    if len(case.lengths) <= SPELLED:
        return "+".join(_run(*of) for of in case.lengths)
    return f"{len(each)} of {size(min(keys))} to {size(max(keys))}"


def _run(number: int, q: int, k: int) -> str:
    return f"{number}*" * (number > 1) + f"{size(q)}x" * (q != k) + size(k)


def quantiles(name: str, number: int, mean: int) -> list[int]:
    """Return the lengths of a distribution: its quantiles, as whole tokens that add up to `number` x `mean`."""
    of = {
        "uniform": lambda p: 0.5 + p,
        "longtail": lambda p: math.exp(NormalDist().inv_cdf(p)),
        "documents": lambda p: math.exp(1.5 * NormalDist().inv_cdf(p)),
        "bimodal": lambda p: 0.25 if p < 0.75 else 3.25,
        "zipf": lambda p: 1 / (number - round(p * number - 0.5)),
    }[name]
    wanted = [of((i + 0.5) / number) for i in range(number)]
    ends, along = [0], 0.0
    for one in wanted:
        along += one
        ends.append(round((number * mean - number) / sum(wanted) * along))
    return [1 + end - start for start, end in pairwise(ends)]
