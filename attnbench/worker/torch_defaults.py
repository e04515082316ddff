"""Global settings of torch that code may change: gradients, inference mode, autocast, default device and dtype.

The worker's own work needs torch's defaults; the calls of a file may need the settings that the file made at its
import. Code that torch.compile has made is discarded here too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from attnbench.core.backend import Backend, Prepared
from attnbench.core.case import Case

KINDS = ("cpu", "cuda")  # device types of autocast
_ENTERED: list[Any] = []  # contexts that are never left; they are kept, because a freed context ends


def undo() -> None:
    """Restore torch's defaults, if torch is imported, as a call may have changed them."""
    if "torch" not in sys.modules:
        return
    import torch

    if torch.is_inference_mode_enabled():
        _ENTERED.append(torch.inference_mode(False))
        _ENTERED[-1].__enter__()
    torch.set_grad_enabled(True)
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)
    for kind in KINDS:
        torch.set_autocast_enabled(kind, False)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Restore after the block the global settings that `undo` and a case's inputs change.

    It is for a process that is not a worker. Inference mode cannot be restored; raises RuntimeError where it is on.
    """
    import torch

    if torch.is_inference_mode_enabled():
        raise RuntimeError("this process is in inference mode; call this outside of it")
    device, dtype, grad = torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled()
    precision, generator = torch.get_float32_matmul_precision(), torch.get_rng_state()
    casts = {kind: torch.is_autocast_enabled(kind) for kind in KINDS}
    try:
        yield
    finally:
        torch.set_default_device(None if device == torch.device("cpu") else device)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(generator)
        for kind, enabled in casts.items():
            torch.set_autocast_enabled(kind, enabled)


def forget_compiled() -> None:
    """Discard torch.compile's code for other cases.

    After eight shapes of a function torch.compile would run it uncompiled, or compile it for any shape.
    """
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.reset()


def keep_to_backend(backend: Backend) -> None:
    """Undo the global settings of a backend's import; only its calls keep its autocast, default device and dtype."""
    if "torch" not in sys.modules:
        return
    import torch

    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    casts = {kind: torch.get_autocast_dtype(kind) for kind in KINDS if torch.is_autocast_enabled(kind)}
    undo()
    if (device.type, dtype) == ("cpu", torch.float32) and not casts:
        return

    def within(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            torch.set_default_dtype(dtype)
            try:
                with device, contextlib.ExitStack() as stack:
                    for kind, of in casts.items():
                        stack.enter_context(torch.autocast(kind, of))
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
