"""`indexer-deepgemm`: the scores of an indexer by DeepGEMM's fp8_mqa_logits, then torch.topk (core/indexer.py).

Checked against the source of DeepGEMM 00b1d2d. A call has one sequence; its call for several sequences decodes from
pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import Paste
from attnbench.backends.shared.indexer import CHOICE, SHAPES, Indexer
from attnbench.backends.shared.libraries import Library
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

CODE = """\
last = torch.arange(k.size(1) - q.size(1) + 1, k.size(1) + 1, dtype=torch.int32, device=k.device)  # keys of each query
kv = k[0], k_scale[0]
scores = fp8_mqa_logits(q[0], kv, weights[0], torch.zeros_like(last), last, clean_logits=True)[None]
"""


class IndexerDeepGemm(Indexer, Library):
    name = "indexer-deepgemm"
    module = "deep_gemm"
    required_name = forward_kernels = "fp8_mqa_logits"
    distributions: ClassVar = ("deep-gemm", "deep_gemm", "sgl-deep-gemm")
    install = "pip install --no-build-isolation git+https://github.com/deepseek-ai/DeepGEMM"
    limits: ClassVar = Limits(("fp8",), (9, 0), amd=False, headdim=(32, 128), chosen=True, backward=False)
    starts_compiler = True
    paste = Paste(("import torch", "from deep_gemm import fp8_mqa_logits"), {"indexer fp8": SHAPES + CODE + CHOICE})

    def unsupported(self, case: Case, device: Device) -> str | None:
        s = case.shape
        if reason := super().unsupported(case, device):
            return reason
        if s.batch > 1 or s.nheads not in (32, 64) or s.headdim not in (32, 64, 128):
            return "one sequence a call, of 32 or 64 heads with headdim 32, 64 or 128"
        return None

    def scores(self, case: Case, inputs: Inputs) -> Callable[..., Tensor]:
        import torch
        from deep_gemm import fp8_mqa_logits

        @cache  # made by the first launch, which is not timed
        def seen(queries: int, keys: int) -> tuple[Tensor, Tensor]:
            last = torch.arange(keys - queries + 1, keys + 1, dtype=torch.int32, device=inputs.q.device)
            return torch.zeros_like(last), last

        def scores(q: Tensor, k: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
            of = seen(q.shape[1], k.shape[1])  # a score of another key is -inf
            found: Tensor = fp8_mqa_logits(q[0], (k[0], scale[0]), weights[0], *of, clean_logits=True)
            return found[None]

        return scores
