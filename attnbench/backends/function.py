"""A plain function as a backend: f(q, k, v, *, causal, softmax_scale) -> out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import BackendBase, autograd_prepared
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.core.backend import Prepared, Probe, Signature, Unsupported
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs


class Function(BackendBase):
    """A backend that calls a person's own function on (batch, seqlen, nheads, headdim) tensors.

    A backward is measured if autograd can differentiate the function. A case for which it raises NotImplementedError is
    skipped, with the error's text as the reason; any other error is a failure.
    """

    limits = TORCH_LIMITS

    def __init__(self, name: str, fn: Callable[..., Any]) -> None:
        self.name = name
        self.fn = fn

    def probe(self) -> Probe:
        """Return a hash of the function's source file as its version.

        A run is thus not resumed with another kernel.
        """
        try:
            source = Path(inspect.getsourcefile(self.fn) or "").read_bytes()
        except (OSError, TypeError):
            return Probe(version=f"{self.name}, source unknown")
        return Probe(version=f"{self.name}, source {hashlib.sha256(source).hexdigest()[:8]}")

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the function's attribute `kernels`, one or several regular expressions; no rule where it has none."""
        declared = getattr(self.fn, "kernels", ())
        return Signature(runs=(declared,) if isinstance(declared, str) else tuple(declared))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            try:
                out = self.fn(q, k, v, causal=case.causal, softmax_scale=case.softmax_scale)
            except NotImplementedError as refusal:
                raise Unsupported(str(refusal).partition("\n")[0] or "not implemented") from None
            except TypeError as error:
                if error.__traceback__ and error.__traceback__.tb_next:  # raised within it
                    raise
                raise TypeError(f"{error}; expected {self.name}(q, k, v, *, causal, softmax_scale)") from None
            if type(out) is tuple:
                raise TypeError(f"{self.name} returned a tuple; return the output tensor alone")
            return out  # type: ignore[no-any-return]

        return autograd_prepared(case, inputs, call, strided=True)
