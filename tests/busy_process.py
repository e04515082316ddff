"""A process that keeps a GPU busy, for tests of measurements beside it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

COMPUTES = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
"""


@contextmanager
def busy_process() -> Iterator[None]:
    """Multiply matrices on the first GPU in another process, from two seconds before the block to its end."""
    with subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(2)  # until NVML lists it
            yield
        finally:
            process.kill()
