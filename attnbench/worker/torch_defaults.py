"""Torch's defaults that a person's file may set for all code: gradients, the default device, the default dtype.

The worker's own work needs them as torch has them; what the file calls may need them as it has set them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnbench.core.backend import Backend, Prepared
from attnbench.core.case import Case


def keep_to_backend(backend: Backend) -> None:
    """Undo what the import of a backend has set, and let its calls alone have its default device and dtype."""
    if "torch" not in sys.modules:
        return
    import torch

    torch.set_grad_enabled(True)
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    if (device.type, dtype) == ("cpu", torch.float32):
        return
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)

    def within(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            torch.set_default_dtype(dtype)
            try:
                with device:
                    return call(*arguments)
            finally:
                torch.set_default_dtype(torch.float32)

        return called

    prepare = within(backend.prepare)

    def prepare_within(case: Case, inputs: Any) -> Prepared:
        ready: Prepared = prepare(case, inputs)
        calls = {name: getattr(ready, name) for name in ("launch", "forward", "plan", "compute")}
        changed: dict[str, Any] = {name: within(call) for name, call in calls.items() if call}
        return replace(ready, **changed)

    backend.prepare = prepare_within  # type: ignore[method-assign]
