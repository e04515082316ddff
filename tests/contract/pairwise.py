"""Choose few cases that contain every pair of features of many cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache

from attnbench.core.case import Case
from pairs import cover


def _features(case: Case) -> frozenset[tuple[str, object]]:
    """Return the features that can matter to a call: each field that differs from its default, and kinds of sizes."""
    s = case.shape
    own = ("shape", "lengths", "window_size", "mask")
    found = {(f.name, getattr(case, f.name)) for f in fields(case) if f.name not in own}
    sides = tuple(side is not None and (side > 0) + 1 for side in case.window_size)
    lengths = {(of.seqlen_q > 1) + (of.seqlen_q > of.seqlen_k) - (of.seqlen_q < of.seqlen_k) for of in case.sequences}
    found |= {("window", sides), ("lengths", frozenset(lengths)), ("ragged", case.is_ragged)}
    found |= {
        ("heads", (s.nheads_k == 1) + 2 * (s.nheads > s.nheads_k)),
        ("headdim", (s.headdim > 64, s.headdim == s.headdim_v)),
    }
    found.add(("mask", case.mask.partition(":")[0]))
    return frozenset(found)


_NUMBERS: dict[object, int] = {}  # the number of each feature found so far
_MOST = 256


@cache
def _pairs(case: Case, backend: str) -> int:
    """Return the pairs of features of a case and its backend, one bit for each pair."""
    features = {*_features(case), ("backend", backend)}
    numbers = [_NUMBERS.setdefault(feature, len(_NUMBERS)) for feature in features]
    assert len(_NUMBERS) <= _MOST
    having = sum(1 << number for number in numbers)
    return sum((having >> number + 1) << number * _MOST for number in numbers)  # pairs with features of larger numbers


def _cost(case: Case) -> float:
    """Return an estimate of a case's time with interpreted kernels, from its pairs and a constant for the call."""
    pairs = sum(of.number * of.seqlen_q * of.seqlen_k for of in case.sequences) * case.shape.nheads
    return pairs * (1 + 2 * case.has_backward) + 4000


def every_pair(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return few and small cases, in their order, that together have every pair of features of all cases."""
    chosen = every_pair_of_several({("", name): case for name, case in cases.items()})
    return {name: case for (_, name), case in chosen.items()}


def every_pair_of_several(cases: Mapping[tuple[str, str], Case]) -> dict[tuple[str, str], Case]:
    """Return such cases by backend and name; a backend is a feature, and other pairs may occur on any backend."""
    pairs = {key: _pairs(case, key[0]) for key, case in cases.items()}
    return {key: cases[key] for key in cover(pairs, lambda key: _cost(cases[key]))}
