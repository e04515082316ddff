"""Time torch's context parallel without attnbench, to compare with `ring-*`, on a host with several GPUs.

    python tests/gpu/context_parallel_by_hand.py --ranks 2 --seqlen 65536 --kernel cudnn --method allgather --causal
    attnbench run --ranks 2 -b ring-allgather-cudnn --seqlen 64k --batch 1 --headdim 128 --causal --pass fwd

It prints the median over some calls of the slowest rank's milliseconds, by CUDA events. Each call begins at a barrier,
after a flush of L2 and a rest of the GPUs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
CALLS, WARMUP, REST = 20, 5, 0.1  # seconds of rest before each call


def measure(rank: int, given: argparse.Namespace, meeting: str) -> None:
    """Time the calls of one rank; rank 0 prints the median of the slowest."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=given.ranks)
    mesh = init_device_mesh("cuda", (given.ranks,))
    set_rotate_method(given.method)
    size = (1, given.nheads, given.seqlen, given.headdim)
    generator = torch.Generator("cuda").manual_seed(1)
    q, k, v = (torch.randn(size, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(3))
    flush = torch.empty(2**28, dtype=torch.int8, device="cuda")
    token = torch.zeros(1, device="cuda")
    with sdpa_kernel(KERNELS[given.kernel]), context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        attention, times = torch.nn.functional.scaled_dot_product_attention, []
        for call in range(WARMUP + CALLS):
            time.sleep(REST)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.sum(dtype=torch.int64)
            dist.all_reduce(token)
            start.record()
            attention(q, k, v, is_causal=given.causal)
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor([start.elapsed_time(end)], device="cuda")
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if call >= WARMUP:
                times.append(float(slowest))
    if rank == 0:
        print(f"{given.kernel} {given.method} {given.seqlen} on {given.ranks}: {statistics.median(times):.3f} ms")
    dist.destroy_process_group()


def main() -> None:
    """Read the options and start a process for each rank."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seqlen", type=int, default=65536)
    parser.add_argument("--nheads", type=int, default=16)
    parser.add_argument("--headdim", type=int, default=128)
    parser.add_argument("--kernel", choices=KERNELS, default="cudnn")
    parser.add_argument("--method", choices=("allgather", "alltoall"), default="allgather")
    parser.add_argument("--causal", action="store_true", help="torch's balancing takes causal attention only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, args=(given, f"{folder}/meeting"), nprocs=given.ranks)


if __name__ == "__main__":
    main()
