"""`sdpa-fa3`, `sdpa-fa4`: SDPA's flash backend with the kernels of FlashAttention-3 or FlashAttention-4.

torch.nn.attention.activate_flash_attention_impl, from torch 2.11 on, switches them on for the process. Checked against
torch 2.13's torch/nn/attention/_fa3.py and _fa4.py. _fa3.py imports flash_attn_interface and calls the operators fwd
and bwd of torch.ops.flash_attn_3. _fa4.py expects two results of FlashAttention-4's forward, but 4.0.0b19 and newer
return four, so `sdpa-fa4` needs an older FlashAttention-4 than `fa4`.
"""

from __future__ import annotations

import importlib
import typing
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from attnbench.backends.flash_attn.fa3 import FlashAttention3
from attnbench.backends.flash_attn.fa4 import FlashAttention4
from attnbench.backends.pytorch.sdpa import (
    CUDNN_KERNELS,
    EFFICIENT_KERNELS,
    FLASH_KERNELS,
    LOWER_RIGHT,
    Flash,
    sdpa_paste,
)
from attnbench.backends.shared.libraries import Library, flash_workspace, probe_of_both, version_numbers
from attnbench.core.backend import Prepared, Probe, Signature, Workspace
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    from attnbench.core.backend import Inputs

LAST_TORCH_FOR_TWO_RESULTS = (2, 13)  # newest torch known to expect two results
ACTIVATE, ACTIVATE_FROM = (
    'activate_flash_attention_impl("{}")  # once in a process\n',
    "from torch.nn.attention import activate_flash_attention_impl",
)
OLDER_FA4 = "attnbench env create sdpa-fa4, or pip install flash-attn-4==4.0.0b18"


class SdpaFlash(Flash):
    """SDPA's flash backend with the kernels of another library."""

    implementation = ""  # torch's name of the kernels
    kernels: type[Library]  # the backend that calls the same kernels without SDPA
    cpu_limits = None
    probe_imports = True
    efficiency = 0.75

    def __init__(self) -> None:
        self.direct = self.kernels()  # an instance of its own, because its probe sets state

    def probe(self) -> Probe:
        library = self.direct.probe()
        if not library.usable:  # checked first, because torch may be missing too
            return library
        attention = importlib.import_module("torch.nn.attention")
        known: list[str] = getattr(attention, "list_flash_attention_impls", list)()
        if self.implementation not in known:
            reason = f"this torch cannot put {self.implementation} behind SDPA; 2.11 and newer can"
            return Probe(reason=reason, install="pip install 'torch>=2.11'")
        try:
            _activate(self.implementation)
        except Exception as error:  # torch finds no kernels in the library, or fails to import it
            said = " ".join(str(error).split())[:200] or type(error).__name__
            reason = f"torch cannot put {library.version} behind SDPA: {said}"
            return Probe(reason=reason, install=self.direct.install)
        return probe_of_both(super().probe(), library)

    def installed(self) -> Probe | None:
        return probe_of_both(super().probe(), self.direct.installed())

    def unsupported(self, case: Case, device: Device) -> str | None:
        if device.capability is not None and device.capability[0] not in (9, 10):
            return "torch wires it up for compute capability 9 and 10 only"
        return super().unsupported(case, device) or self.direct.unsupported(case, device)

    def signature(self, case: Case, device: Device) -> Signature:
        return replace(self.direct.signature(case, device), never=(FLASH_KERNELS, EFFICIENT_KERNELS, CUDNN_KERNELS))

    def workspace(self, case: Case) -> Workspace:
        return flash_workspace(case)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        _activate(self.implementation)
        return super().prepare(case, inputs)


class SdpaFlashAttention3(SdpaFlash):
    name = "sdpa-fa3"
    paste = sdpa_paste("FLASH_ATTENTION", LOWER_RIGHT, ACTIVATE.format("FA3"), ACTIVATE_FROM)
    engine_names: ClassVar = {"sdpa": "FLASH_ATTENTION FA3"}
    uses: ClassVar = FlashAttention3.distributions
    implementation = "FA3"
    kernels = FlashAttention3


class SdpaFlashAttention4(SdpaFlash):
    name = "sdpa-fa4"
    paste = sdpa_paste("FLASH_ATTENTION", LOWER_RIGHT, ACTIVATE.format("FA4"), ACTIVATE_FROM)
    engine_names: ClassVar = {"sdpa": "FLASH_ATTENTION FA4"}
    uses: ClassVar = (*FlashAttention4.distributions, *FlashAttention4.uses)
    implementation = "FA4"
    kernels = FlashAttention4

    def probe(self) -> Probe:
        found = super().probe()
        if not found.usable:
            return _with_older(found)
        import torch

        forward = getattr(importlib.import_module("flash_attn.cute.interface"), "_flash_attn_fwd", None)
        gives = len(typing.get_args(getattr(forward, "__annotations__", {}).get("return")))
        if gives > 2 and version_numbers(torch.__version__)[:2] <= LAST_TORCH_FOR_TWO_RESULTS:
            reason = f"this torch takes 2 results of {self.direct.probe().version}'s forward, which returns {gives}"
            return Probe(reason=reason, install=OLDER_FA4)
        return found

    def installed(self) -> Probe | None:
        found = super().installed()
        return _with_older(found) if found else None


def _activate(implementation: str) -> None:
    """Make SDPA's flash backend call a library's kernels, once. Raises any error of torch or of the library."""
    from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl

    if current_flash_attention_impl() != implementation:
        activate_flash_attention_impl(implementation)


def _with_older(found: Probe) -> Probe:
    return replace(found, install=OLDER_FA4) if "flash-attn-4" in str(found.install) else found
