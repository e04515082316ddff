"""Restore torch's default precision while a reference is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def plain_torch() -> Iterator[None]:
    """Return a context in which products have full precision; a backend may have allowed TF32 or left autocast on."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        torch.set_float32_matmul_precision(before)
