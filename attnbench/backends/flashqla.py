"""`flashqla`: FlashQLA's TileLang kernels of the gated delta rule, with the interface of fla's function.

Checked against the source of flash-qla 0.1.3. A kernel of torch.compile first divides q and k by their lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.limits import Limits
from attnbench.backends.paste import Paste
from attnbench.backends.shared.delta import is_token, pasted_call, prepared_by_fla, workspace_of_chunks
from attnbench.backends.shared.libraries import Library
from attnbench.core.backend import Prepared, Workspace
from attnbench.core.case import Case, Kind
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs


class FlashQla(Library):
    name = "flashqla"
    kinds: ClassVar[tuple[Kind, ...]] = ("gdn",)
    module = "flash_qla"
    distributions: ClassVar = ("flash-qla",)
    uses: ClassVar = ("tilelang", "triton")
    install = "pip install flash-qla"
    min_version = "0.1.3"  # the first with a backward on compute capability 12.0
    limits: ClassVar = Limits(capability=(9, 0), amd=False, headdim_pairs=((128, 128),))
    starts_compiler = True
    efficiency = 0.3
    forward_kernels = "fused_chunk_gdr_fwd"
    backward_kernels = "fused_chunk_gdr_bwd"
    paste = Paste(
        ("from flash_qla import chunk_gated_delta_rule",),
        {"gdn": pasted_call("chunk_gated_delta_rule")},
        scale="scale={scale}",
    )

    def unsupported(self, case: Case, device: Device) -> str | None:
        return super().unsupported(case, device) or ("no kernel for one token with a state" if is_token(case) else None)

    def workspace(self, case: Case) -> Workspace:
        return workspace_of_chunks(case)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        from flash_qla import chunk_gated_delta_rule

        return prepared_by_fla(case, inputs, chunk_gated_delta_rule)
