"""Kernels of which is known what bounds them: backends for `attnbench profile -b ./planted_kernels.py:NAME`.

They compute no attention, so a profile calls them wrong. tests/gpu/test_bounds_gpu.py profiles them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnbench.core.backend import Prepared
from attnbench.worker.measure import device_kernels

MIB = 2**20
LONG = 4096  # rounds of a loop
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


class Kernel:
    """One launch of a kernel of `source`, with as many blocks as `blocks` gives for the device's multiprocessors."""

    def __init__(
        self, name: str, blocks: Callable[[int], int], threads: int, rounds: int | None = LONG, source: str = SOURCE
    ) -> None:
        self.name, self.blocks, self.threads, self.rounds, self.source = name, blocks, threads, rounds, source

    def prepare(self, _case: Any, inputs: Any) -> Prepared:
        device = inputs.q.device
        grid = self.blocks(torch.cuda.get_device_properties(device).multi_processor_count)
        values = torch.rand(max(grid * self.threads, 64 * MIB), device=device)
        if self.name == "chases":
            values = torch.randint(0, len(values), (len(values),), device=device, dtype=torch.int32)
        kernel = device_kernels.compiled(self.name, self.source)
        arguments = [values] if self.rounds is None else [values, self.rounds]
        return Prepared(lambda: kernel((grid, 1, 1), (self.threads, 1, 1), arguments), lambda _: {})


class TorchCall:
    """Calls of torch on two tensors that `make` gives for a device."""

    def __init__(self, call: Callable[[Any, Any], Any], make: Callable[[Any], Any]) -> None:
        self.call, self.make = call, make

    def prepare(self, _case: Any, inputs: Any) -> Prepared:
        first, second = self.make(inputs.q.device), self.make(inputs.q.device)
        return Prepared(lambda: self.call(first, second), lambda _: {})


def _floats(device: Any) -> Any:
    return torch.rand(128 * MIB, device=device)


def _matrix(device: Any) -> Any:
    return torch.randn(8192, 8192, device=device).bfloat16()


# what the rules were written for
spills = Kernel("spills", lambda n: 16 * n, 1024, rounds=256)
few_blocks = Kernel("multiplies", lambda _: 8, 256)
memory = TorchCall(lambda a, b: torch.add(a, 1, out=b), _floats)
exp = Kernel("exponentials", lambda n: 64 * n, 256, rounds=None, source=device_kernels.EXP_SOURCE)
host = TorchCall(lambda a, b: b.add_(a.sum().item()), _floats)
# what they were not written on
products = TorchCall(lambda a, b: a @ b, _matrix)
multiplies = Kernel("multiplies", lambda n: 64 * n, 256)
shares = Kernel("shares", lambda n: 64 * n, 256, rounds=1024)
chases = Kernel("chases", lambda n: 4 * n, 32, rounds=256)
tail = Kernel("multiplies", lambda n: 9 * n, 256, rounds=16 * LONG)  # 8 blocks fit a multiprocessor
