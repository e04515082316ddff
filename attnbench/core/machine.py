"""The device and the environment that a run was measured in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Device:
    """What a plan must know of the device, read in a worker.

    Rates are quick readings for forecasts, not ceilings, and may come after backends were asked what they support.
    """

    kind: Literal["cuda", "cpu", "fake"]
    index: int
    name: str
    memory: int  # bytes in all
    free: int  # bytes free when read
    capability: tuple[int, int] | None = None  # CUDA compute capability
    multiprocessors: int | None = None
    l2: int | None = None  # bytes; on a CPU its last-level cache
    threads: int | None = None  # CPU: torch's intra-op threads
    matmul: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s read in a moment
    copy: float | None = None  # bytes/s, read plus write
    uuid: str | None = None  # which unit of its model it is, as the driver tells

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" else self.kind

    @property
    def slug(self) -> str:
        """Its name as part of a file's: nvidia-h200."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]


@dataclass(frozen=True)
class Environment:
    """What must match for two runs to be comparable, and what a reader wants to know of the machine."""

    device: Device
    python: str
    platform: str
    torch: str | None
    cpu: str
    driver: str | None = None
    cuda: str | None = None  # the CUDA (or ROCm) version torch was built for
    power_limit_w: float | None = None
    clock_max_hz: float | None = None
    attnbench: str = ""
    git: str | None = None  # commit of the working directory, with "+dirty"
    packages: Mapping[str, str] = field(default_factory=dict)  # attention libraries and their versions

    def differences(self, other: Environment) -> list[str]:
        """What makes figures of `other` not comparable with these, one phrase each; empty when nothing does."""
        found = []
        for name in ("attnbench", "torch", "driver", "cuda", "power_limit_w", "packages", "cpu"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                found.append(f"{name} was {_brief(ours, theirs)} and is {_brief(theirs, ours)}")
        for name in ("kind", "name", "memory", "threads"):
            ours, theirs = getattr(self.device, name), getattr(other.device, name)
            if ours != theirs:
                found.append(f"device {name} was {ours} and is {theirs}")
        return found


def _brief(value: Any, other: Any) -> str:
    """A value for an error line; of two mappings only what differs."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return str({k: value.get(k) for k in {*value, *other} if value.get(k) != other.get(k)})
    return str(value)
