"""flash-attn 1 to 4."""
