"""A plain function as a backend: f(q, k, v, *, causal, softmax_scale) -> out."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import BackendBase, Order, autograd_prepared
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.shared.libraries import is_interpreted, refusal_of_interpreter, refusal_when_interpreted
from attnbench.backends.shared.own_signature import CALL, objection, takes_scale
from attnbench.backends.shared.own_source import hash_of_source, layers
from attnbench.core.backend import Prepared, Probe, Signature, Unsupported
from attnbench.core.case import Case
from attnbench.core.live_state import digest, live_state
from attnbench.core.machine import Device
from attnbench.core.own_code import IN_PROCESS, WRITTEN
from attnbench.core.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

ORDERS = ("bshd", "bhsd")


class Function(BackendBase):
    """A backend that calls a person's own function, or another callable object such as an nn.Module.

    The tensors are (batch, seqlen, nheads, headdim), or (batch, nheads, seqlen, headdim) where its attribute `order` is
    "bhsd". A backward is measured if autograd can differentiate the function. A case for which it raises
    NotImplementedError is skipped, with the error's text as the reason; any other error is a failure. A function
    without a parameter softmax_scale must scale by 1 / sqrt(headdim) itself; cases of another scale are skipped.
    """

    limits = TORCH_LIMITS

    def __init__(
        self, name: str, fn: Callable[..., Any], parameters: Mapping[str, Any] | None = None, spec: str = ""
    ) -> None:
        """Take the function that `spec` ("file.py:object") names, and the parameters that a person sets."""
        self.name = name
        self.fn = functools.partial(fn, **parameters) if parameters else fn
        given = (getattr(layer, "order", None) for layer in layers(fn))
        self.order: Order = next((order for order in given if order is not None), "bshd")
        self.parameters = parameters or {}
        self.given = fn
        self._file, _, self._attribute = spec.rpartition(":") if spec else ("", "", name)
        self._takes_scale = takes_scale(fn)
        self._uses_triton = "triton.language" in sys.modules  # true where its file has imported Triton

    def probe(self) -> Probe:
        """Return a hash of the source as the version, or why the function cannot be called.

        The hash keeps a run from being resumed with another kernel.
        """
        of_api = self._file == IN_PROCESS or WRITTEN in Path(self._file).parts
        file = "" if of_api else Path(self._file).name or "its file"
        if refusal := objection(self.given, self._attribute, file, self.parameters):
            return Probe(reason=refusal)
        if self.order not in ORDERS:
            return Probe(reason=f"{self._attribute}.order is {self.order!r}, neither bshd nor bhsd")
        try:
            for pattern in self._kernels():
                re.search(pattern, "")
        except (TypeError, re.error) as error:
            return Probe(reason=f"{self._attribute}.kernels is not one or several regular expressions: {error}")
        if self._file == IN_PROCESS:  # its source does not show the variables that it reads
            return Probe(version=f"{self.name}, source {digest(live_state(self.given))}")
        return Probe(version=f"{self.name}, source {hash_of_source(self.given, self._file) or 'unknown'}")

    def unsupported(self, case: Case, device: Device) -> str | None:
        of_triton = None
        if self._uses_triton:
            of_triton = refusal_when_interpreted(case) if device.kind == "cpu" else refusal_of_interpreter(device)
        of_scale = None
        if not self._takes_scale and not math.isclose(case.softmax_scale, case.shape.headdim**-0.5, rel_tol=1e-6):
            of_scale = f"no parameter softmax_scale; this case has {case.softmax_scale:g}"
        return of_triton or of_scale or super().unsupported(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        """Return the function's attribute `kernels`, one or several regular expressions; without it there is no rule.

        Triton's interpreter computes in numpy, without kernels of any declared name, so it has no rule either.
        """
        if self._uses_triton and device.kind == "cpu" and is_interpreted():
            return Signature(float32=True)
        runs = self._kernels()
        return Signature(runs, float32=not runs)

    def _kernels(self) -> tuple[str, ...]:
        declared = next((found for f in layers(self.given) if (found := getattr(f, "kernels", ()))), ())
        return (declared,) if isinstance(declared, str) else tuple(declared)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        scale = {"softmax_scale": case.softmax_scale} if self._takes_scale else {}

        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            try:
                out = self.fn(q, k, v, causal=case.causal, **scale)
            except NotImplementedError as refusal:
                raise Unsupported(one_line(str(refusal).split("\n\n")[0])[:400] or "not implemented") from None
            except TypeError as error:
                if error.__traceback__ and error.__traceback__.tb_next:  # raised within the function
                    raise
                raise TypeError(f"{error}; expected {self.name}{CALL}") from None
            if type(out) is tuple:
                raise TypeError(f"{self.name} returned a tuple; return the output tensor alone")
            return out  # type: ignore[no-any-return]

        return autograd_prepared(case, inputs, call, self.order, strided=True)

    def in_other_order(self) -> tuple[Function, str]:
        """Return this backend with the other order of dimensions, and the advice to give if that order proves right."""
        order: Order = "bhsd" if self.order == "bshd" else "bshd"
        other = Function(self.name, self.given, self.parameters)
        other.order = order
        dimensions = {"bshd": "(batch, seqlen, nheads, headdim)", "bhsd": "(batch, nheads, seqlen, headdim)"}[order]
        name, file = self._attribute, Path(self._file).name or "its file"
        return other, f'it is right on {dimensions} tensors: if it takes them, add {name}.order = "{order}" to {file}'
