"""Stand-in for flash-qla 0.1.3: its function of the gated delta rule, differentiable."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from torch import Tensor

from attnbench.backends.pytorch.delta import delta_rule
from standins import function, modules

VERSIONS = {"flash-qla": "0.1.3"}


def _compute(of: SimpleNamespace) -> tuple[Tensor, Tensor]:
    assert of.use_qk_l2norm_in_kernel
    assert of.output_final_state
    assert of.q.shape[-1] == of.v.shape[-1] == 128
    return delta_rule(of.q, of.k, of.v, of.g, of.beta, of.initial_state, of.scale or of.k.shape[-1] ** -0.5)


def version_0_1_3() -> dict[str, ModuleType]:
    parameters = (
        "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,"
        " cu_seqlens=None, head_first=False, state_v_first=False, auto_cp=True, enable_fwd_cp_cache=True,"
        " cp_context=None, force_intra_cp=False"
    )
    return modules({"flash_qla": {"chunk_gated_delta_rule": function(parameters, _compute)}})
