"""`fla`: flash-linear-attention's Triton kernels of gated delta rules. Checked against fla-core 0.6.0.

A prompt and training call chunk_gated_delta_rule or chunk_kda (chunks of 64 tokens), one token with a state calls
fused_recurrent_gated_delta_rule or fused_recurrent_kda. Both divide q and k by their lengths in their kernels.

fla hands calls to FlashQLA and FlashKDA where these are installed. FLA_FLASH_QLA=0 and FLA_FLASH_KDA=0 keep its own
kernels. FLA_DISABLE_BACKEND_DISPATCH=1 would also exclude the TileLang kernel of its backward: on Hopper, with Triton
3.4 to 3.7.0, the backward of gdn needs it and raises an error where tilelang is missing (fla issue 640).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import Paste
from attnbench.backends.shared.delta import is_token, pasted_call, prepared_by_fla, workspace_of_chunks
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Probe, Signature, Unsupported, Workspace
from attnbench.core.case import Case, Kind
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

SWITCHES = {"FLA_FLASH_QLA": "0", "FLA_FLASH_KDA": "0"}  # read when fla is imported and called
NO_TILELANG = "the backward of gdn on Hopper needs Triton 3.7.1 or newer, or tilelang: pip install tilelang"


class Fla(Library):
    name = "fla"
    kinds: ClassVar[tuple[Kind, ...]] = ("gdn", "kda")
    module = "fla.ops.gated_delta_rule"
    required_name = "chunk_gated_delta_rule"
    distributions: ClassVar = ("fla-core", "flash-linear-attention")
    uses: ClassVar = ("triton", "tilelang")
    install = "pip install fla-core"
    limits: ClassVar = Limits(headdim=(16, 256), headdim_v=True)
    starts_compiler = True  # a first call tunes each kernel
    efficiency = 0.2
    runtime_checker = "fla"
    paste = Paste(
        (
            "from fla.ops.gated_delta_rule import chunk_gated_delta_rule",
            "from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule",
            "from fla.ops.kda import chunk_kda",
            "from fla.ops.kda import fused_recurrent_kda",
        ),
        {
            "gdn": pasted_call("chunk_gated_delta_rule"),
            "gdn token": pasted_call("fused_recurrent_gated_delta_rule"),
            "kda": pasted_call("chunk_kda"),
            "kda token": pasted_call("fused_recurrent_kda"),
        },
        scale="scale={scale}",
    )

    def probe(self) -> Probe:
        os.environ.update(SWITCHES)
        return super().probe()

    def workspace(self, case: Case) -> Workspace:
        return workspace_of_chunks(case)

    def signature(self, case: Case, device: Device) -> Signature:
        if is_token(case):
            return Signature((r"fused_recurrent_(gated_delta_rule|kda)_fwd_kernel",))
        runs = ["chunk_gated_delta_rule_fwd_kernel_h"]
        return Signature((*runs, "chunk_gated_delta_rule_bwd_kernel_dhu") if case.has_backward else (*runs,))

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        os.environ.update(SWITCHES)
        prepared = prepared_by_fla(case, inputs, _function(case))
        return replace(prepared, launch=partial(_launch, prepared.launch)) if case.has_backward else prepared


def _launch(launch: Callable[[], Any]) -> Any:
    """Launch a backward. Raises Unsupported where fla refuses it."""
    try:
        return launch()
    except RuntimeError as error:
        if "tilelang" in str(error):
            raise Unsupported(NO_TILELANG) from None
        raise


def _function(case: Case) -> Callable[..., tuple[Any, Any]]:
    """Return fla's function for a case."""
    from fla.ops import gated_delta_rule, kda

    found: Callable[..., tuple[Any, Any]]
    if case.kind == "kda":
        found = kda.fused_recurrent_kda if is_token(case) else kda.chunk_kda
    elif is_token(case):
        found = gated_delta_rule.fused_recurrent_gated_delta_rule
    else:
        found = gated_delta_rule.chunk_gated_delta_rule
    return found
