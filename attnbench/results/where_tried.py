"""The devices on which each backend gave right results, from where_tried.json.

`python tests/results/where_tried.py` computes that file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnbench.core.axes import AXES
from attnbench.core.case import Case
from attnbench.core.text import listed

DENSE = "dense"
UNVERIFIED = "not verified on hardware"


@dataclass(frozen=True)
class Trial:
    """A device and a version of a backend's library, with the features of the cases whose results were right there."""

    device: str  # its model, such as "NVIDIA H100", or "2 NVIDIA H100" for two that split the sequence
    version: str
    forward: tuple[str, ...]  # names from `features`, the plainest first
    backward: tuple[str, ...]  # features whose backward is right too


def features(case: Case) -> tuple[str, ...]:
    """Return the features of a case beyond a plain dense one, else DENSE. Window, softcap and head dims are none.

    Another kind than softmax is its only feature.
    """
    if not case.is_softmax:
        return (case.kind,)
    fp8 = ("fp8",) if case.dtype == "fp8" else ()
    return (*fp8, *(axis.kind for axis in AXES.values() if axis.kind and axis.label(case))) or (DENSE,)


@functools.cache
def trials() -> Mapping[str, tuple[Trial, ...]]:
    """Return the trials of each backend that gave right results anywhere."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        backend: tuple(Trial(one["on"], one["with"], tuple(one["fwd"]), tuple(one["bwd"])) for one in found)
        for backend, found in table.items()
    }


def right_on_gpus(backend: str) -> frozenset[str]:
    """Return the features with which a backend gave right results on a GPU."""
    found = [one for one in trials().get(backend, ()) if "NVIDIA" in one.device]
    return frozenset(name for one in found for name in (*one.forward, *one.backward))


def text(backend: str) -> str:
    """Return the devices and versions with which a backend gave right results, or UNVERIFIED."""
    devices: dict[str, list[str]] = {}
    for one in trials().get(backend, ()):
        forward = ", forward" if one.forward and one.forward[0] not in one.backward else ""
        devices.setdefault(one.version + forward, []).append(one.device)
    return "; ".join(f"{listed(on)}, {version}" for version, on in devices.items()) or UNVERIFIED
