"""The device and the environment in which a run was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Device:
    """A device as a worker describes it for the plan.

    The rates `matmul` and `copy` are quick readings, made for forecasts of time; they are not the measured ceilings.
    They may be missing where the device is described only for a list of the backends' support.
    """

    kind: Literal["cuda", "cpu", "fake"]  # "cuda" also for ROCm, as in torch; "fake" for the simulated backend
    index: int  # torch's number of the device, as in cuda:1
    name: str  # as the driver reports it; "unnamed device" where it reports none
    memory: int  # total bytes
    free: int  # bytes free when the device was described
    capability: tuple[int, int] | None = None  # CUDA compute capability; on AMD the gfx number
    multiprocessors: int | None = None  # enabled SMs, compute units on AMD
    l2: int | None = None  # bytes of L2 cache, on a CPU of last-level cache
    threads: int | None = None  # torch's intra-op threads; CPU only
    instructions: str | None = None  # the instruction set that torch uses, such as "AVX512"; CPU only
    matmul: Mapping[str, float] = field(default_factory=dict)  # dtype -> FLOP/s
    copy: float | None = None  # bytes/s of a copy, read plus write
    uuid: str | None = None  # the driver's identifier of this one device
    # Other processes' use of the device before this run used it: a share of a GPU's time, or a CPU's load divided by
    # its cores. None where unknown. core/other_work.py decides how much is too much.
    busy: float | None = None
    users: tuple[str, ...] = ()  # these processes, as "name (pid 123)"; empty where none can be named

    def __post_init__(self) -> None:
        if not self.name.strip():
            object.__setattr__(self, "name", "unnamed device")

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind == "cuda" else self.kind

    @property
    def is_amd(self) -> bool:
        """Whether the device is a GPU of AMD, by the name that ROCm reports."""
        return self.kind == "cuda" and self.name.startswith("AMD")

    @property
    def slug(self) -> str:
        """The name as used in file names, such as "nvidia-h200"."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40]


@dataclass(frozen=True)
class Environment:
    """The machine and the software of a run: facts that must match in comparable runs, and facts for a reader."""

    device: Device
    python: str  # the version of Python
    platform: str  # the operating system
    torch: str | None  # the version of torch
    cpu: str  # the model of the CPU
    driver: str | None = None  # the version of the GPU's driver
    cuda: str | None = None  # the CUDA or ROCm version for which torch was built
    power_limit_w: float | None = None  # the power cap in watts
    clock_max_hz: float | None = None  # the highest SM clock
    attnbench: str = ""  # the version of attnbench
    git: str | None = None  # commit of the working directory, with "+dirty" where files were changed
    packages: Mapping[str, str] = field(default_factory=dict)  # attention library -> version
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variables that change times
    branch: str | None = None  # branch of the working directory; None where it was not recorded
    peers: tuple[Device, ...] = ()  # the other devices of a run over several ranks, in their order
