"""Make the inputs of a case from a seed. One case and seed give the same values in every worker of a machine.

By `Case.data` they are:

- normal: standard normal.
- uniform: between -sqrt(3) and sqrt(3), of standard deviation 1 too, without large values.
- outliers: standard normal, except for column 0 of q and k, which is the same in all tokens but larger in the first
  seven keys, most in key 0. Trained models have such channels (Dettmers et al., "LLM.int8()", arXiv 2208.07339; Sun et
  al., "Massive activations in large language models", arXiv 2402.17762), and their first tokens take much of the
  attention as sinks (Xiao et al., "Efficient streaming language models with attention sinks", arXiv 2309.17453).
- zeros: all zeros, dout too.
- decaying: attention that decays with the distance, as in most heads of trained models (Press et al., "Train short,
  test long", arXiv 2108.12409). In each key head the keys are an autoregressive sequence:

      k_0 = e_0,  k_j = r k_(j-1) + sqrt(1 - r^2) e_j,  r = exp(-1 / DECAY)

  with standard normal e. A query at key position p is a k_p + sqrt(1 - a^2) e', where a gives k_p the mean score
  NEAREST, but is at most 0.9. So the mean score of k_j is up to NEAREST exp(-|p - j| / DECAY), and all values are
  standard normal. Dense batches only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from attnbench.core import delta, pages
from attnbench.core.backend import Inputs, torch_dtype
from attnbench.core.case import Case, Data
from attnbench.core.fp8 import E4M3_MAX
from attnbench.core.json import dumps
from attnbench.core.layouts import find_packed, lay_out
from attnbench.judge.hard_inputs import set_sinks, sink_level

if TYPE_CHECKING:
    import torch
    from torch import Tensor

UNIFORM = math.sqrt(3)
DECAY = 64  # tokens over which scores decay by the factor e
NEAREST = 8.0  # the mean score of a query's own position
STEPS, MOST_DECAY = (0.001, 0.1), 16.0  # of gates of delta rules


def make(case: Case, device: str, seed: int) -> Inputs:
    """Return the inputs of a case on `device`, with its data; dout is None without a backward.

    Forward and backward of one shape and dtype get the same q, k and v, in every layout.
    """
    import torch

    s = case.extent
    text = dumps([dataclasses.asdict(s), case.dtype, seed], sort_keys=True)
    generator = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))

    def values(*size: int) -> Tensor:
        t = torch.empty(size, device=device, dtype=torch_dtype(case))
        if case.data == "zeros":
            return t.zero_()
        if case.data == "uniform":
            return t.uniform_(-UNIFORM, UNIFORM, generator=generator)
        return t.normal_(generator=generator)

    if case.is_indexer:
        return _make_indexer(case, values)
    if case.is_delta:
        return _make_delta(case, values, generator)
    keys = pages.key_dims(case)
    q, k = values(s.batch, s.seqlen_q, s.nheads, s.headdim), values(*keys, s.nheads_k, s.headdim)
    v = k[..., : s.headdim_v] if case.latent else values(*keys, s.nheads_k, s.headdim_v)
    dout = values(s.batch, s.seqlen_q, s.nheads, s.headdim_v) if case.has_backward else None
    sink = values(s.nheads) + sink_level(case) if case.sink else None
    given = pages.with_page_table(case, Inputs(q, k, v, dout, sink=sink), generator.initial_seed())
    if case.data == "outliers":
        set_sinks(case, given)
    if case.data == "decaying":
        set_decaying(case, given)
    return lay_out(case.layout, pages.without_new_keys(case, pages.in_cache_dtype(case, given)))


def _make_delta(case: Case, values: Callable[..., Tensor], generator: torch.Generator) -> Inputs:
    """Return the inputs of a delta rule: q, k, v, dout and the state are standard normal.

    Gates are as models make them and begin with: -a softplus(x + b) with normal x for each element, a of each head
    uniform to MOST_DECAY, and b such that softplus(b), of each head (kda: of each of its columns), is between the two
    STEPS, uniform in the logarithm (Dao and Gu, "Transformers are SSMs", arXiv 2405.21060; Qwen3-Next and Kimi Linear).
    So some heads forget within a few tokens, others after a hundred. beta is the sigmoid of a normal value.
    """
    import torch

    sizes = delta.shapes(case)
    q, k, v = (values(*sizes[name]) for name in "qkv")

    def uniform(least: float, most: float, *size: int) -> Tensor:
        return torch.empty(size, device=q.device).uniform_(least, most, generator=generator)

    def normal(name: str) -> Tensor:
        return torch.empty(sizes[name], device=q.device).normal_(generator=generator)

    heads = sizes["gate"][2:]
    least, most = map(math.log, STEPS)
    bias = uniform(least, most, *heads).exp().expm1().log()  # the inverse of softplus
    steps = torch.nn.functional.softplus(normal("gate") + bias)
    gate = -uniform(0, MOST_DECAY, *heads[:1], *(1 for _ in heads[1:])) * steps
    beta = normal("beta").sigmoid().to(q.dtype)
    dout = values(*sizes["dout"]) if case.has_backward else None
    return Inputs(q, k, v, dout, gate=gate, beta=beta, state=None if case.has_backward else normal("state"))


def _make_indexer(case: Case, values: Callable[..., Tensor]) -> Inputs:
    """Return the inputs of an indexer: standard normal q and k, and normal weights of both signs.

    The weights include 1 / sqrt(nheads * headdim), as the model's. With fp8 each head of a query, and each key, is
    divided by a scale that makes its largest value E4M3_MAX.
    """
    s = case.shape
    q, k = values(s.batch, s.seqlen_q, s.nheads, s.headdim), values(s.batch, s.seqlen_k, s.headdim)
    weights = values(s.batch, s.seqlen_q, s.nheads).float() / math.sqrt(s.nheads * s.headdim)
    if case.dtype != "fp8":
        return Inputs(q, k, k, weights=weights)
    (q, q_scale), (k, k_scale) = (_scaled(t) for t in (q, k))
    return Inputs(q, k, k, weights=weights * q_scale, k_scale=k_scale)


def _scaled(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return t (..., headdim) in e4m3, and the scales (...) by which it must be multiplied."""
    import torch

    scale = t.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / E4M3_MAX
    return (t.float() / scale).to(torch.float8_e4m3fn), scale.squeeze(-1)


def set_decaying(case: Case, given: Inputs) -> None:
    """Change standard normal inputs to `Case.data` "decaying", one batch entry at a time, in float32."""
    import torch

    s, r = case.shape, math.exp(-1 / DECAY)
    block = torch.arange(min(1024, s.seqlen_k), device=given.k.device)
    distance = block[:, None] - block
    weights = torch.where(distance < 0, 0.0, math.sqrt(1 - r**2) * r ** distance.clamp(min=0))
    share = min(0.9, NEAREST / (case.softmax_scale * s.headdim))
    at = (torch.arange(s.seqlen_q, device=given.k.device) + s.seqlen_k - s.seqlen_q).clamp(min=0)
    for q, k in zip(given.q, given.k, strict=True):  # each (seqlen, heads, headdim)
        last = k[:1].float().flatten(1) * (1 - math.sqrt(1 - r**2)) / r  # leaves the first key unchanged
        walk = []
        for part in k.float().flatten(1).split(len(block)):
            n = len(part)
            walk.append(weights[:n, :n] @ part + r ** (block[:n, None] + 1) * last)
            last = walk[-1][-1:]
        k.copy_(torch.cat(walk).view(k.shape))
        near = k[at].float().repeat_interleave(s.nheads // s.nheads_k, dim=1)
        q.copy_(share * near + math.sqrt(1 - share**2) * q.float())


def clone(given: Inputs) -> Inputs:
    """Return a copy with the same values and strides in other memory."""
    copies = {name: t.clone() for name, t in given.values.items()}
    if "v" not in copies:
        copies["v"] = copies["k"][..., : given.v.shape[-1]]
    copy = given.with_values(copies)
    return copy if find_packed(given) is None else lay_out("packed", copy)


def first_changed(given: Inputs, fresh: Inputs) -> str | None:
    """Return the name of the first tensor with other values than in `fresh`; None where all are equal."""
    pairs = [(name, tensor, fresh.values[name]) for name, tensor in given.values.items()]
    if given.page_table is not None and fresh.page_table is not None:
        pairs.append(("page_table", given.page_table, fresh.page_table))
    return next((name for name, tensor, expected in pairs if not _is_equal(tensor, expected)), None)


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same values, in e4m3 too, which torch cannot compare."""
    import torch

    if one.dtype.itemsize == 1:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    return bool((one == other).all())


def find_flaw(given: Inputs, data: Data = "normal") -> str | None:
    """Return why these inputs must not be timed as `data`, in one line; None where nothing is wrong.

    It tests some ten thousand values of each tensor. Zeros and constants draw less power and run up to 13 % faster, so
    only the data "zeros" may have them. Results of inputs that are not finite cannot be compared with a reference.
    """
    for name, tensor in given.values.items():
        step = max(1, tensor.numel() // 2**14) | 1  # odd, to reach all columns where headdim is a power of two
        some = tensor.flatten()[::step].float()
        if not bool(some.isfinite().all()):
            return f"inputs: {name} has values that are not finite"
        if name in ("sink", "gate", "beta", "weights", "k_scale"):  # these have a mean and a spread of their own
            continue
        if data == "zeros":
            if bool(some.any()):
                return f"inputs: {name} is not all zeros"
            continue
        if some.numel() > 16 and float(some.std()) < 0.5:
            return f"inputs: {name} hardly varies (standard deviation {float(some.std()):.2g}, 1 expected)"
        if (zeros := float((some == 0).float().mean())) > 0.01:
            return f"inputs: {name} is {zeros:.0%} zeros"
    return None
