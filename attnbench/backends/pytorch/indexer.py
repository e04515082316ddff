"""`indexer-torch`: the indexer of sparse attention by its definition, in torch's operators (core/indexer.py).

The product with the keys has the dtype of the case, bf16 for fp8, and the sum over heads is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.paste import Paste
from attnbench.backends.shared.indexer import CHOICE, SHAPES, Indexer
from attnbench.core.backend import Signature, torch_dtype
from attnbench.core.case import DTYPES, RESULT_ITEMSIZE, Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.core.backend import Inputs

CODE = """\
keys = torch.arange(k.size(1), device=k.device)
last = keys[-q.size(1) :, None]  # the last key that each query sees
scores = torch.einsum("bshd,btd->bsht", q, k).relu().float()
scores = torch.einsum("bsht,bsh->bst", scores, weights).masked_fill(keys > last, float("-inf"))
"""
OF_FP8 = "q, k = q.bfloat16(), (k.float() * k_scale[..., None]).bfloat16()\n"


class IndexerTorch(Indexer):
    name = "indexer-torch"
    limits: ClassVar = replace(TORCH_LIMITS, dtypes=DTYPES, chosen=True, backward=False)
    paste = Paste(
        ("import torch",),
        {"indexer": f"{SHAPES}{CODE}{CHOICE}", "indexer fp8": f"{SHAPES}{OF_FP8}{CODE}{CHOICE}"},
    )
    efficiency = 0.1

    def bytes_of_a_score(self, case: Case) -> int:
        return case.shape.nheads * (RESULT_ITEMSIZE[case.dtype] + 4) + 8  # of each head in the dtype and in float32

    def signature(self, case: Case, device: Device) -> Signature:
        return Signature(("(?i)mm|gem[mv]", self.choice_kernels), float32=True)

    def scores(self, case: Case, inputs: Inputs) -> Callable[..., Tensor]:
        import torch

        def scores(q: Tensor, k: Tensor, weights: Tensor, k_scale: Tensor | None) -> Tensor:
            q, k = (t.to(torch_dtype(case)) for t in (q, k))
            of_heads = torch.einsum("bshd,btd->bsht", q, k).relu_().float()
            found = torch.einsum("bsht,bsh->bst", of_heads, weights)
            if k_scale is not None:
                found = found * k_scale[:, None]
            keys = torch.arange(k.shape[1], device=k.device)
            hidden = keys > keys[k.shape[1] - q.shape[1] :, None]
            return found.masked_fill_(hidden, float("-inf"))

        return scores
