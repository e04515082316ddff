"""The small measuring CUDA kernels, compiled by the NVRTC that torch ships, as a worker may lack nvcc and Triton.

`globaltimer` counts nanoseconds in ticks of 32 ns on Hopper and of 1 us on some GPUs, independently of the GPU's
clocks. `clock64` counts the cycles of one multiprocessor. Source: NVIDIA, PTX ISA, special registers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

MAX_MULTIPROCESSORS = 256  # more than any GPU has

SOURCE = f"""
#define MULTIPROCESSORS {MAX_MULTIPROCESSORS}
typedef unsigned long long u64;

__device__ u64 nanoseconds() {{
    u64 now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}}

/* Returns the time at which a new tick began. */
__device__ u64 next_tick() {{
    u64 before = nanoseconds(), now;
    do now = nanoseconds(); while (now == before);
    return now;
}}

/* Spins for `length` ns, from tick to tick, and writes its cycles and ns to spun[0] and spun[1]. One thread. */
extern "C" __global__ void spin(int length, u64* spun) {{
    u64 began = next_tick(), cycles = clock64(), now;
    do now = nanoseconds(); while (now - began < (u64) length);
    spun[0] = clock64() - cycles;
    spun[1] = now - began;
}}

/* Starts (`is_end` 0) or ends a window in each multiprocessor: counted[i] holds the cycles and the ns of all windows
   of multiprocessor i that have ended, and the cycle and the time at which its open window began. One thread a block,
   as many blocks as multiprocessors; one that gets no block at either end of a window does not count it. */
extern "C" __global__ void count(int is_end, u64 (*counted)[4]) {{
    unsigned i;
    asm volatile("mov.u32 %0, %smid;" : "=r"(i));
    if (i >= MULTIPROCESSORS) return;
    u64 now = next_tick(), cycle = clock64();
    if (is_end) {{
        u64 began = atomicExch(&counted[i][3], 0);
        if (began) {{
            counted[i][0] += cycle - counted[i][2];
            counted[i][1] += now - began;
        }}
    }} else {{
        counted[i][2] = cycle;
        counted[i][3] = now;
    }}
}}
"""

# In attention exp becomes ex2.approx: exp(x) = 2^(x log2 e). Each thread has CHAINS independent ones in flight, as one
# takes some 20 cycles; they approach 2^-x = x. PTX ISA, ex2.
CHAINS, ROUNDS = 8, 2048
EXP_SOURCE = f"""
extern "C" __global__ void exponentials(float* sums) {{
    float x[{CHAINS}], sum = 0.0f;
    for (int i = 0; i < {CHAINS}; ++i) x[i] = 0.01f * (threadIdx.x % 32 + i);
    for (int round = 0; round < {ROUNDS}; ++round)
#pragma unroll
        for (int i = 0; i < {CHAINS}; ++i) asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[i]) : "f"(-x[i]));
    for (int i = 0; i < {CHAINS}; ++i) sum += x[i];
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""


def compiled(name: str, source: str = SOURCE) -> Callable[..., Any]:
    """Return a kernel of a source, compiled for the current CUDA device, to call with grid, block and arguments.

    Raises RuntimeError for torch before 2.9 or without NVRTC, and on a device that is not NVIDIA's.
    """
    import torch

    if torch.version.cuda is None or not hasattr(torch.cuda, "_compile_kernel"):
        raise RuntimeError(f"torch {torch.__version__} cannot compile a CUDA kernel")
    kernel: Callable[..., Any] = torch.cuda._compile_kernel(source, name)
    return kernel


def bound(kernel: Any, blocks: int, arguments: Sequence[Any]) -> Callable[[], None]:
    """Return a launch of a kernel of `compiled`, in blocks of one thread, with integers and tensors as arguments.

    It costs the host 11 us; calling the kernel itself costs 31, as that opens the driver and converts arguments anew.
    """
    import torch

    launch = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuLaunchKernel
    values = [ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(a.data_ptr()) for a in arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))

    def queue(_: Any = (values, arguments)) -> None:  # kept alive as long as the launch
        stream = torch.cuda.current_stream()._as_parameter_
        if code := launch(kernel.func, blocks, 1, 1, 1, 1, 1, 0, stream, pointers, None):
            raise RuntimeError(f"the CUDA driver cannot launch a kernel: error {code}")

    return queue
