"""The table of peak rates: the entry for each name that drivers report, and that its figures are consistent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnbench.core import gpus
from attnbench.core.gpus import GPUS, clock_of_peak, find, peak

MIB = 2**20

# name and total memory (MiB) as drivers report them -> entry
NAMES = [
    ("Tesla T4", 15360, "T4"),
    ("Tesla V100-SXM2-16GB", 16384, "V100 SXM2"),
    ("Tesla V100-SXM2-32GB", 32768, "V100 SXM2"),
    ("Tesla V100-PCIE-16GB", 16384, "V100 PCIe"),
    ("Tesla V100-PCIE-32GB", 32768, "V100 PCIe"),
    ("NVIDIA A10", 23028, "A10"),
    ("NVIDIA A10G", 23028, "A10G"),
    ("NVIDIA A100-SXM4-40GB", 40441, "A100 SXM 40GB"),
    ("A100-SXM4-40GB", 40536, "A100 SXM 40GB"),
    ("NVIDIA A100-SXM4-80GB", 81920, "A100 SXM 80GB"),
    ("NVIDIA A100-PCIE-40GB", 40960, "A100 PCIe 40GB"),
    ("NVIDIA A100 80GB PCIe", 81920, "A100 PCIe 80GB"),
    ("NVIDIA L4", 23034, "L4"),
    ("NVIDIA L40S", 46068, "L40S"),
    ("NVIDIA GeForce RTX 3090", 24576, "RTX 3090"),
    ("GeForce RTX 3090", 24576, "RTX 3090"),
    ("NVIDIA GeForce RTX 4090", 24564, "RTX 4090"),
    ("NVIDIA GeForce RTX 5090", 32607, "RTX 5090"),
    ("NVIDIA H100 80GB HBM3", 81559, "H100 SXM"),
    ("NVIDIA H100 PCIe", 81559, "H100 PCIe"),
    ("NVIDIA H100 NVL", 95830, "H100 NVL"),
    ("NVIDIA H200", 143771, "H200 SXM"),
    ("NVIDIA H200 NVL", 143771, "H200 NVL"),
    ("NVIDIA GH200 480GB", 97871, "GH200 96GB"),
    ("NVIDIA GH200 120GB", 97871, "GH200 96GB"),
    ("NVIDIA GH200 144G HBM3e", 145920, "GH200 144GB"),
    ("NVIDIA H20", 97358, "H20"),
    ("NVIDIA B200", 183359, "B200"),
    ("NVIDIA GB200", 189471, "GB200"),
    ("NVIDIA B300 SXM6 AC", 275040, "B300"),
    ("NVIDIA GB300", 284672, "GB300"),
    ("AMD Instinct MI250X", 65520, "MI250X (one GCD)"),
    ("AMD Instinct MI300X", 196592, "MI300X"),
    ("AMD Instinct MI300X VF", 196288, "MI300X"),
    ("AMD Instinct MI325X", 262128, "MI325X"),
    ("AMD Instinct MI355X", 294896, "MI355X"),
    ("NVIDIA A2", 15356, "A2"),
    ("NVIDIA A30", 24576, "A30"),
    ("NVIDIA A40", 46068, "A40"),
    ("NVIDIA A800-SXM4-80GB", 81920, "A800 SXM 80GB"),
    ("NVIDIA A800 80GB PCIe", 81920, "A800 PCIe 80GB"),
    ("Tesla V100S-PCIE-32GB", 32768, "V100S PCIe"),
    ("NVIDIA GeForce RTX 2060", 6144, "RTX 2060"),
    ("NVIDIA GeForce RTX 2060", 12288, "RTX 2060 12GB"),
    ("NVIDIA GeForce RTX 2060 SUPER", 8192, "RTX 2060 SUPER"),
    ("GeForce RTX 2070", 7982, "RTX 2070"),
    ("NVIDIA GeForce RTX 2070 SUPER", 8192, "RTX 2070 SUPER"),
    ("GeForce RTX 2080", 7982, "RTX 2080"),
    ("NVIDIA GeForce RTX 2080 SUPER", 8192, "RTX 2080 SUPER"),
    ("GeForce RTX 2080 Ti", 11019, "RTX 2080 Ti"),
    ("NVIDIA GeForce RTX 2080 Ti", 11264, "RTX 2080 Ti"),
    ("NVIDIA TITAN RTX", 24576, "TITAN RTX"),
    ("Quadro RTX 5000", 16384, "Quadro RTX 5000"),
    ("Quadro RTX 6000", 24576, "Quadro RTX 6000"),
    ("Quadro RTX 8000", 49152, "Quadro RTX 8000"),
    ("NVIDIA GeForce RTX 3050", 8192, "RTX 3050"),
    ("NVIDIA GeForce RTX 3060", 8192, "RTX 3060 8GB"),
    ("NVIDIA GeForce RTX 3060", 12288, "RTX 3060 12GB"),
    ("NVIDIA GeForce RTX 3060 Ti", 8192, "RTX 3060 Ti"),
    ("NVIDIA GeForce RTX 3070", 8192, "RTX 3070"),
    ("NVIDIA GeForce RTX 3070 Ti", 8192, "RTX 3070 Ti"),
    ("NVIDIA GeForce RTX 3080", 10240, "RTX 3080 10GB"),
    ("NVIDIA GeForce RTX 3080", 12288, "RTX 3080 12GB"),
    ("NVIDIA GeForce RTX 3080 Ti", 12288, "RTX 3080 Ti"),
    ("NVIDIA GeForce RTX 3090 Ti", 24564, "RTX 3090 Ti"),
    ("NVIDIA RTX A2000", 6138, "RTX A2000"),
    ("NVIDIA RTX A2000 12GB", 12282, "RTX A2000"),
    ("NVIDIA RTX A4000", 16376, "RTX A4000"),
    ("NVIDIA RTX A4500", 20470, "RTX A4500"),
    ("NVIDIA RTX A5000", 24564, "RTX A5000"),
    ("NVIDIA RTX A5500", 24564, "RTX A5500"),
    ("NVIDIA RTX A6000", 49140, "RTX A6000"),
    ("NVIDIA L40", 46068, "L40"),
    ("NVIDIA RTX 2000 Ada Generation", 16380, "RTX 2000 Ada"),
    ("NVIDIA RTX 4000 SFF Ada Generation", 20475, "RTX 4000 SFF Ada"),
    ("NVIDIA RTX 4000 Ada Generation", 20475, "RTX 4000 Ada"),
    ("NVIDIA RTX 5000 Ada Generation", 32760, "RTX 5000 Ada"),
    ("NVIDIA RTX 6000 Ada Generation", 49140, "RTX 6000 Ada"),
    ("NVIDIA GeForce RTX 4060", 8188, "RTX 4060"),
    ("NVIDIA GeForce RTX 4060 Ti", 16380, "RTX 4060 Ti"),
    ("NVIDIA GeForce RTX 4070", 12282, "RTX 4070"),
    ("NVIDIA GeForce RTX 4070 SUPER", 12282, "RTX 4070 SUPER"),
    ("NVIDIA GeForce RTX 4070 Ti", 12282, "RTX 4070 Ti"),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, "RTX 4070 Ti SUPER"),
    ("NVIDIA GeForce RTX 4080", 16376, "RTX 4080"),
    ("NVIDIA GeForce RTX 4080 SUPER", 16376, "RTX 4080 SUPER"),
    ("NVIDIA GeForce RTX 4090 D", 24564, "RTX 4090 D"),
    ("NVIDIA GeForce RTX 5060", 8151, "RTX 5060"),
    ("NVIDIA GeForce RTX 5060 Ti", 16311, "RTX 5060 Ti"),
    ("NVIDIA GeForce RTX 5070", 12227, "RTX 5070"),
    ("NVIDIA GeForce RTX 5070 Ti", 16303, "RTX 5070 Ti"),
    ("NVIDIA GeForce RTX 5080", 16303, "RTX 5080"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, "RTX PRO 6000 Workstation"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887, "RTX PRO 6000 Max-Q"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, "RTX PRO 6000 Server"),
    ("NVIDIA GB10", 122880, "GB10"),
    ("NVIDIA H800", 81559, "H800 SXM"),
    ("AMD Instinct MI210", 65520, "MI210"),
    ("AMD Instinct MI250", 65520, "MI250 (one GCD)"),
    ("AMD Instinct MI300A", 131072, "MI300A"),
    ("AMD Instinct MI350X", 294896, "MI350X"),
]

UNKNOWN = [
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
    ("NVIDIA A100-SXM4-40GB", 4864),  # a MIG slice that reports the name of the whole GPU
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448),
    ("NVIDIA H200 MIG 7g.141gb", 143771),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
    ("NVIDIA GeForce RTX 5090 D", 32607),
    ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384),
    ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", 8192),
    ("NVIDIA GeForce RTX 3080", 20480),  # no product of NVIDIA's
    ("NVIDIA A30 MIG 1g.6gb", 5952),
    ("NVIDIA A30", 5952),  # a MIG slice that reports the name of the whole GPU
    ("NVIDIA H800 PCIe", 81559),
    ("NVIDIA RTX A6000-48Q", 49152),
    ("Quadro RTX 6000 with Max-Q Design", 24576),
    ("NVIDIA RTX 6000 Ada Generation Laptop GPU", 16376),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463),
    ("NVIDIA A10-24Q", 24576),
    ("NVIDIA H20-3e", 143771),
    ("NVIDIA H20", 143771),  # the 141 GB version, whose figures are not known here
    ("NVIDIA A100-SXM-64GB", 65536),
    ("AMD Instinct MI250X / MI250", 65520),  # may be either
    ("AMD Instinct MI300X", 24560),  # one CPX partition
    ("AMD Radeon Graphics", 196592),
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


def test_every_entry_is_found_by_some_name():
    assert {gpu.name for gpu in GPUS} == {entry for _, _, entry in NAMES}


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


def test_surrounding_space_in_a_name_is_ignored():
    assert find("AMD Instinct MI300X ", 196592 * MIB) is find("AMD Instinct MI300X", 196592 * MIB) is not None


def test_names_are_unique():
    assert len({gpu.name for gpu in GPUS}) == len(GPUS)


def test_the_file_has_known_fields_and_no_source_that_nothing_cites():
    table = json.loads(Path(gpus.__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    fields = {"name": str, "pattern": str, "tflops": dict, "bandwidth": int, "source": str}
    optional = {"memory": int, "multiprocessors": int, "flop_per_clock": dict, "capability": list}
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
            assert set(gpu.peak_flops) == {"fp32"}  # no source for its tensor rates
            continue
        assert {"fp16", "fp32"} <= set(gpu.peak_flops)
        assert gpu.memory is None or 0 < gpu.memory[0] < gpu.memory[1]
        assert 1.9 * gpu.peak_flops["fp32"] <= gpu.peak_flops["fp16"] <= 36 * gpu.peak_flops["fp32"]
        if "bf16" in gpu.peak_flops:
            assert gpu.peak_flops["bf16"] == gpu.peak_flops["fp16"]
        if "fp8" in gpu.peak_flops:
            assert gpu.peak_flops["fp8"] == pytest.approx(2 * gpu.peak_flops["bf16"], rel=0.015)


# The boost clock, in GHz, as vendors print it (B300: as the device reports it). A peak that gives this clock has the
# right units.
BOOST = {
    "T4": 1.59,
    "V100 SXM2": 1.53,
    "V100 PCIe": 1.38,
    "A10": 1.695,
    "A10G": 1.71,
    "A100 SXM 40GB": 1.41,
    "A100 SXM 80GB": 1.41,
    "A100 PCIe 40GB": 1.41,
    "A100 PCIe 80GB": 1.41,
    "L4": 2.04,
    "L40S": 2.52,
    "RTX 3090": 1.695,
    "RTX 4090": 2.52,
    "RTX 5090": 2.407,
    "H100 SXM": 1.98,
    "H100 PCIe": 1.755,
    "H100 NVL": 1.785,
    "H200 SXM": 1.98,
    "H200 NVL": 1.785,
    "GH200 96GB": 1.98,
    "GH200 144GB": 1.98,
    "B200": 1.965,
    "B300": 2.032,
    "MI250X (one GCD)": 1.7,
    "MI300X": 2.1,
    "MI325X": 2.1,
    "MI355X": 2.4,
    "V100S PCIe": 1.597,
    "RTX 2060": 1.68,
    "RTX 2060 12GB": 1.65,
    "RTX 2060 SUPER": 1.65,
    "RTX 2070": 1.62,
    "RTX 2070 SUPER": 1.77,
    "RTX 2080": 1.71,
    "RTX 2080 SUPER": 1.815,
    "RTX 2080 Ti": 1.545,
    "TITAN RTX": 1.77,
    "Quadro RTX 5000": 1.815,
    "Quadro RTX 6000": 1.77,
    "Quadro RTX 8000": 1.77,
    "A2": 1.77,
    "A30": 1.44,
    "A40": 1.74,
    "A800 SXM 80GB": 1.41,
    "A800 PCIe 80GB": 1.41,
    "RTX 3050": 1.777,
    "RTX 3060 8GB": 1.777,
    "RTX 3060 12GB": 1.777,
    "RTX 3060 Ti": 1.665,
    "RTX 3070": 1.725,
    "RTX 3070 Ti": 1.77,
    "RTX 3080 10GB": 1.71,
    "RTX 3080 12GB": 1.71,
    "RTX 3080 Ti": 1.665,
    "RTX 3090 Ti": 1.86,
    "RTX A2000": 1.2,
    "RTX A4000": 1.56,
    "RTX A4500": 1.65,
    "RTX A5000": 1.695,
    "RTX A5500": 1.665,
    "RTX A6000": 1.8,
    "L40": 2.49,
    "RTX 2000 Ada": 2.13,
    "RTX 4000 SFF Ada": 1.56,
    "RTX 4000 Ada": 2.175,
    "RTX 5000 Ada": 2.55,
    "RTX 6000 Ada": 2.505,
    "RTX 4060": 2.46,
    "RTX 4060 Ti": 2.535,
    "RTX 4070": 2.475,
    "RTX 4070 SUPER": 2.475,
    "RTX 4070 Ti": 2.61,
    "RTX 4070 Ti SUPER": 2.61,
    "RTX 4080": 2.505,
    "RTX 4080 SUPER": 2.55,
    "RTX 4090 D": 2.52,
    "RTX 5060": 2.497,
    "RTX 5060 Ti": 2.572,
    "RTX 5070": 2.512,
    "RTX 5070 Ti": 2.452,
    "RTX 5080": 2.617,
    "RTX PRO 6000 Workstation": 2.617,
    "RTX PRO 6000 Max-Q": 2.288,
    "RTX PRO 6000 Server": 2.493,
    "H800 SXM": 1.98,
    "MI210": 1.7,
    "MI250 (one GCD)": 1.7,
    "MI300A": 2.1,
    "MI350X": 2.2,
}
UNSURE = {"H20", "GB200", "GB300", "GB10"}
BELOW_BOOST = {"H100 NVL": 0.86, "H200 NVL": 0.86}  # the tensor rates of these cards are printed for 1.545 GHz


def test_peaks_hold_at_the_boost_clock():
    for gpu in GPUS:
        if gpu.name in UNSURE:
            assert not any(clock_of_peak(gpu, dtype) for dtype in gpu.peak_flops)
            continue
        boost = BOOST[gpu.name] * 1e9
        for dtype in gpu.flop_per_clock:
            derived = clock_of_peak(gpu, dtype)
            assert derived is not None
            least = 0.97 if dtype == "fp32" else BELOW_BOOST.get(gpu.name, 0.9)
            assert least * boost <= derived <= 1.01 * boost, dtype
        assert set(gpu.flop_per_clock) == set(gpu.peak_flops)


# The tensor rates of these are printed for a lower clock than the boost clock. B300's fp32 is rounded (600 for 8 GPUs).
OTHER_CLOCK = {
    *("H100 SXM", "H100 PCIe", "H100 NVL", "H800 SXM", "H200 SXM", "H200 NVL", "GH200 96GB", "GH200 144GB"),
    *("B200", "B300"),
}


def test_rates_are_units_times_rate_per_clock_times_boost_clock():
    for gpu in (gpu for gpu in GPUS if gpu.flop_per_clock):
        for dtype in gpu.flop_per_clock:
            if gpu.name in OTHER_CLOCK and (dtype != "fp32" or gpu.name == "B300"):
                continue
            product = gpu.multiprocessors * gpu.flop_per_clock[dtype] * BOOST[gpu.name] * 1e9
            assert gpu.peak_flops[dtype] == pytest.approx(product, rel=0.02), dtype


def test_clocks_by_hand():
    """Peak = multiprocessors * FLOP per multiprocessor and cycle * clock."""
    known = {gpu.name: gpu for gpu in GPUS}
    assert clock_of_peak(known["H100 SXM"], "bf16") == pytest.approx(1.830e9, rel=1e-3)
    assert clock_of_peak(known["H100 SXM"], "fp8") == pytest.approx(1.830e9, rel=1e-3)
    assert clock_of_peak(known["H100 SXM"], "fp32") == pytest.approx(1.980e9, rel=1e-3)
    assert clock_of_peak(known["A100 SXM 80GB"], "bf16") == pytest.approx(1.410e9, rel=1e-3)
    assert clock_of_peak(known["H100 NVL"], "fp16") == pytest.approx(1.545e9, rel=1e-3)
    assert clock_of_peak(known["MI300X"], "bf16") == pytest.approx(2.1e9, rel=1e-3)
    assert clock_of_peak(known["T4"], "bf16") is None


def test_peak():
    h100, t4 = find("NVIDIA H100 80GB HBM3", 81559 * MIB), find("Tesla T4", 15360 * MIB)
    assert h100 is not None
    assert t4 is not None
    assert peak(h100, "bf16") == pytest.approx(989e12, rel=1e-3)  # not the 1,979 with sparsity
    assert peak(h100, "fp8") == pytest.approx(1979e12, rel=1e-3)  # not the 3,958 with sparsity
    assert peak(t4, "bf16") is None
    assert peak(t4, "fp8") is None
