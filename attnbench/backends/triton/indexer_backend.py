"""The backend `indexer-triton`: the cases that indexer.py takes on each device, and the prepared call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.paste import Paste
from attnbench.backends.shared.indexer import CHOICE, SHAPES, indexer_prepared, queries_at_once
from attnbench.backends.shared.libraries import OwnKernels
from attnbench.backends.triton.backend import fp8_refusal, interpreter_refusal
from attnbench.core.backend import Prepared, Signature, Workspace
from attnbench.core.case import DTYPES, Case, Kind
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

MOST_HEADS = 128  # a program has the heads of one query at once
BYTES = 8.0  # of the score of a query and a key, and of torch.topk


class IndexerTriton(OwnKernels):
    name = "indexer-triton"
    kinds: ClassVar[tuple[Kind, ...]] = ("indexer",)
    compiles = 1.0
    install = "pip install 'triton>=3.4'"
    min_version = "3.4"
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

    def workspace(self, case: Case) -> Workspace:
        queries = queries_at_once(case, BYTES)
        return Workspace(int(BYTES * case.shape.batch * queries * case.shape.seqlen_k), "scores", passes=3.0)

    def signature(self, case: Case, device: Device) -> Signature:
        choice = "(?i)topk|sort|radix"
        return Signature((choice,) if device.kind == "cpu" else ("^_scores$", choice))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.triton.indexer import indexer_scores

        return indexer_prepared(case, inputs, indexer_scores, queries_at_once(case, BYTES))
