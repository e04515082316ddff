"""The backend `helion`: the cases that attention.py takes, and the prepared call.

Checked against Helion 1.5.0 with torch 2.11, and 1.5.1 with torch 2.13. Helion compiles for each shape, and its first
call times the configurations of attention.py: `first_call` has this time.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.base import autograd_prepared
from attnbench.backends.limits import Limits
from attnbench.backends.paste import BSHD, FLASH, Paste
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs


class Helion(Library):
    name = "helion"
    module = "helion"
    distributions: ClassVar = ("helion",)
    uses: ClassVar = ("triton",)
    install = "pip install 'helion>=1.5'  # beside torch 2.11: helion==1.5.0"
    min_version = "1.5"
    kernel_folders: ClassVar = ("helion",)
    limits: ClassVar = Limits(amd=False, headdim_pairs=((64, 64), (128, 128)), backward=False)
    efficiency = 0.5
    compiles = 15.0
    forward_kernels = "^_helion_forward$"
    paste = Paste(
        ("from attnbench.backends.helion.attention import attention",),
        {"dense": f"{BSHD}out = attention(q, k, v{{options}})"},
        causal=FLASH["causal"],
        scale=FLASH["scale"],
    )

    def workspace(self, case: Case) -> Workspace:
        return Workspace()

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.helion.attention import attention

        call = functools.partial(attention, causal=case.causal, softmax_scale=case.softmax_scale)
        return autograd_prepared(case, inputs, call, strided=True)
