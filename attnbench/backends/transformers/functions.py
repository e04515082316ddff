"""`hf-*`: the attention functions of Hugging Face's transformers, which show the cost of the integration.

They are called as a model's layer calls them: through ALL_ATTENTION_FUNCTIONS (eager is Llama's own function), on
(batch, nheads, seqlen, headdim) views of the projections' results, with the mask that the model would make.
Checked against 5.23.0. `hf-flash_attention_2` needs flash-attn installed; without it transformers would download
another kernel.

A ragged batch is one sequence of packed tokens, as in transformers' padding-free training: flash_attention_2 gets the
cumulative lengths, as from a model, the others get the mask that a model makes of the positions. So `hf-eager` and
`hf-sdpa` compute the scores of all sequences with each other.

Sinks are gpt-oss's: its own eager function reads `sinks` of the layer; flex_attention takes them as `s_aux` and
multiplies the output by the share of the keys, from a log-sum-exp rounded to the dtype of v. SDPA has no sinks, and
with flash-attn 2 transformers ignores them silently.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import autograd_prepared, mask_workspace, scores_workspace
from attnbench.backends.flash_attn.fa2 import FlashAttention2
from attnbench.backends.limits import TORCH_LIMITS
from attnbench.backends.paste import Paste
from attnbench.backends.pytorch import compiled, sdpa
from attnbench.backends.pytorch.eager import eager_signature
from attnbench.backends.shared.libraries import Library, probe_of_both
from attnbench.backends.shared.masks import block_mask, visibility_mask
from attnbench.core.backend import Prepared, Probe, Signature, Workspace, cu_seqlens, torch_dtype
from attnbench.core.case import Case
from attnbench.core.machine import Device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attnbench.core.backend import Inputs

EAGER_AND_SDPA_LIMITS = replace(TORCH_LIMITS, window=True, dropout=True, empty_rows=False, ragged=True)


def hf_paste(implementation: str) -> Paste:
    """Return the code that loads a model of transformers with this attention; the model sets the options."""
    load = f'model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="{implementation}")'
    return Paste(("from transformers import AutoModelForCausalLM",), dict.fromkeys(("dense", "ragged"), load))


class HuggingFace(Library):
    """One of transformers' attention functions; `implementation` is its name in a model's configuration."""

    implementation = ""
    module = "transformers"
    distributions: ClassVar = ("transformers",)
    install = "pip install transformers"
    min_version = "4.57"  # ALL_ATTENTION_FUNCTIONS exists from 4.48 on; before 4.57 a window has one key more

    def probe(self) -> Probe:
        """Return the probe of transformers and of the library whose kernels it calls."""
        found, library = super().probe(), self._library()
        return probe_of_both(found, library.probe()) if library and found.usable else found

    def installed(self) -> Probe | None:
        found, library = super().installed(), self._library()
        return probe_of_both(found, library.installed()) if library else found

    def _library(self) -> Library | None:
        """Return the library that transformers calls; None where it calls torch."""
        return self.kernels_of() if self.kernels_of and issubclass(self.kernels_of, Library) else None

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        attend = self._function(case)
        layer = _layer_like(case, self.implementation)
        options: dict[str, Any] = {"scaling": case.softmax_scale, "dropout": case.dropout_p}
        plan = functools.partial(self._options, case, inputs.q.device)
        options.update(plan())

        def call(q: Tensor, k: Tensor, v: Tensor, *sink: Tensor) -> Tensor:
            if sink:
                options["s_aux"] = layer.sinks = sink[0]
            out: Tensor = attend(layer, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **options)[0]
            return out

        return autograd_prepared(case, inputs, call, strided=True, plan=plan if case.is_ragged else None)

    def _function(self, case: Case) -> Any:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS[self.implementation]

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        raise NotImplementedError


class Eager(HuggingFace):
    name = "hf-eager"
    implementation = "eager"
    paste = hf_paste(implementation)
    engine_names: ClassVar = {"transformers": implementation}
    limits: ClassVar = replace(EAGER_AND_SDPA_LIMITS, sink=True)

    def workspace(self, case: Case) -> Workspace:
        return scores_workspace(as_one(case), copies_fwd=5, copies_bwd=8)  # the softmax is in float32

    def signature(self, case: Case, device: Device) -> Signature:
        return eager_signature(case, device)

    def _function(self, case: Case) -> Any:
        if case.sink:
            from transformers.models.gpt_oss import modeling_gpt_oss as model
        else:
            from transformers.models.llama import modeling_llama as model

        return model.eager_attention_forward

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        """Return the options with an additive mask: the lowest finite value where a query does not see a key."""
        import torch

        seen = visibility_mask(case, device)
        if seen is None:
            return {"attention_mask": None}
        dtype = torch_dtype(case)
        mask = torch.zeros(1, 1, *seen.shape, dtype=dtype, device=device)
        return {"attention_mask": mask.masked_fill_(~seen, torch.finfo(dtype).min)}


class Sdpa(HuggingFace):
    """SDPA with the backend that torch chooses.

    As a model does, it passes SDPA's causal flag for equal lengths, and a mask otherwise.
    """

    name = "hf-sdpa"
    implementation = "sdpa"
    paste = hf_paste(implementation)
    engine_names: ClassVar = {"transformers": implementation}
    limits: ClassVar = EAGER_AND_SDPA_LIMITS
    kernels_of = sdpa.Choice

    def workspace(self, case: Case) -> Workspace:
        return mask_workspace(case) if case.is_ragged else super().workspace(case)

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        unmasked = case.window_size == (None, None) and not case.is_ragged
        if unmasked and case.shape.seqlen_q == case.shape.seqlen_k:
            # transformers 4 passes the flag on to SDPA, where it would hide all keys but the first from a single query
            return {"attention_mask": None, "is_causal": case.causal and case.shape.seqlen_q > 1}
        seen = visibility_mask(case, device)
        return {"attention_mask": None if seen is None else seen[None, None], "is_causal": False}


class Flash2(HuggingFace):
    name = "hf-flash_attention_2"
    efficiency = 0.45
    implementation = "flash_attention_2"
    paste = hf_paste(implementation)
    engine_names: ClassVar = {"transformers": implementation}
    limits: ClassVar = replace(FlashAttention2.limits.without_cache, headdim_v=True, alibi=False, deterministic=False)
    kernels_of = FlashAttention2

    def unsupported(self, case: Case, device: Device) -> str | None:
        if reason := super().unsupported(case, device):
            return reason
        if case.softcap and case.dropout_p:
            return "softcap and dropout exclude each other"
        if case.shape.headdim_v > case.shape.headdim:
            return "headdim_v is above headdim, to which transformers pads v"
        if case.window_size != (None, None) and (not case.causal or case.window_size[0] is None):
            return "its sliding window is causal, with a left side"
        return None

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        left = case.window_size[0]
        options: dict[str, Any] = {
            "attention_mask": None,
            "is_causal": case.causal,
            "sliding_window": None if left is None else left + 1,  # transformers counts the query's own position
            "softcap": case.softcap or None,
        }
        if case.is_ragged:
            starts_q, starts_k = cu_seqlens(case, device)
            options |= {"cu_seq_lens_q": starts_q, "cu_seq_lens_k": starts_k}
            options |= {"max_length_q": case.shape.seqlen_q, "max_length_k": case.shape.seqlen_k}
        return options


class Flex(compiled.Flex, HuggingFace):
    name = "hf-flex_attention"
    implementation = "flex_attention"
    limits: ClassVar = replace(compiled.Flex.limits.without_cache, alibi=False)
    paste = hf_paste(implementation)
    engine_names: ClassVar = {"transformers": implementation}

    def installed(self) -> Probe | None:
        return HuggingFace.installed(self)

    def prepare(self, case: Case, inputs: Inputs) -> Prepared:
        self.reset_for(case)
        return HuggingFace.prepare(self, case, inputs)

    def _options(self, case: Case, device: torch.device) -> dict[str, Any]:
        return {"attention_mask": block_mask(case, device), "softcap": case.softcap or None}


def as_one(case: Case) -> Case:
    """Return a case with the scores of all sequences of a ragged batch with each other, for the workspace."""
    return replace(case, shape=case.extent, lengths=())


def _layer_like(case: Case, implementation: str) -> Any:
    """Return a module with the attributes that an attention function reads from the layer that calls it."""
    import torch

    layer: Any = torch.nn.Module()
    layer.config = SimpleNamespace(_attn_implementation=implementation)
    layer.num_key_value_groups = case.shape.nheads // case.shape.nheads_k
    layer.is_causal = case.causal
    layer.layer_idx = 0
    return layer.train(case.has_backward or case.dropout_p > 0)
