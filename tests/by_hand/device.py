"""Data of a device: its datasheet, and the spread of its processes and cards (docs/compare.md)."""

from __future__ import annotations

from dataclasses import dataclass

from .raw import RunFile

# NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04: dense TFLOP/s with fp32 accumulation; H200: the same GPU.
HOPPER = {"bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12, "fp32": 66.9e12}
# FLOP of one of the 132 multiprocessors in a cycle, from which the clock of these rates follows
PER_CYCLE = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "fp32": 256}
BANDWIDTH = {"NVIDIA H100 80GB HBM3": 3350e9, "NVIDIA H200": 4800e9}
PROCESSES = {"NVIDIA H100 80GB HBM3": 0.0058, "NVIDIA H200": 0.0034}
CARDS = {"NVIDIA H100 80GB HBM3": (0.0016, 0.0082, 0.0043, 0.0039), "NVIDIA H200": (0.0027, 0.0080, 0.0022, 0.0072)}
UNKNOWN = tuple(2 * part for part in CARDS["NVIDIA H200"])  # assumed for a GPU without measurements
NORMAL = 1.96


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithm of a time: between processes of one card, and between cards of a model."""

    processes: float
    any_work: float  # of a card, common to all its cells
    under_load: float  # of a card, additional under full load, common to all cells
    cell: float  # of a card in one cell, without load
    loaded_cell: float  # of a card in one cell, under full load


def spread(file: RunFile) -> Spread:
    name, kind = file.device["name"], file.device["kind"]
    if kind == "cuda":  # a GPU without measurements gets twice the H200's
        return Spread(PROCESSES.get(name, 0.0068), *CARDS.get(name, UNKNOWN))
    return {"cpu": Spread(0.17, 0.12, 0.0, 0.12, 0.12), "fake": Spread(0.0, 0.0, 0.0, 0.0, 0.0)}[kind]


def peak(file: RunFile, dtype: str) -> float | None:
    """Return the FLOP/s of the datasheet."""
    return HOPPER[dtype] if file.device["name"] in BANDWIDTH else None


def clock_of_peak(dtype: str) -> float:
    """Return the clock in Hz at which the datasheet's peak holds."""
    return HOPPER[dtype] / (132 * PER_CYCLE[dtype])


def bandwidth(file: RunFile) -> float | None:
    """Return the bytes/s of the datasheet."""
    return BANDWIDTH.get(file.device["name"])
