"""Keep torch's switches, which a backend may set for its process, unchanged by a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SDP = ("math", "mem_efficient", "flash", "cudnn")


@contextmanager
def kept() -> Iterator[None]:
    """Return a context that restores SDPA's enabled kernels and the precision of float32 products at its end."""
    switches = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in SDP}
    precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for name, was in switches.items():
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(was)
