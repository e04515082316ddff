"""Peak rates of GPUs from their vendors' documents, each with its source. Utilisation is relative to these.

A rate is dense (no 2:4 sparsity), with fp32 accumulation, at the vendor's boost clock, which a real kernel seldom
holds. Some vendors' figures had to be converted: NVIDIA's pages for Hopper, Blackwell, L4 and L40S give tensor rates
with sparsity, twice the dense ones; GeForce cards run fp16 with fp32 accumulation at half the rate of fp16
accumulation.

"bf16", "fp16" and "fp8" are rates of the tensor (matrix) units. "fp32" is what an fp32 matmul can reach without TF32:
the rate of the CUDA cores on NVIDIA, the fp32 matrix rate on AMD. A GPU has no unit for a dtype that is absent.
Bandwidth is that of device memory.

Vendors' PDFs were read through copies and quotations found by search, and compared with independent tables. `source`
names the vendor's document, what confirmed it ("checked:"), and figures that differ. "Not cross-checked" marks figures
that nothing independent confirmed. Where figures conflict, the vendor's datasheet is used.

A peak holds at one clock, and a GPU at its power cap runs below that clock. `clock_of_peak` derives the clock: peak /
(multiprocessors * FLOP per multiprocessor and clock cycle). It is the boost clock, except for the tensor rates of
Hopper and B200, which NVIDIA prints for a lower clock: H100 SXM 989.4e12 / (132 * 4096) = 1.830 GHz, not 1.980 (the
whitepaper has both; checked: glennklockwood.com/garden/processors/h100), PCIe 1.619, not 1.755, NVL 1.545, not 1.785. A
GPU may run above this clock. The counts of multiprocessors are those of the whitepapers; for A10G and B300, what the
devices report in public code. FLOP per cycle is the whitepapers' too, with fp8 at twice bf16, as the peaks are. The
clock is unknown for H20, whose multiprocessors do less per cycle, and for GB200 and GB300, which report 152
multiprocessors while their peaks follow from 148 at 2.062 GHz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

T = 1e12  # tera
GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """One product: the name that its driver reports, and the vendor's rates."""

    name: str
    pattern: str  # regular expression for the whole name that the driver reports
    peak_flops: Mapping[str, float]  # dtype -> dense FLOP/s with fp32 accumulation
    bandwidth: float  # bytes/s
    source: str
    memory: tuple[int, int] | None = None  # bytes, least and most: distinguishes variants of one name, and MIG slices
    multiprocessors: int = 0  # enabled SMs (compute units on AMD); 0 where unknown
    flop_per_clock: Mapping[str, int] = field(default_factory=dict)  # dtype -> FLOP of one multiprocessor in one cycle


def find(name: str, memory: int) -> Gpu | None:
    """Return the GPU with this name, as the driver reports it, and this total memory in bytes.

    None for a GPU that is not in the table, and for a MIG slice of one.
    """
    for gpu in GPUS:
        if re.fullmatch(gpu.pattern, name.strip()) and (gpu.memory is None or gpu.memory[0] <= memory <= gpu.memory[1]):
            return gpu
    return None


def peak(gpu: Gpu, dtype: str) -> float | None:
    """Return the dense FLOP/s of a dtype, or None where the GPU has no unit for it."""
    return gpu.peak_flops.get(dtype)


def clock_of_peak(gpu: Gpu, dtype: str) -> float | None:
    """Return the clock in Hz at which the peak of a dtype holds, or None where it cannot be derived."""
    rate, per_clock = gpu.peak_flops.get(dtype), gpu.multiprocessors * gpu.flop_per_clock.get(dtype, 0)
    return rate / per_clock if rate and per_clock else None


def _memory_range(gib: int) -> tuple[int, int]:
    """Return bounds in bytes around a nominal memory size.

    Drivers report a few per cent less than the nominal size; MIG slices have far less.
    """
    return int(0.85 * gib * 2**30), int(1.1 * gib * 2**30)


_STAS_DOC = "stas00/ml-engineering compute/accelerator/README.md"
_EXEMPLAR_DOC = "NVIDIA/exemplar-performance README.md (GitHub), peak throughput and reference architectures"
_A100_DOC = "NVIDIA A100 Tensor Core GPU datasheet and nvidia.com/en-us/data-center/a100, specification table"
_H100_DOC = "nvidia.com/en-us/data-center/h100, specification table (tensor rates with sparsity, halved)"
_HOPPER_DOC = "NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, performance table (dense)"
_BLACKWELL_DOC = (
    "NVIDIA Blackwell datasheet 3384703, individual GPU specifications (tensor rates with sparsity, halved); "
    "checked: copy at zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html"
)
_GEFORCE_DOC = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3, pp. 46-48 (dense, fp32 accumulate); "
    "checked: karpathy/nanochat peak table"
)

_A100_PEAKS = {"bf16": 312 * T, "fp16": 312 * T, "fp32": 19.5 * T}
_HOPPER_SXM_PEAKS = {"bf16": 989.4 * T, "fp16": 989.4 * T, "fp8": 1978.9 * T, "fp32": 66.9 * T}
_HOPPER_NVL_PEAKS = {"bf16": 835.5 * T, "fp16": 835.5 * T, "fp8": 1670.5 * T, "fp32": 60 * T}
_CDNA3_PEAKS = {"bf16": 1307.4 * T, "fp16": 1307.4 * T, "fp8": 2614.9 * T, "fp32": 163.4 * T}

# FLOP of one multiprocessor in one clock cycle, dense, with fp32 accumulation
_VOLTA_PER_CLOCK = {"fp16": 1024, "fp32": 128}  # Volta and Turing
_AMPERE_PER_CLOCK = {"bf16": 2048, "fp16": 2048, "fp32": 128}  # GA100
_GA102_PER_CLOCK = {"bf16": 1024, "fp16": 1024, "fp32": 256}  # GA102 on boards for data centres
_GA102_CONSUMER_PER_CLOCK = {
    "bf16": 512,
    "fp16": 512,
    "fp32": 256,
}  # GA102 on GeForce: half the rate with fp32 accumulation
_ADA_PER_CLOCK = {"bf16": 1024, "fp16": 1024, "fp8": 2048, "fp32": 256}
_GEFORCE_PER_CLOCK = {"bf16": 512, "fp16": 512, "fp8": 1024, "fp32": 256}  # GeForce from Ada on
_HOPPER_PER_CLOCK = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "fp32": 256}
_BLACKWELL_PER_CLOCK = {"bf16": 8192, "fp16": 8192, "fp8": 16384, "fp32": 256}
_CDNA2_PER_CLOCK = {"bf16": 1024, "fp16": 1024, "fp32": 256}
_CDNA3_PER_CLOCK = {"bf16": 2048, "fp16": 2048, "fp8": 4096, "fp32": 256}
_CDNA4_PER_CLOCK = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "fp32": 256}

GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="T4",
        pattern=r"(NVIDIA )?(Tesla )?T4",
        peak_flops={"fp16": 65 * T, "fp32": 8.1 * T},
        bandwidth=320 * GB,
        multiprocessors=40,
        flop_per_clock=_VOLTA_PER_CLOCK,
        source="nvidia.com/en-us/data-center/tesla-t4: 65 mixed precision, 8.1 fp32, 320+ GB/s; the datasheet PDF "
        "prints 300 GB/s, under the 256 bit x 10 Gbit/s of the board; checked: sysrqmts.com/en/gpus/nvidia/tesla/t4",
    ),
    Gpu(
        name="V100 SXM2",
        pattern=r"(NVIDIA )?Tesla V100-SXM2-(16|32)GB",
        peak_flops={"fp16": 125 * T, "fp32": 15.7 * T},
        bandwidth=900 * GB,
        multiprocessors=80,
        flop_per_clock=_VOLTA_PER_CLOCK,
        source="NVIDIA V100 datasheet (images.nvidia.com volta-v100-datasheet-update-us-1165301-r5.pdf), SXM2 column; "
        "checked: Lightning fabric throughput table, winston-zhang-orz/gpu-specs",
    ),
    Gpu(
        name="V100 PCIe",
        pattern=r"(NVIDIA )?Tesla V100-PCIE-(16|32)GB",
        peak_flops={"fp16": 112 * T, "fp32": 14 * T},
        bandwidth=900 * GB,
        multiprocessors=80,
        flop_per_clock=_VOLTA_PER_CLOCK,
        source="NVIDIA V100 datasheet (images.nvidia.com volta-v100-datasheet-update-us-1165301-r5.pdf), PCIe column; "
        "checked: Lightning fabric throughput table, winston-zhang-orz/gpu-specs",
    ),
    Gpu(
        name="A10",
        pattern=r"(NVIDIA )?A10",
        peak_flops={"bf16": 125 * T, "fp16": 125 * T, "fp32": 31.2 * T},
        bandwidth=600 * GB,
        multiprocessors=72,
        flop_per_clock=_GA102_PER_CLOCK,
        source="NVIDIA A10 datasheet: bf16 and fp16 125 (250 with sparsity), fp32 31.2, 600 GB/s; "
        "checked: winston-zhang-orz/gpu-specs, astroC86/gpu-datasheet",
    ),
    Gpu(
        name="A10G",
        pattern=r"(NVIDIA )?A10G",
        peak_flops={"bf16": 70 * T, "fp16": 70 * T, "fp32": 35 * T},
        bandwidth=600 * GB,
        multiprocessors=80,
        flop_per_clock=_GA102_CONSUMER_PER_CLOCK,
        source="NVIDIA A10G datasheet (d1.awsstatic.com NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf): 70 dense, 140 "
        "with sparsity; not the A10's 125; checked: quotations of it in public code, bandwidth at "
        "baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference",
    ),
    Gpu(
        name="A100 SXM 40GB",
        pattern=r"(NVIDIA )?A100-SXM4-40GB",
        peak_flops=_A100_PEAKS,
        bandwidth=1555 * GB,
        multiprocessors=108,
        flop_per_clock=_AMPERE_PER_CLOCK,
        source=f"{_A100_DOC}; checked: {_STAS_DOC}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_memory_range(40),
    ),
    Gpu(
        name="A100 SXM 80GB",
        pattern=r"(NVIDIA )?A100-SXM4-80GB",
        peak_flops=_A100_PEAKS,
        bandwidth=2039 * GB,
        multiprocessors=108,
        flop_per_clock=_AMPERE_PER_CLOCK,
        source=f"{_A100_DOC}; checked: {_STAS_DOC}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_memory_range(80),
    ),
    Gpu(
        name="A100 PCIe 40GB",
        pattern=r"(NVIDIA )?A100-PCIE-40GB",
        peak_flops=_A100_PEAKS,
        bandwidth=1555 * GB,
        multiprocessors=108,
        flop_per_clock=_AMPERE_PER_CLOCK,
        source=f"{_A100_DOC}; checked: {_STAS_DOC}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_memory_range(40),
    ),
    Gpu(
        name="A100 PCIe 80GB",
        pattern=r"(NVIDIA )?A100 80GB PCIe",
        peak_flops=_A100_PEAKS,
        bandwidth=1935 * GB,
        multiprocessors=108,
        flop_per_clock=_AMPERE_PER_CLOCK,
        source=f"{_A100_DOC}; checked: {_STAS_DOC}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_memory_range(80),
    ),
    Gpu(
        name="L4",
        pattern=r"NVIDIA L4",
        peak_flops={"bf16": 121 * T, "fp16": 121 * T, "fp8": 242.5 * T, "fp32": 30.3 * T},
        bandwidth=300 * GB,
        multiprocessors=58,
        flop_per_clock=_ADA_PER_CLOCK,
        source="nvidia.com/en-us/data-center/l4: bf16 242 and fp8 485 with sparsity, halved; "
        "checked: winston-zhang-orz/gpu-specs, grokipedia.com/page/NVIDIA_L4_vs_L40S",
    ),
    Gpu(
        name="L40S",
        pattern=r"NVIDIA L40S",
        peak_flops={"bf16": 362.05 * T, "fp16": 362.05 * T, "fp8": 733 * T, "fp32": 91.6 * T},
        bandwidth=864 * GB,
        multiprocessors=142,
        flop_per_clock=_ADA_PER_CLOCK,
        source="NVIDIA L40S datasheet: bf16 362.05 | 733 with sparsity, fp8 733 | 1,466 (the dense pair is not exactly "
        f"1:2 as printed); checked: {_STAS_DOC}, table at mullet.se/product.html?product_id=355414",
    ),
    Gpu(
        name="RTX 3090",
        pattern=r"(NVIDIA )?GeForce RTX 3090",
        peak_flops={"bf16": 71.2 * T, "fp16": 71.2 * T, "fp32": 35.6 * T},
        bandwidth=936 * GB,
        multiprocessors=82,
        flop_per_clock=_GA102_CONSUMER_PER_CLOCK,
        source=f"{_GEFORCE_DOC} (71); the Ampere GA102 whitepaper rounds to 71 and prints 142 with fp16 accumulate",
    ),
    Gpu(
        name="RTX 4090",
        pattern=r"NVIDIA GeForce RTX 4090",
        peak_flops={"bf16": 165.2 * T, "fp16": 165.2 * T, "fp8": 330.3 * T, "fp32": 82.6 * T},
        bandwidth=1008 * GB,
        multiprocessors=128,
        flop_per_clock=_GEFORCE_PER_CLOCK,
        source=f"NVIDIA Ada GPU Architecture whitepaper v2.02, appendix A table 2, and {_GEFORCE_DOC}, "
        "waredb.com/processor/nvidia-geforce-rtx-4090",
    ),
    Gpu(
        name="RTX 5090",
        pattern=r"NVIDIA GeForce RTX 5090",
        peak_flops={"bf16": 209.5 * T, "fp16": 209.5 * T, "fp8": 419 * T, "fp32": 104.8 * T},
        bandwidth=1792 * GB,
        multiprocessors=170,
        flop_per_clock=_GEFORCE_PER_CLOCK,
        source=f"{_GEFORCE_DOC}; 419 is fp8, and fp16 with fp16 accumulate or with sparsity; fp8 not cross-checked "
        "but for arithmetic from units and clock",
    ),
    Gpu(
        name="H100 SXM",
        pattern=r"NVIDIA H100 80GB HBM3",
        peak_flops=_HOPPER_SXM_PEAKS,
        bandwidth=3.35 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source=f"{_HOPPER_DOC}; {_H100_DOC}: 1,979 and 3,958, half of which is 989.5 and 1,979; "
        f"checked: {_STAS_DOC}, glennklockwood.com/garden/processors/h100",
        memory=_memory_range(80),
    ),
    Gpu(
        name="H100 PCIe",
        pattern=r"NVIDIA H100 PCIe",
        peak_flops={"bf16": 756 * T, "fp16": 756 * T, "fp8": 1513 * T, "fp32": 51.2 * T},
        bandwidth=2.0 * T,
        multiprocessors=114,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source=f"{_HOPPER_DOC}; NVIDIA H100 datasheet, PCIe column: 1,513 and 3,026 with sparsity, fp32 51, 2 TB/s "
        f"(the board's 5120 bit at 1593 MHz make 2,039 GB/s); checked: {_STAS_DOC}, winston-zhang-orz/gpu-specs",
        memory=_memory_range(80),
    ),
    Gpu(
        name="H100 NVL",
        pattern=r"NVIDIA H100 NVL",
        peak_flops=_HOPPER_NVL_PEAKS,
        bandwidth=3.9 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source=f"{_H100_DOC}, NVL column: 1,671 and 3,341, fp32 60, 3.9 TB/s, of one card; product brief PB-11773-001 "
        "prints 3,938 GB/s; checked: karpathy/nanochat peak table (835)",
        memory=_memory_range(94),
    ),
    Gpu(
        name="H200 SXM",
        pattern=r"NVIDIA H200",
        peak_flops=_HOPPER_SXM_PEAKS,
        bandwidth=4.8 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source="NVIDIA H200 datasheet 3002446 (nvdam.widen.net/s/nb5zzzsjdf): 1,979 and 3,958 with sparsity, fp32 67, "
        f"4.8 TB/s; the same GPU as H100 SXM, whose dense rates are used; checked: {_STAS_DOC}",
        memory=_memory_range(141),
    ),
    Gpu(
        name="H200 NVL",
        pattern=r"NVIDIA H200 NVL",
        peak_flops=_HOPPER_NVL_PEAKS,
        bandwidth=4.8 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source="nvidia.com/en-us/data-center/h200, NVL column: 1,671 and 3,341 with sparsity, halved, fp32 60, "
        "4.8 TB/s; checked: karpathy/nanochat peak table (836); fp32 only in quotations of that page",
        memory=_memory_range(141),
    ),
    Gpu(
        name="GH200 96GB",
        pattern=r"NVIDIA GH200 (120|240|480)GB",  # the size in the name is the CPU's memory
        peak_flops=_HOPPER_SXM_PEAKS,
        bandwidth=4.0 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source="NVIDIA GH200 Grace Hopper Superchip datasheet, 96 GB HBM3 version; compute as H100 SXM; "
        f"checked: {_STAS_DOC}, feifeibear/LLMRoofline",
        memory=_memory_range(96),
    ),
    Gpu(
        name="GH200 144GB",
        pattern=r"NVIDIA GH200 (144G HBM3e|(120|240|480)GB)",
        peak_flops=_HOPPER_SXM_PEAKS,
        bandwidth=4.9 * T,
        multiprocessors=132,
        flop_per_clock=_HOPPER_PER_CLOCK,
        source="NVIDIA GH200 Grace Hopper Superchip datasheet, 144 GB HBM3e version; compute as H100 SXM; "
        f"checked: feifeibear/LLMRoofline (4.9 TB/s); {_STAS_DOC} has 4.8",
        memory=_memory_range(144),
    ),
    Gpu(
        name="H20",
        pattern=r"NVIDIA H20",
        peak_flops={"bf16": 148 * T, "fp16": 148 * T, "fp8": 296 * T, "fp32": 44 * T},
        bandwidth=4.0 * T,
        source="No public NVIDIA datasheet was found; figures as reported for the 96 GB H20 at "
        "zangshuxian.com/new/674733024499207168 and in feifeibear/LLMRoofline; fp8 not cross-checked (as int8, 296)",
        memory=_memory_range(96),
    ),
    Gpu(
        name="B200",
        pattern=r"NVIDIA B200",
        peak_flops={"bf16": 2250 * T, "fp16": 2250 * T, "fp8": 4500 * T, "fp32": 75 * T},
        bandwidth=7.7 * T,
        multiprocessors=148,
        flop_per_clock=_BLACKWELL_PER_CLOCK,
        source=f"{_BLACKWELL_DOC}, {_EXEMPLAR_DOC} (2250, 7.7 TB/s); earlier NVIDIA documents print 8 TB/s and fp32 80",
        memory=_memory_range(180),
    ),
    Gpu(
        name="GB200",
        pattern=r"NVIDIA GB200",
        peak_flops={"bf16": 2500 * T, "fp16": 2500 * T, "fp8": 5000 * T, "fp32": 80 * T},
        bandwidth=8.0 * T,
        source=f"{_BLACKWELL_DOC}, {_STAS_DOC}; per GPU of the superchip; {_EXEMPLAR_DOC} has 2450 and 4900",
        memory=_memory_range(186),
    ),
    Gpu(
        name="B300",
        pattern=r"NVIDIA B300( SXM6 AC)?",
        peak_flops={"bf16": 2250 * T, "fp16": 2250 * T, "fp8": 4500 * T, "fp32": 75 * T},
        bandwidth=7.7 * T,
        multiprocessors=148,
        flop_per_clock=_BLACKWELL_PER_CLOCK,
        source=f"{_EXEMPLAR_DOC}: 2250, 4500, 270 GB at 7.7 TB/s; fp32 from NVIDIA's HGX B300 specification, 600 for 8 "
        "GPUs (fibermall.com copy); checked: verda.com/blog/gb300-nvl72-architecture, "
        f"glennklockwood.com/garden/processors/B300; {_STAS_DOC} has 8 TB/s and fp32 80, as NVIDIA's HGX components "
        "page has up to 8 TB/s",
        memory=_memory_range(270),
    ),
    Gpu(
        name="GB300",
        pattern=r"NVIDIA GB300",
        peak_flops={"bf16": 2500 * T, "fp16": 2500 * T, "fp8": 5000 * T, "fp32": 80 * T},
        bandwidth=8.0 * T,
        source="nvidia.com/en-us/data-center/gb300-nvl72, per GPU, dense; read only in the tables that checked it: "
        f"{_STAS_DOC}, verda.com/blog/gb300-nvl72-architecture; {_EXEMPLAR_DOC} has 8 TB/s, 2450 and 4900",
        memory=_memory_range(279),
    ),
    Gpu(
        name="MI250X (one GCD)",
        pattern=r"AMD Instinct MI250X",
        peak_flops={"bf16": 191.5 * T, "fp16": 191.5 * T, "fp32": 47.85 * T},
        bandwidth=1.6 * T,
        multiprocessors=110,
        flop_per_clock=_CDNA2_PER_CLOCK,
        source="amd.com/en/products/accelerators/instinct/mi200/mi250x: 383, fp32 matrix 95.7, 3.2 TB/s of both dies, "
        "halved as each die is a device; checked: rocm.docs.amd.com MI250 microarchitecture (1.6 TB/s per GCD), "
        f"{_STAS_DOC} (383), zexron.com (95.7)",
        memory=_memory_range(64),
    ),
    Gpu(
        name="MI300X",
        pattern=r"AMD Instinct MI300X( OAM| VF)?",
        peak_flops=_CDNA3_PEAKS,
        bandwidth=5.3 * T,
        multiprocessors=304,
        flop_per_clock=_CDNA3_PER_CLOCK,
        source="AMD Instinct MI300X data sheet (amd.com amd-instinct-mi300x-data-sheet.pdf), dense; fp32 is the matrix "
        f"rate, equal to the vector rate; checked: {_STAS_DOC} (1300, 2610, 163.4, 5.3 TB/s)",
        memory=_memory_range(192),
    ),
    Gpu(
        name="MI325X",
        pattern=r"AMD Instinct MI325X( OAM| VF)?",
        peak_flops=_CDNA3_PEAKS,
        bandwidth=6.0 * T,
        multiprocessors=304,
        flop_per_clock=_CDNA3_PER_CLOCK,
        source="AMD Instinct MI325X data sheet (amd.com instinct-mi325x-datasheet.pdf), dense, compute as MI300X; fp32 "
        f"is the matrix rate; checked: {_STAS_DOC}",
        memory=_memory_range(256),
    ),
    Gpu(
        name="MI355X",
        pattern=r"AMD Instinct MI355X( OAM| VF)?",
        peak_flops={"bf16": 2516.6 * T, "fp16": 2516.6 * T, "fp8": 5033.2 * T, "fp32": 157.3 * T},
        bandwidth=8.0 * T,
        multiprocessors=256,
        flop_per_clock=_CDNA4_PER_CLOCK,
        source="AMD Instinct MI355X GPU brochure (amd.com amd-instinct-mi355x-gpu-brochure.pdf): fp8 5.0332 PFLOP/s "
        "dense; bf16 is half of it, which the product page rounds to 2.5; fp32 is the matrix rate; "
        f"checked: {_STAS_DOC} (2500, 5000, 157.3, 8 TB/s)",
        memory=_memory_range(288),
    ),
)
