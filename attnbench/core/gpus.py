"""Peak rates of GPUs as their vendors print them, each with its source. The denominators of utilisation.

A rate is dense (no 2:4 sparsity) with fp32 accumulation, at the vendor's boost clock, which a real kernel seldom holds.
Vendors print otherwise, so these were converted: NVIDIA's pages for Hopper, Blackwell, L4 and L40S give tensor rates
with sparsity, twice the dense ones; GeForce cards run fp16 with fp32 accumulation at half their fp16-accumulate rate.

"bf16", "fp16" and "fp8" are the tensor (matrix) units. "fp32" is what an fp32 matmul can reach without TF32: the CUDA
cores on NVIDIA, the fp32 matrix rate on AMD. A dtype that is absent has no such unit. Bandwidth is of device memory.

Vendors' PDFs were read through copies and quotations found by search, and compared with independent tables; `source`
names the vendor's document, what confirmed it ("checked:"), and figures that differ. "Not cross-checked" marks the
ones that nothing independent confirmed. Where figures conflict, the vendor's datasheet wins.

A peak holds at one clock, and a GPU at its power cap runs below it. `clock` derives it: peak / (multiprocessors x FLOP
of one in a clock). That is the boost clock, but for the tensor rates of Hopper and B200, which NVIDIA prints for less:
H100 SXM 989.4e12 / (132 x 4096) = 1.830 GHz of 1.980 (the whitepaper has both; checked:
glennklockwood.com/garden/processors/h100), PCIe 1.619 of 1.755, NVL 1.545 of 1.785. A GPU may run above it. The counts
are the whitepapers', fp8's twice bf16's as the peaks are; those of A10G and B300 are what the devices report in public
code. Left out: H20, whose multiprocessors do less in a clock; GB200 and GB300, which report 152 while their peaks
follow from 148 at 2.062 GHz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

T = 1e12
GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """One product: how drivers name it, and what its vendor says it can do."""

    name: str
    pattern: str  # regex for the whole name that the driver reports
    matmul: Mapping[str, float]  # dtype -> dense FLOP/s with fp32 accumulation
    bandwidth: float  # bytes/s
    source: str
    memory: tuple[int, int] | None = None  # bytes, least and most; tells variants of one name, and slices, apart
    multiprocessors: int = 0  # SMs, on AMD compute units, in use; 0 where not sure
    per_clock: Mapping[str, int] = field(default_factory=dict)  # dtype -> FLOP of one multiprocessor in a clock


def find(name: str, memory: int) -> Gpu | None:
    """The GPU with this driver-reported name and total memory in bytes; None if unknown or a slice of one (MIG)."""
    for gpu in GPUS:
        if re.fullmatch(gpu.pattern, name.strip()) and (gpu.memory is None or gpu.memory[0] <= memory <= gpu.memory[1]):
            return gpu
    return None


def peak(gpu: Gpu, dtype: str) -> float | None:
    """Dense FLOP/s of a dtype, or None where the GPU has no unit for it."""
    return gpu.matmul.get(dtype)


def clock(gpu: Gpu, dtype: str) -> float | None:
    """Hz at which the peak of a dtype holds, or None where it cannot be derived."""
    rate, per_clock = gpu.matmul.get(dtype), gpu.multiprocessors * gpu.per_clock.get(dtype, 0)
    return rate / per_clock if rate and per_clock else None


def _about(gib: int) -> tuple[int, int]:
    """Bounds around a nominal size: drivers report up to some per cent less than is sold, partitions far less."""
    return int(0.85 * gib * 2**30), int(1.1 * gib * 2**30)


_STAS = "stas00/ml-engineering compute/accelerator/README.md"
_EXEMPLAR = "NVIDIA/exemplar-performance README.md (GitHub), peak throughput and reference architectures"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet and nvidia.com/en-us/data-center/a100, specification table"
_H100 = "nvidia.com/en-us/data-center/h100, specification table (tensor rates with sparsity, halved)"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, performance table (dense)"
_BLACKWELL = (
    "NVIDIA Blackwell datasheet 3384703, individual GPU specifications (tensor rates with sparsity, halved); "
    "checked: copy at zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html"
)
_GEFORCE = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3, pp. 46-48 (dense, fp32 accumulate); "
    "checked: karpathy/nanochat peak table"
)

_A100_RATES = {"bf16": 312 * T, "fp16": 312 * T, "fp32": 19.5 * T}
_HOPPER_SXM = {"bf16": 989.4 * T, "fp16": 989.4 * T, "fp8": 1978.9 * T, "fp32": 66.9 * T}
_HOPPER_NVL = {"bf16": 835.5 * T, "fp16": 835.5 * T, "fp8": 1670.5 * T, "fp32": 60 * T}
_CDNA3 = {"bf16": 1307.4 * T, "fp16": 1307.4 * T, "fp8": 2614.9 * T, "fp32": 163.4 * T}

# FLOP of one multiprocessor in a clock, dense, with fp32 accumulation
_VOLTA = {"fp16": 1024, "fp32": 128}  # and Turing
_AMPERE = {"bf16": 2048, "fp16": 2048, "fp32": 128}  # GA100
_GA102 = {"bf16": 1024, "fp16": 1024, "fp32": 256}  # boards for data centres
_GA102_CONSUMER = {"bf16": 512, "fp16": 512, "fp32": 256}  # GeForce: half the rate when accumulating in fp32
_ADA = {"bf16": 1024, "fp16": 1024, "fp8": 2048, "fp32": 256}
_CONSUMER = {"bf16": 512, "fp16": 512, "fp8": 1024, "fp32": 256}
_HOPPER_UNITS = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "fp32": 256}
_BLACKWELL_UNITS = {"bf16": 8192, "fp16": 8192, "fp8": 16384, "fp32": 256}
_CDNA2_UNITS = {"bf16": 1024, "fp16": 1024, "fp32": 256}
_CDNA3_UNITS = {"bf16": 2048, "fp16": 2048, "fp8": 4096, "fp32": 256}
_CDNA4_UNITS = {"bf16": 4096, "fp16": 4096, "fp8": 8192, "fp32": 256}

GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="T4",
        pattern=r"(NVIDIA )?(Tesla )?T4",
        matmul={"fp16": 65 * T, "fp32": 8.1 * T},
        bandwidth=320 * GB,
        multiprocessors=40,
        per_clock=_VOLTA,
        source="nvidia.com/en-us/data-center/tesla-t4: 65 mixed precision, 8.1 fp32, 320+ GB/s; the datasheet PDF "
        "prints 300 GB/s, under the 256 bit x 10 Gbit/s of the board; checked: sysrqmts.com/en/gpus/nvidia/tesla/t4",
    ),
    Gpu(
        name="V100 SXM2",
        pattern=r"(NVIDIA )?Tesla V100-SXM2-(16|32)GB",
        matmul={"fp16": 125 * T, "fp32": 15.7 * T},
        bandwidth=900 * GB,
        multiprocessors=80,
        per_clock=_VOLTA,
        source="NVIDIA V100 datasheet (images.nvidia.com volta-v100-datasheet-update-us-1165301-r5.pdf), SXM2 column; "
        "checked: Lightning fabric throughput table, winston-zhang-orz/gpu-specs",
    ),
    Gpu(
        name="V100 PCIe",
        pattern=r"(NVIDIA )?Tesla V100-PCIE-(16|32)GB",
        matmul={"fp16": 112 * T, "fp32": 14 * T},
        bandwidth=900 * GB,
        multiprocessors=80,
        per_clock=_VOLTA,
        source="NVIDIA V100 datasheet (images.nvidia.com volta-v100-datasheet-update-us-1165301-r5.pdf), PCIe column; "
        "checked: Lightning fabric throughput table, winston-zhang-orz/gpu-specs",
    ),
    Gpu(
        name="A10",
        pattern=r"(NVIDIA )?A10",
        matmul={"bf16": 125 * T, "fp16": 125 * T, "fp32": 31.2 * T},
        bandwidth=600 * GB,
        multiprocessors=72,
        per_clock=_GA102,
        source="NVIDIA A10 datasheet: bf16 and fp16 125 (250 with sparsity), fp32 31.2, 600 GB/s; "
        "checked: winston-zhang-orz/gpu-specs, astroC86/gpu-datasheet",
    ),
    Gpu(
        name="A10G",
        pattern=r"(NVIDIA )?A10G",
        matmul={"bf16": 70 * T, "fp16": 70 * T, "fp32": 35 * T},
        bandwidth=600 * GB,
        multiprocessors=80,
        per_clock=_GA102_CONSUMER,
        source="NVIDIA A10G datasheet (d1.awsstatic.com NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf): 70 dense, 140 "
        "with sparsity; not the A10's 125; checked: quotations of it in public code, bandwidth at "
        "baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference",
    ),
    Gpu(
        name="A100 SXM 40GB",
        pattern=r"(NVIDIA )?A100-SXM4-40GB",
        matmul=_A100_RATES,
        bandwidth=1555 * GB,
        multiprocessors=108,
        per_clock=_AMPERE,
        source=f"{_A100}; checked: {_STAS}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_about(40),
    ),
    Gpu(
        name="A100 SXM 80GB",
        pattern=r"(NVIDIA )?A100-SXM4-80GB",
        matmul=_A100_RATES,
        bandwidth=2039 * GB,
        multiprocessors=108,
        per_clock=_AMPERE,
        source=f"{_A100}; checked: {_STAS}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_about(80),
    ),
    Gpu(
        name="A100 PCIe 40GB",
        pattern=r"(NVIDIA )?A100-PCIE-40GB",
        matmul=_A100_RATES,
        bandwidth=1555 * GB,
        multiprocessors=108,
        per_clock=_AMPERE,
        source=f"{_A100}; checked: {_STAS}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_about(40),
    ),
    Gpu(
        name="A100 PCIe 80GB",
        pattern=r"(NVIDIA )?A100 80GB PCIe",
        matmul=_A100_RATES,
        bandwidth=1935 * GB,
        multiprocessors=108,
        per_clock=_AMPERE,
        source=f"{_A100}; checked: {_STAS}, thundercompute.com/blog/nvidia-a100-specs-full-guide",
        memory=_about(80),
    ),
    Gpu(
        name="L4",
        pattern=r"NVIDIA L4",
        matmul={"bf16": 121 * T, "fp16": 121 * T, "fp8": 242.5 * T, "fp32": 30.3 * T},
        bandwidth=300 * GB,
        multiprocessors=58,
        per_clock=_ADA,
        source="nvidia.com/en-us/data-center/l4: bf16 242 and fp8 485 with sparsity, halved; "
        "checked: winston-zhang-orz/gpu-specs, grokipedia.com/page/NVIDIA_L4_vs_L40S",
    ),
    Gpu(
        name="L40S",
        pattern=r"NVIDIA L40S",
        matmul={"bf16": 362.05 * T, "fp16": 362.05 * T, "fp8": 733 * T, "fp32": 91.6 * T},
        bandwidth=864 * GB,
        multiprocessors=142,
        per_clock=_ADA,
        source="NVIDIA L40S datasheet: bf16 362.05 | 733 with sparsity, fp8 733 | 1,466 (the dense pair is not exactly "
        f"1:2 as printed); checked: {_STAS}, table at mullet.se/product.html?product_id=355414",
    ),
    Gpu(
        name="RTX 3090",
        pattern=r"(NVIDIA )?GeForce RTX 3090",
        matmul={"bf16": 71.2 * T, "fp16": 71.2 * T, "fp32": 35.6 * T},
        bandwidth=936 * GB,
        multiprocessors=82,
        per_clock=_GA102_CONSUMER,
        source=f"{_GEFORCE} (71); the Ampere GA102 whitepaper rounds to 71 and prints 142 with fp16 accumulate",
    ),
    Gpu(
        name="RTX 4090",
        pattern=r"NVIDIA GeForce RTX 4090",
        matmul={"bf16": 165.2 * T, "fp16": 165.2 * T, "fp8": 330.3 * T, "fp32": 82.6 * T},
        bandwidth=1008 * GB,
        multiprocessors=128,
        per_clock=_CONSUMER,
        source=f"NVIDIA Ada GPU Architecture whitepaper v2.02, appendix A table 2, and {_GEFORCE}, "
        "waredb.com/processor/nvidia-geforce-rtx-4090",
    ),
    Gpu(
        name="RTX 5090",
        pattern=r"NVIDIA GeForce RTX 5090",
        matmul={"bf16": 209.5 * T, "fp16": 209.5 * T, "fp8": 419 * T, "fp32": 104.8 * T},
        bandwidth=1792 * GB,
        multiprocessors=170,
        per_clock=_CONSUMER,
        source=f"{_GEFORCE}; 419 is fp8, and fp16 with fp16 accumulate or with sparsity; fp8 not cross-checked "
        "but for arithmetic from units and clock",
    ),
    Gpu(
        name="H100 SXM",
        pattern=r"NVIDIA H100 80GB HBM3",
        matmul=_HOPPER_SXM,
        bandwidth=3.35 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source=f"{_HOPPER}; {_H100}: 1,979 and 3,958, half of which is 989.5 and 1,979; checked: {_STAS}, "
        "glennklockwood.com/garden/processors/h100",
        memory=_about(80),
    ),
    Gpu(
        name="H100 PCIe",
        pattern=r"NVIDIA H100 PCIe",
        matmul={"bf16": 756 * T, "fp16": 756 * T, "fp8": 1513 * T, "fp32": 51.2 * T},
        bandwidth=2.0 * T,
        multiprocessors=114,
        per_clock=_HOPPER_UNITS,
        source=f"{_HOPPER}; NVIDIA H100 datasheet, PCIe column: 1,513 and 3,026 with sparsity, fp32 51, 2 TB/s (the "
        f"board's 5120 bit at 1593 MHz make 2,039 GB/s); checked: {_STAS}, winston-zhang-orz/gpu-specs",
        memory=_about(80),
    ),
    Gpu(
        name="H100 NVL",
        pattern=r"NVIDIA H100 NVL",
        matmul=_HOPPER_NVL,
        bandwidth=3.9 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source=f"{_H100}, NVL column: 1,671 and 3,341, fp32 60, 3.9 TB/s, of one card; product brief PB-11773-001 "
        "prints 3,938 GB/s; checked: karpathy/nanochat peak table (835)",
        memory=_about(94),
    ),
    Gpu(
        name="H200 SXM",
        pattern=r"NVIDIA H200",
        matmul=_HOPPER_SXM,
        bandwidth=4.8 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source="NVIDIA H200 datasheet 3002446 (nvdam.widen.net/s/nb5zzzsjdf): 1,979 and 3,958 with sparsity, fp32 67, "
        f"4.8 TB/s; the same GPU as H100 SXM, whose dense rates are used; checked: {_STAS}",
        memory=_about(141),
    ),
    Gpu(
        name="H200 NVL",
        pattern=r"NVIDIA H200 NVL",
        matmul=_HOPPER_NVL,
        bandwidth=4.8 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source="nvidia.com/en-us/data-center/h200, NVL column: 1,671 and 3,341 with sparsity, halved, fp32 60, "
        "4.8 TB/s; checked: karpathy/nanochat peak table (836); fp32 only in quotations of that page",
        memory=_about(141),
    ),
    Gpu(
        name="GH200 96GB",
        pattern=r"NVIDIA GH200 (120|240|480)GB",  # the size in the name is the CPU's memory
        matmul=_HOPPER_SXM,
        bandwidth=4.0 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source="NVIDIA GH200 Grace Hopper Superchip datasheet, 96 GB HBM3 version; compute as H100 SXM; "
        f"checked: {_STAS}, feifeibear/LLMRoofline",
        memory=_about(96),
    ),
    Gpu(
        name="GH200 144GB",
        pattern=r"NVIDIA GH200 (144G HBM3e|(120|240|480)GB)",
        matmul=_HOPPER_SXM,
        bandwidth=4.9 * T,
        multiprocessors=132,
        per_clock=_HOPPER_UNITS,
        source="NVIDIA GH200 Grace Hopper Superchip datasheet, 144 GB HBM3e version; compute as H100 SXM; "
        f"checked: feifeibear/LLMRoofline (4.9 TB/s); {_STAS} has 4.8",
        memory=_about(144),
    ),
    Gpu(
        name="H20",
        pattern=r"NVIDIA H20",
        matmul={"bf16": 148 * T, "fp16": 148 * T, "fp8": 296 * T, "fp32": 44 * T},
        bandwidth=4.0 * T,
        source="No public NVIDIA datasheet was found; figures as reported for the 96 GB H20 at "
        "zangshuxian.com/new/674733024499207168 and in feifeibear/LLMRoofline; fp8 not cross-checked (as int8, 296)",
        memory=_about(96),
    ),
    Gpu(
        name="B200",
        pattern=r"NVIDIA B200",
        matmul={"bf16": 2250 * T, "fp16": 2250 * T, "fp8": 4500 * T, "fp32": 75 * T},
        bandwidth=7.7 * T,
        multiprocessors=148,
        per_clock=_BLACKWELL_UNITS,
        source=f"{_BLACKWELL}, {_EXEMPLAR} (2250, 7.7 TB/s); earlier NVIDIA documents print 8 TB/s and fp32 80",
        memory=_about(180),
    ),
    Gpu(
        name="GB200",
        pattern=r"NVIDIA GB200",
        matmul={"bf16": 2500 * T, "fp16": 2500 * T, "fp8": 5000 * T, "fp32": 80 * T},
        bandwidth=8.0 * T,
        source=f"{_BLACKWELL}, {_STAS}; per GPU of the superchip; {_EXEMPLAR} has 2450 and 4900",
        memory=_about(186),
    ),
    Gpu(
        name="B300",
        pattern=r"NVIDIA B300( SXM6 AC)?",
        matmul={"bf16": 2250 * T, "fp16": 2250 * T, "fp8": 4500 * T, "fp32": 75 * T},
        bandwidth=7.7 * T,
        multiprocessors=148,
        per_clock=_BLACKWELL_UNITS,
        source=f"{_EXEMPLAR}: 2250, 4500, 270 GB at 7.7 TB/s; fp32 from NVIDIA's HGX B300 specification, 600 for 8 "
        "GPUs (fibermall.com copy); checked: verda.com/blog/gb300-nvl72-architecture, "
        f"glennklockwood.com/garden/processors/B300; {_STAS} has 8 TB/s and fp32 80, as NVIDIA's HGX components page "
        "has up to 8 TB/s",
        memory=_about(270),
    ),
    Gpu(
        name="GB300",
        pattern=r"NVIDIA GB300",
        matmul={"bf16": 2500 * T, "fp16": 2500 * T, "fp8": 5000 * T, "fp32": 80 * T},
        bandwidth=8.0 * T,
        source="nvidia.com/en-us/data-center/gb300-nvl72, per GPU, dense; read only in the tables that checked it: "
        f"{_STAS}, verda.com/blog/gb300-nvl72-architecture; {_EXEMPLAR} has 8 TB/s, 2450 and 4900",
        memory=_about(279),
    ),
    Gpu(
        name="MI250X (one GCD)",
        pattern=r"AMD Instinct MI250X",
        matmul={"bf16": 191.5 * T, "fp16": 191.5 * T, "fp32": 47.85 * T},
        bandwidth=1.6 * T,
        multiprocessors=110,
        per_clock=_CDNA2_UNITS,
        source="amd.com/en/products/accelerators/instinct/mi200/mi250x: 383, fp32 matrix 95.7, 3.2 TB/s of both dies, "
        "halved as each die is a device; checked: rocm.docs.amd.com MI250 microarchitecture (1.6 TB/s per GCD), "
        f"{_STAS} (383), zexron.com (95.7)",
        memory=_about(64),
    ),
    Gpu(
        name="MI300X",
        pattern=r"AMD Instinct MI300X( OAM| VF)?",
        matmul=_CDNA3,
        bandwidth=5.3 * T,
        multiprocessors=304,
        per_clock=_CDNA3_UNITS,
        source="AMD Instinct MI300X data sheet (amd.com amd-instinct-mi300x-data-sheet.pdf), dense; fp32 is the matrix "
        f"rate, equal to the vector rate; checked: {_STAS} (1300, 2610, 163.4, 5.3 TB/s)",
        memory=_about(192),
    ),
    Gpu(
        name="MI325X",
        pattern=r"AMD Instinct MI325X( OAM| VF)?",
        matmul=_CDNA3,
        bandwidth=6.0 * T,
        multiprocessors=304,
        per_clock=_CDNA3_UNITS,
        source="AMD Instinct MI325X data sheet (amd.com instinct-mi325x-datasheet.pdf), dense, compute as MI300X; fp32 "
        f"is the matrix rate; checked: {_STAS}",
        memory=_about(256),
    ),
    Gpu(
        name="MI355X",
        pattern=r"AMD Instinct MI355X( OAM| VF)?",
        matmul={"bf16": 2516.6 * T, "fp16": 2516.6 * T, "fp8": 5033.2 * T, "fp32": 157.3 * T},
        bandwidth=8.0 * T,
        multiprocessors=256,
        per_clock=_CDNA4_UNITS,
        source="AMD Instinct MI355X GPU brochure (amd.com amd-instinct-mi355x-gpu-brochure.pdf): fp8 5.0332 PFLOP/s "
        "dense; bf16 is half of it, which the product page rounds to 2.5; fp32 is the matrix rate; "
        f"checked: {_STAS} (2500, 5000, 157.3, 8 TB/s)",
        memory=_about(288),
    ),
)
