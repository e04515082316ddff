"""The table of peak rates: the entry for each name from drivers, and the consistency of figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnbench.core import gpus
from attnbench.core.gpus import GPUS, clock_of_peak, find

MIB = 2**20

# name and total memory (MiB) as drivers report them -> entry
NAMES = [
    ("Tesla T4", 15360, "T4"),
    ("Tesla V100-SXM2-32GB", 32768, "V100 SXM2"),
    ("NVIDIA A10G", 23028, "A10G"),
    ("NVIDIA A100-SXM4-40GB", 40441, "A100 SXM 40GB"),
    ("A100-SXM4-40GB", 40536, "A100 SXM 40GB"),
    ("NVIDIA A100-SXM4-80GB", 81920, "A100 SXM 80GB"),
    ("GeForce RTX 3090", 24576, "RTX 3090"),
    ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090"),
    ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM"),
    ("NVIDIA H100 NVL", 95830, "H100 NVL"),
    ("NVIDIA H200", 143771, "H200 SXM"),
    ("NVIDIA H200 NVL", 143771, "H200 NVL"),
    ("NVIDIA GH200 480GB", 97871, "GH200 96GB"),
    ("NVIDIA H20", 97358, "H20"),
    ("NVIDIA GB200", 189471, "GB200"),
    ("AMD Instinct MI250X", 65520, "MI250X (one GCD)"),
    ("AMD Instinct MI300X", 196592, "MI300X"),
    ("AMD Instinct MI300X VF", 196288, "MI300X"),
    ("Tesla V100S-PCIE-32GB", 32768, "V100S PCIe"),
    ("NVIDIA GeForce RTX 2060", 6144, "RTX 2060"),
    ("NVIDIA GeForce RTX 2060", 12288, "RTX 2060 12GB"),
    ("GeForce RTX 2080 Ti", 11019, "RTX 2080 Ti"),
    ("NVIDIA GeForce RTX 3060", 8192, "RTX 3060 8GB"),
    ("NVIDIA GeForce RTX 3060", 12288, "RTX 3060 12GB"),
    ("NVIDIA GeForce RTX 3080", 10240, "RTX 3080 10GB"),
    ("NVIDIA GeForce RTX 3080", 12288, "RTX 3080 12GB"),
    ("NVIDIA L40", 46068, "L40"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 4090 D", 24564, "RTX 4090 D"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "RTX PRO 6000 Max-Q"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX PRO 6000 Server"),
]

UNKNOWN = [
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
    ("NVIDIA A100-SXM4-40GB", 4864),  # a MIG slice, which reports the name of the whole GPU
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
    ("NVIDIA GeForce RTX 5090 D", 32607),
    ("NVIDIA GeForce RTX 3080", 20480),  # not a product of NVIDIA
    ("NVIDIA H20-3e", 143771),
    ("NVIDIA H20", 143771),  # the 141 GB version, whose figures are not known
    ("AMD Instinct MI250X / MI250", 65520),  # could be either
    ("AMD Instinct MI300X", 24560),  # one CPX partition
    ("cpu", 0),
    ("", 0),
]


def found(name, mib):
    gpu = find(name, mib * MIB)
    return gpu and gpu.name


def test_driver_names_find_their_entry():
    assert [(name, mib, found(name, mib)) for name, mib, _ in NAMES] == NAMES


def test_other_names_find_nothing():
    assert [of for of in UNKNOWN if found(*of)] == []


@pytest.mark.parametrize(("multiprocessors", "entry"), [(110, "MI250X (one GCD)"), (104, "MI250 (one GCD)")])
def test_multiprocessors_tell_products_of_one_name_apart(multiprocessors, entry):
    gpu = find("AMD Instinct MI250X / MI250", 65520 * MIB, multiprocessors)
    assert gpu is not None
    assert gpu.name == entry


def test_at_most_one_entry_matches():
    for name, mib in [of[:2] for of in (*NAMES, *UNKNOWN) if of[0] != "AMD Instinct MI250X / MI250"]:
        fits = [gpu for gpu in GPUS if re.fullmatch(gpu.pattern, name)]
        matches = [gpu.name for gpu in fits if gpu.memory is None or gpu.memory[0] <= mib * MIB <= gpu.memory[1]]
        assert len(matches) <= 1, name


def test_the_file_has_known_fields_and_no_source_that_nothing_cites():
    table = json.loads(Path(gpus.__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    fields = {"name": str, "pattern": str, "tflops": dict, "bandwidth": int, "source": str}
    optional = {"memory": int, "multiprocessors": int, "flop_per_clock": dict, "capability": list, "nvlink": int}
    for entry in table["gpus"]:
        assert set(fields) <= set(entry) <= {*fields, *optional}, entry["name"]
        assert all(isinstance(value, {**fields, **optional}[name]) for name, value in entry.items()), entry["name"]
    assert set(table) == {"sources", "gpus"}
    cited = {name for entry in table["gpus"] for name in re.findall(r"{(.*?)}", entry["source"])}
    assert cited == set(table["sources"])


def test_figures_are_consistent():
    for gpu in GPUS:
        assert len(gpu.source) > 40
        assert set(gpu.peak_flops) <= {"bf16", "fp16", "fp32", "fp8"}
        assert all(1e12 < rate < 1e16 for rate in gpu.peak_flops.values())
        assert 1e11 < gpu.bandwidth < 1e13
        if gpu.name == "GB10":
            assert set(gpu.peak_flops) == {"fp32"}  # its tensor rates have no source
            continue
        assert {"fp16", "fp32"} <= set(gpu.peak_flops)
        assert gpu.memory is None or 0 < gpu.memory[0] < gpu.memory[1]
        assert 1.9 * gpu.peak_flops["fp32"] <= gpu.peak_flops["fp16"] <= 36 * gpu.peak_flops["fp32"]
        if "bf16" in gpu.peak_flops:
            assert gpu.peak_flops["bf16"] == gpu.peak_flops["fp16"]
        if "fp8" in gpu.peak_flops:
            assert gpu.peak_flops["fp8"] == pytest.approx(2 * gpu.peak_flops["bf16"], rel=0.015)


def test_peaks_are_rates_a_cycle_at_one_clock_that_there_is():
    """Peaks = multiprocessors * FLOP per multiprocessor and cycle * clock, at one plausible clock.

    A rate with sparsity would need twice the clock. Some tensor rates are printed for a clock below fp32's boost clock.
    """
    for gpu in GPUS:
        clocks = {dtype: clock for dtype in gpu.peak_flops if (clock := clock_of_peak(gpu, dtype))}
        assert set(clocks) == set(gpu.flop_per_clock), gpu.name
        assert all(1.15e9 < clock < 2.65e9 for clock in clocks.values()), gpu.name
        assert max(clocks.values(), default=1) <= 1.17 * min(clocks.values(), default=1), gpu.name


def test_clocks_by_hand():
    """Clocks of peaks, by hand: peak = multiprocessors * FLOP per multiprocessor and cycle * clock."""
    known = {gpu.name: gpu for gpu in GPUS}
    assert clock_of_peak(known["H100 SXM"], "bf16") == pytest.approx(1.830e9, rel=1e-3)
    assert clock_of_peak(known["H100 SXM"], "fp8") == pytest.approx(1.830e9, rel=1e-3)
    assert clock_of_peak(known["H100 SXM"], "fp32") == pytest.approx(1.980e9, rel=1e-3)
    assert clock_of_peak(known["A100 SXM 80GB"], "bf16") == pytest.approx(1.410e9, rel=1e-3)
    assert clock_of_peak(known["H100 NVL"], "fp16") == pytest.approx(1.545e9, rel=1e-3)
    assert clock_of_peak(known["MI300X"], "bf16") == pytest.approx(2.1e9, rel=1e-3)
    assert clock_of_peak(known["T4"], "bf16") is None
