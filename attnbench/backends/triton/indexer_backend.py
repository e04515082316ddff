"""The backend `indexer-triton`: the cases that indexer.py takes on each device, and the call.

Checked against Triton 3.9: in its interpreter, and compiled for Ampere, Hopper and Blackwell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.paste import Paste
from attnbench.backends.shared.indexer import CHOICE, SHAPES, Indexer
from attnbench.backends.shared.libraries import OwnKernels
from attnbench.backends.triton.backend import fp8_refusal, interpreter_refusal
from attnbench.core.backend import Signature
from attnbench.core.case import DTYPES, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

MOST_HEADS = 128  # a program has the heads of one query at once


class IndexerTriton(Indexer, OwnKernels):
    name = "indexer-triton"
    compiles = 1.0
    install = "pip install 'triton>=3.4'"
    min_version = "3.4"
    kernel_folders: ClassVar = ("triton",)
    limits: ClassVar = replace(
        TORCH_LIMITS, dtypes=DTYPES, capability=(8, 0), headdim=(1, 256), chosen=True, backward=False
    )
    paste = Paste(
        ("from attnbench.backends.triton.indexer import indexer_scores",),
        {
            "indexer": f"{SHAPES}scores = indexer_scores(q, k, weights)\n{CHOICE}",
            "indexer fp8": f"{SHAPES}scores = indexer_scores(q, k, weights, k_scale)\n{CHOICE}",
        },
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        reason = interpreter_refusal(case, device) or super().unsupported(case, device)
        if reason is None and case.shape.nheads > MOST_HEADS:
            return f"at most {MOST_HEADS} heads, not {case.shape.nheads}"
        return fp8_refusal(case, device) if reason is None and case.dtype == "fp8" else reason

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature((self.choice_kernels,) if device.kind == "cpu" else ("^_scores$", self.choice_kernels))

    def scores(self, case: Case, inputs: Inputs) -> Callable[..., Tensor]:
        from attnbench.backends.triton.indexer import indexer_scores

        return indexer_scores
