"""Peak rates of GPUs from their vendors' documents, each with its source. Utilisation is relative to these.

A rate is dense (no 2:4 sparsity), with fp32 accumulation, at the vendor's boost clock, which a real kernel seldom
holds. Some vendors' figures had to be converted: NVIDIA's pages for Hopper, Blackwell, L4 and L40S give tensor rates
with sparsity, twice the dense ones; GeForce cards run fp16 with fp32 accumulation at half the rate of fp16
accumulation. On GeForce cards of the 50 series, block-scaled fp8 instructions run at twice the rate that NVIDIA prints
for fp8 with fp32 accumulation, so a share of that peak may exceed 100 %.

"bf16", "fp16" and "fp8" are rates of the tensor (matrix) units. "fp32" is the rate of an fp32 matmul without TF32:
the rate of the CUDA cores on NVIDIA, the fp32 matrix rate on AMD. A dtype is absent where the GPU has no unit for it,
and where no source was found for its rate (GB10). Bandwidth is the rate of device memory.

`source` names the vendor's document (some were read as copies or quotations), the independent table that confirmed it
("checked:"), and figures that differ. "Not cross-checked" marks figures that nothing independent confirmed. Where
figures conflict, the vendor's datasheet is used. Where a vendor prints no tensor rate for a card, as for most GeForce
cards, the rate is the architecture's rate per multiprocessor and cycle times the vendor's figures of multiprocessors
and boost clock. Laptops of the 20 series report the names of desktop cards and run at lower clocks.

A peak holds at one clock, and a GPU at its power cap runs below that clock. `clock_of_peak` derives the clock: peak /
(multiprocessors * FLOP per multiprocessor and clock cycle). It is the boost clock, except for the tensor rates of
Hopper and B200, which NVIDIA prints for a lower clock, in GHz: H100 SXM 989.4e12 / (132 * 4096) = 1.830 GHz, not 1.980
(the whitepaper has both; checked: glennklockwood.com/garden/processors/h100), PCIe 1.619, not 1.755, NVL 1.545, not
1.785. A GPU may run above this clock. The counts of multiprocessors are from the whitepapers; for A10G and B300, from
devices' reports in public code. FLOP per cycle is the whitepapers' too, with fp8 at twice bf16, as the peaks are. The
clock is unknown for H20, whose multiprocessors do less per cycle, and for GB200 and GB300, which report 152
multiprocessors while their peaks follow from 148 at 2.062 GHz.

The table is gpus.json. "gpus" has one object per product:

    name             the product
    pattern          regular expression for the whole name that the driver reports; in "GH200 480GB" the size is the
                     CPU's memory
    capability       major and minor; absent for AMD's
    tflops           dtype -> TFLOP/s
    bandwidth        GB/s
    nvlink           GB/s in one direction, from network/README.md of stas00/ml-engineering (commit 0030e63), where SXM
                     GPUs have one link to all others; absent for others
    memory           nominal GiB; absent where no other product and no MIG slice reports the same name
    multiprocessors  enabled SMs (compute units on AMD); absent where the clock of the peak is unknown
    flop_per_clock   dtype -> FLOP of one multiprocessor in one clock cycle, dense, with fp32 accumulation
    source           text, in which {NAME} stands for the document of that name in "sources"
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One product: the name that its driver reports, and the vendor's rates."""

    name: str
    pattern: str  # regular expression for the whole name that the driver reports
    peak_flops: Mapping[str, float]  # dtype -> dense FLOP/s with fp32 accumulation
    bandwidth: float  # bytes/s
    nvlink: float  # bytes/s in one direction; 0 where unknown
    source: str
    memory: tuple[int, int] | None  # bytes, least and most: distinguishes variants of one name, and MIG slices
    multiprocessors: int  # enabled SMs (compute units on AMD); 0 where unknown
    flop_per_clock: Mapping[str, int]  # dtype -> FLOP of one multiprocessor in one cycle
    capability: tuple[int, int] | None

    @property
    def product(self) -> str:
        """The name without the word for a variant: "RTX PRO 6000" of "RTX PRO 6000 Server"."""
        return re.sub(r" (SXM2?|PCIe|NVL|\d+GB|Workstation|Max-Q|Server)\b", "", self.name)


@cache
def find(name: str, memory: int, multiprocessors: int | None = None) -> Gpu | None:
    """Return the GPU with this name, as the driver reports it, and this total memory in bytes.

    The multiprocessors decide between products that report one name and memory. None for a GPU that is not in the
    table, for a MIG slice, and where several products are possible.
    """
    found = [
        gpu
        for gpu in GPUS
        if (gpu.memory is None or gpu.memory[0] <= memory <= gpu.memory[1]) and re.fullmatch(gpu.pattern, name.strip())
    ]
    if len(found) > 1:
        found = [gpu for gpu in found if gpu.multiprocessors == multiprocessors]
    return found[0] if found else None


def peak(gpu: Gpu, dtype: str) -> float | None:
    """Return the dense FLOP/s of a dtype, or None where the GPU has no unit for it."""
    return gpu.peak_flops.get(dtype)


def clock_of_peak(gpu: Gpu, dtype: str) -> float | None:
    """Return the clock in Hz at which the peak of a dtype holds, or None where it cannot be derived."""
    rate, per_clock = gpu.peak_flops.get(dtype), gpu.multiprocessors * gpu.flop_per_clock.get(dtype, 0)
    return rate / per_clock if rate and per_clock else None


def _read(file: Path) -> tuple[Gpu, ...]:
    table = json.loads(file.read_text(encoding="utf-8"))
    return tuple(_gpu(entry, table["sources"]) for entry in table["gpus"])


def _gpu(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=entry["name"],
        pattern=entry["pattern"],
        peak_flops={dtype: rate * 1e12 for dtype, rate in entry["tflops"].items()},
        bandwidth=entry["bandwidth"] * 1e9,
        nvlink=entry.get("nvlink", 0) * 1e9,
        source=entry["source"].format_map(sources),
        memory=_memory_range(entry["memory"]) if "memory" in entry else None,
        multiprocessors=entry.get("multiprocessors", 0),
        flop_per_clock=entry.get("flop_per_clock", {}),
        capability=tuple(entry["capability"]) if "capability" in entry else None,
    )


def _memory_range(gib: int) -> tuple[int, int]:
    """Return bounds in bytes around a nominal memory size.

    Drivers report a few per cent less than the nominal size; MIG slices have far less.
    """
    return int(0.85 * gib * 2**30), int(1.1 * gib * 2**30)


GPUS = _read(Path(__file__).with_name("gpus.json"))
