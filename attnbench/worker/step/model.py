"""A model of transformers, built from the sizes of a case with random weights, and its steps.

Nothing is downloaded. Weights and tokens depend only on the seed, so that all workers of a machine have the same. The
weights are drawn as by the model's own initialisation, with a standard deviation that gives queries and keys of any
width the size that 0.02 gives in a model of width 4096: with smaller ones attention would be a mean, which hides errors
of the scores.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attnbench.core.attributes import other_attributes
from attnbench.core.backend import torch_dtype
from attnbench.core.case import Case
from attnbench.core.flops import attention_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SPREAD = 0.02 * 64  # the size of q and k, projected from normalised values
LAST = 16  # positions with compared logits in a training step
SAMPLED = 4096  # compared elements of each gradient
# DeepSeek-V3's rope_scaling, from which its softmax scale follows
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
YARN |= {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


class StepModel:
    """A model and a case's step of it. `launch` runs the step once and returns its logits."""

    def __init__(self, case: Case, device: torch.device, seed: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        assert case.model_step
        self.case = case
        self.phase = case.model_step.phase
        torch.manual_seed(seed)
        with torch.device(device):
            self.model = AutoModelForCausalLM.from_config(
                configuration(case), attn_implementation="eager", dtype=torch_dtype(case)
            )
        self._dtypes = [p.dtype for p in self.model.parameters()]
        size = (case.shape.batch, case.shape.seqlen_k)
        self.tokens = torch.randint(case.model_step.vocab, size, device=device)
        self._cache: Any = None
        self._cached: list[dict[str, Any]] = []
        self._experts: list[Tensor] = []  # the choices of experts in the first step
        self.model.train(self.phase == "train")
        self.model.requires_grad_(self.phase == "train")

    @property
    def layers(self) -> list[Any]:
        """Its decoder layers."""
        return list(self.model.model.layers)

    def use(self, implementation: str) -> str:
        """Let an implementation compute its attention. Return the implementation that the model then has."""
        self.model.set_attn_implementation(implementation)
        return str(self.model.config._attn_implementation)

    def convert(self, dtype: torch.dtype | None) -> None:
        """Convert the weights, and a cache, in place; None restores their own dtypes.

        The restored values are exact if the other dtype was wider.
        """
        for p, own in zip(self.model.parameters(), self._dtypes, strict=True):
            p.data, p.grad = p.data.to(dtype or own), None
        for layer in self._cached:
            layer.update({name: layer[name].to(dtype or torch_dtype(self.case)) for name in ("keys", "values")})

    def plain_experts(self) -> contextlib.AbstractContextManager[None]:
        """Compute experts one after the other, as a grouped product does not take every dtype."""
        if not (self.case.model_step and self.case.model_step.experts):
            return contextlib.nullcontext()
        config = self.model.config
        config._experts_implementation = getattr(config, "_experts_implementation", None)  # a model may lack it
        return other_attributes(config, _experts_implementation="eager")

    def fill_cache(self) -> None:
        """Compute the keys and values of all tokens but the last, from which a decode starts.

        The implementation in use computes them.
        """
        import torch
        from transformers import DynamicCache

        if self.phase == "decode":
            self._cache = DynamicCache(config=self.model.config)
            with torch.no_grad():
                options = {self._cache_name: self._cache}
                self.model(self.tokens[:, :-1], use_cache=True, logits_to_keep=1, **options)
            self._cached = [dict(vars(layer)) for layer in self._cache.layers]

    def launch(self) -> Tensor:
        """Run the step and return logits of the last position; in training, after the backward, of LAST positions."""
        import torch

        if self.phase == "train":
            return self._train()
        options: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
        tokens = self.tokens
        if self.phase == "decode":
            tokens = tokens[:, -1:]
            for layer, kept in zip(self._cache.layers, self._cached, strict=True):
                vars(layer).update(kept)  # an update replaces the tensors
            options[self._cache_name] = self._cache
        with torch.no_grad():
            logits: Tensor = self.model(tokens, **options).logits
        return logits

    def _train(self) -> Tensor:
        for p in self.model.parameters():
            p.grad = None
        found = self.model(self.tokens, labels=self.tokens, use_cache=False)
        found.loss.backward()
        step = max(1, self.tokens.shape[1] // LAST)
        kept: Tensor = found.logits[:, step - 1 :: step].detach().clone()
        return kept

    def gradients(self) -> Mapping[str, Tensor]:
        """Return a sample of each weight's gradient of the last training step, in float32; {} for other phases."""
        found = {name: p.grad.flatten() for name, p in self.model.named_parameters() if p.grad is not None}
        return {name: g[:: max(1, g.numel() // SAMPLED) | 1][:SAMPLED].float().clone() for name, g in found.items()}

    def same_experts(self) -> contextlib.AbstractContextManager[None]:
        """Let every token take the experts of the first step within the block.

        Where two experts are nearly equal for a token, rounding decides between them; its results may then differ from
        the exact ones even with exact attention. transformers chooses experts by torch.topk.
        """
        import torch

        own, records, taken = torch.topk, not self._experts, iter(self._experts)

        def topk(scores: Tensor, k: int, dim: int = -1, **options: Any) -> Any:
            if not records:
                indices = next(taken)
                return scores.gather(dim, indices), indices
            values, indices = own(scores, k, dim, **options)
            self._experts.append(indices)
            return values, indices

        if not (self.case.model_step and self.case.model_step.experts):
            return contextlib.nullcontext()
        return other_attributes(torch, topk=topk)

    def saving_memory(self) -> Callable[[], None]:
        """Recompute activations of training steps from here on; return the function that ends this.

        Models with experts do not recompute, because their experts would be chosen again, possibly others.
        """
        if self.phase != "train" or (self.case.model_step and self.case.model_step.experts):
            return lambda: None
        # newer releases of transformers have "activation" in place of "gradient"
        kind = "activation" if hasattr(self.model, "activation_checkpointing_enable") else "gradient"
        begin = getattr(self.model, f"{kind}_checkpointing_enable")
        begin(**{f"{kind}_checkpointing_kwargs": {"use_reentrant": False}})
        end: Callable[[], None] = getattr(self.model, f"{kind}_checkpointing_disable")
        return end

    @property
    def _cache_name(self) -> str:
        """The name of the cache's argument in the installed transformers."""
        return "cache" if "cache" in inspect.signature(self.model.forward).parameters else "past_key_values"


def configuration(case: Case) -> Any:
    """Return transformers' configuration of the model of a case."""
    from transformers import AutoConfig

    step, s = case.model_step, case.shape
    assert step
    windows = [attention_of(case, layer).window_size[0] for layer in range(step.layers)]
    window = next((left + 1 for left in windows if left is not None), None)
    kinds = ["full_attention" if left is None else "sliding_attention" for left in windows]
    common: dict[str, Any] = {
        "hidden_size": step.hidden,
        "intermediate_size": step.intermediate,
        "vocab_size": step.vocab,
        "num_hidden_layers": step.layers,
        "num_attention_heads": s.nheads,
        "num_key_value_heads": s.nheads_k,
        "head_dim": s.headdim,
        "max_position_embeddings": max(4096, s.seqlen_k),
        "tie_word_embeddings": bool(step.tied),
        "initializer_range": SPREAD / math.sqrt(step.hidden),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }
    own: Mapping[str, dict[str, Any]] = {
        "llama": {},
        "qwen3": {},
        "mistral": {"sliding_window": window},
        "mixtral": {"num_local_experts": step.experts, "num_experts_per_tok": step.taken},
        "qwen3_moe": {
            "num_experts": step.experts,
            "num_experts_per_tok": step.taken,
            "moe_intermediate_size": step.intermediate,
        },
        "gemma2": {
            "sliding_window": window or 4096,
            "layer_types": kinds,
            "attn_logit_softcapping": case.softcap or None,
            "query_pre_attn_scalar": round(case.softmax_scale**-2),
        },
        "gpt_oss": {
            "sliding_window": window,
            "layer_types": kinds,
            "num_local_experts": step.experts,
            "num_experts_per_tok": step.taken,
        },
        "deepseek_v3": {
            "n_routed_experts": step.experts,
            "num_experts_per_tok": step.taken,
            "n_shared_experts": step.shared,
            "moe_intermediate_size": step.expert,
            "first_k_dense_replace": step.dense,
            "q_lora_rank": step.q_rank,
            "kv_lora_rank": step.k_rank,
            "head_dim": step.rope,
            "qk_rope_head_dim": step.rope,
            "qk_nope_head_dim": s.headdim - step.rope,
            "v_head_dim": s.headdim_v,
            "rope_parameters": YARN if case.scale else None,
            **({"n_group": 1, "topk_group": 1} if step.experts % 8 or step.experts < 16 else {}),
        },
    }
    return AutoConfig.for_model(step.arch, **common | own[step.arch])
