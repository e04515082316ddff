"""The backend `tilelang`: the cases that attention.py takes, and the prepared call.

Checked against TileLang 0.1.15. nvcc compiles for each shape, and the first call times the tiles of attention.py:
`first_call` has this time.
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


class TileLang(Library):
    name = "tilelang"
    module = "tilelang"
    distributions: ClassVar = ("tilelang",)
    uses: ClassVar = ("apache-tvm-ffi",)
    install = "pip install tilelang  # compiles with nvcc"
    min_version = "0.1.15"
    kernel_folders: ClassVar = ("tilelang",)
    limits: ClassVar = Limits(amd=False, headdim_pairs=((64, 64), (128, 128)), backward=False)
    efficiency = 0.5
    starts_compiler = True  # nvcc takes about 10 s for each of the tiles
    forward_kernels = "^tilelang_attention"
    paste = Paste(
        ("from attnbench.backends.tilelang.attention import attention",),
        {"dense": f"{BSHD}out = attention(q, k, v{{options}})"},
        causal=FLASH["causal"],
        scale=FLASH["scale"],
    )

    def workspace(self, case: Case) -> Workspace:
        return Workspace()

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from attnbench.backends.tilelang.attention import attention

        call = functools.partial(attention, causal=case.causal, softmax_scale=case.softmax_scale)
        return autograd_prepared(case, inputs, call)
