"""A package that adds its attention to attnbench as the backend `mine`: `attnbench run -b mine,sdpa-flash`."""

import torch


def attention(q, k, v, *, causal, softmax_scale):
    """Return attention of (batch, seqlen, nheads, headdim) tensors; causal is aligned bottom-right."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    mask = mask.tril(k.shape[-2] - q.shape[-2]) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=softmax_scale, enable_gqa=True
    ).transpose(1, 2)
