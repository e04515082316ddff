"""Transformer Engine: DotProductAttention, and its FusedAttention in fp8."""
