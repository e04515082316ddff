"""Kernels with a known bound: backends for `attnbench profile -b ./planted_kernels.py:NAME`.

They compute no attention, so a profile reports them as wrong. tests/gpu/test_bounds_gpu.py reads the counters of all
kernels in one call (`together`), because ncu takes longer to start than to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnbench.core.backend import Prepared, Probe, Signature
from attnbench.worker.measure import device_kernels

MIB = 2**20
LONG = 4096  # rounds of a long loop
SOURCE = r"""
/* 96 live values where 1024 threads of a block leave 64 registers to each. */
extern "C" __global__ __launch_bounds__(1024) void spills(float* x, int rounds) {
    float a[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) a[i] = x[threadIdx.x + i];
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < 96; ++i) a[i] = fmaf(a[i], a[(i + 17) % 96], 1.0f);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 96; ++i) sum += a[i];
    x[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/* Independent chains of FMA in registers. */
extern "C" __global__ void multiplies(float* x, int rounds) {
    float a[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = x[threadIdx.x + i];
    for (int round = 0; round < rounds; ++round)
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = fmaf(a[i], 0.5f, 1.0f);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i];
    x[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/* Reads of shared memory in which all lanes of a warp meet in one bank. */
extern "C" __global__ void shares(float* x, int rounds) {
    __shared__ float held[32 * 128];
    for (int i = threadIdx.x; i < 32 * 128; i += blockDim.x) held[i] = x[i];
    __syncthreads();
    float sum = 0.0f;
    for (int round = 0; round < rounds; ++round) {
        volatile float* at = held;
        sum += at[(threadIdx.x % 32) * 32 + round % 32] + at[(threadIdx.x % 32) * 32 + (round + 7) % 32];
    }
    x[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/* One chain of dependent reads: next[i] is where to read next. */
extern "C" __global__ void chases(int* next, int rounds) {
    int at = blockIdx.x * 4099 + threadIdx.x * 32;
    for (int round = 0; round < rounds; ++round) at = next[at];
    if (at < 0) next[0] = at;  /* never; without it the compiler would leave the reads out */
}
"""


class Planted:
    """A backend without a rule for its kernels."""

    name = "planted"

    def probe(self) -> Probe:
        return Probe(version="1")

    def unsupported(self, _case: Any, _device: Any) -> str | None:
        return None

    def signature(self, _case: Any, _device: Any) -> Signature:
        return Signature()

    def prepare(self, _case: Any, inputs: Any) -> Prepared:
        call = self.call_on(inputs.q.device)

        def launch() -> Any:
            call()
            return inputs.q

        return Prepared(launch, lambda out: {"out": out})

    def call_on(self, device: Any) -> Callable[[], Any]:
        """Return the call of one kernel on a device."""
        raise NotImplementedError


class Kernel(Planted):
    """One launch of a kernel of `source`; `blocks` returns the number of blocks for a number of multiprocessors."""

    def __init__(
        self, name: str, blocks: Callable[[int], int], threads: int, rounds: int | None = LONG, source: str = SOURCE
    ) -> None:
        self.kernel, self.blocks, self.threads, self.rounds, self.source = name, blocks, threads, rounds, source

    def call_on(self, device: Any) -> Callable[[], Any]:
        grid = self.blocks(torch.cuda.get_device_properties(device).multi_processor_count)
        values = torch.rand(max(grid * self.threads, 64 * MIB), device=device)
        if self.kernel == "chases":
            values = torch.randint(0, len(values), (len(values),), device=device, dtype=torch.int32)
        kernel = device_kernels.compiled(self.kernel, self.source)
        arguments = [values] if self.rounds is None else [values, self.rounds]
        return lambda: kernel((grid, 1, 1), (self.threads, 1, 1), arguments)


class TorchCall(Planted):
    """A call of torch on two tensors that `make` returns for a device."""

    def __init__(self, call: Callable[[Any, Any], Any], make: Callable[[Any], Any]) -> None:
        self.call, self.make = call, make

    def call_on(self, device: Any) -> Callable[[], Any]:
        first, second = self.make(device), self.make(device)
        return lambda: self.call(first, second)


class Together(Planted):
    """Several planted kernels in one call, one after the other."""

    def __init__(self, *planted: Planted) -> None:
        self.planted = planted

    def call_on(self, device: Any) -> Callable[[], Any]:
        calls = [one.call_on(device) for one in self.planted]
        return lambda: [call() for call in calls]


def _floats(device: Any) -> Any:
    return torch.rand(128 * MIB, device=device)


def _matrix(device: Any) -> Any:
    return torch.randn(8192, 8192, device=device).bfloat16()


# Kernels for which the rules were written.
spills = Kernel("spills", lambda n: 16 * n, 1024, rounds=256)
few_blocks = Kernel("multiplies", lambda _: 8, 256)
memory = TorchCall(lambda a, b: torch.add(a, 1, out=b), _floats)
exp = Kernel("exponentials", lambda n: 64 * n, 256, rounds=None, source=device_kernels.EXP_SOURCE)
host = TorchCall(lambda a, b: b.add_(a.sum().item()), _floats)
# Kernels for which the rules were not written.
products = TorchCall(lambda a, b: a @ b, _matrix)
multiplies = Kernel("multiplies", lambda n: 64 * n, 256)
shares = Kernel("shares", lambda n: 64 * n, 256, rounds=1024)
chases = Kernel("chases", lambda n: 4 * n, 32, rounds=256)
tail = Kernel("multiplies", lambda n: 9 * n, 256, rounds=16 * LONG)  # 8 blocks fit a multiprocessor

TOGETHER = ("spills", "few_blocks", "memory", "exp", "products", "multiplies", "shares", "chases", "tail")
together = Together(*(globals()[name] for name in TOGETHER))
