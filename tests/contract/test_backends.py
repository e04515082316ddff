"""The contract of backends: the same tests for each backend of the map, so that a new entry is tested at once.

A backend that cannot run here is skipped with its reason. ATTNBENCH_REQUIRE=eager,triton turns such a skip into a
failure, so that a machine that must test a backend does not silently stop.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench import judge
from attnbench.backends import BACKENDS, SEVERAL, ULYSSES, load
from attnbench.core import pages
from attnbench.core.backend import Backend, Inputs, Prepared, Signature, Unsupported, refusal
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.layouts import packable
from attnbench.core.machine import Device
from attnbench.core.renewed_inputs import InputRenewal
from attnbench.judge import inputs
from attnbench.worker import kernel_rules
from attnbench.worker.measure.cpu_operators import operator_names
from contract.pairwise import every_pair
from interpreted_triton import INTERPRET

OWN = "own-function"
REQUIRED = {name for name in os.environ.get("ATTNBENCH_REQUIRE", "").split(",") if name}
ON_GPU = not INTERPRET
DEVICE = (
    Device("cuda", 0, "this GPU", 2**34, 2**34, torch.cuda.get_device_capability())
    if ON_GPU
    else Device("cpu", 0, "this CPU", 2**34, 2**34)
)
DEVICES = [Device("cpu", 0, "a CPU", 2**34, 2**34), Device("cuda", 0, "unknown", 2**36, 2**36)]
DEVICES += [Device("cuda", 0, f"sm_{a}{b}", 2**36, 2**36, (a, b)) for a, b in ((7, 5), (8, 0), (9, 0), (10, 0))]

OWN_SOURCE = """
import torch

def attention(q, k, v, *, causal, softmax_scale):
    dtype, group = q.dtype, q.shape[2] // k.shape[2]
    q, k, v = q.float(), *(t.float().repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * softmax_scale
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(k.shape[1] - q.shape[1])
    p = torch.softmax(scores.masked_fill(~seen, -1e9), -1) * seen.any(-1, keepdim=True)
    return torch.einsum("bhij,bjhd->bihd", p, v).to(dtype)

attention.kernels = "bmm<float>"  # on purpose, whatever the dtype
"""

SHAPES = {
    "square": Shape(2, 40, 40, 1, 1, 32, 32),
    "more-keys": Shape(1, 33, 70, 2, 2, 32, 32),
    "more-queries": Shape(1, 70, 33, 2, 2, 32, 32),
    "gqa": Shape(1, 48, 48, 4, 2, 64, 64),
    "decode": Shape(2, 1, 77, 2, 1, 32, 32),
    "mqa-headdim-v": Shape(1, 24, 50, 3, 1, 64, 32),
}
KINDS = [("fp32", "fwd"), ("fp32", "bwd"), ("fp16", "fwd_bwd"), ("bf16", "bwd")]
CASES = {
    f"{name}-{'causal' if causal else 'full'}-{dtype}-{direction}": Case(shape, dtype, direction, causal)
    for name, shape in SHAPES.items()
    for causal in (False, True)
    for dtype, direction in KINDS
}
# Forwards of half precision, for backends without a backward, and several tiles
CASES |= {
    f"forward-{name}-{'causal' if causal else 'full'}-{dtype}": Case(shape, dtype, "fwd", causal)
    for name, shape, dtype, causal in (
        ("more-keys", Shape(2, 150, 300, 4, 2, 128, 128), "bf16", True),
        ("more-queries", Shape(1, 300, 150, 2, 1, 64, 64), "fp16", True),
        ("unequal", Shape(1, 200, 333, 2, 2, 128, 128), "fp16", False),
        ("square", Shape(2, 256, 256, 4, 4, 64, 64), "bf16", True),
        ("square", Shape(1, 256, 256, 2, 2, 128, 128), "bf16", False),
        ("decode", Shape(2, 1, 300, 8, 2, 128, 128), "bf16", True),
    )
}
CASES |= {
    f"forward-{layout}": replace(CASES["forward-square-causal-bf16"], layout=layout) for layout in ("bhsd", "packed")
}
FP8 = {
    f"fp8-{name}-{'causal' if causal else 'full'}": Case(SHAPES[name], "fp8", "fwd", causal)
    for name, causal in (("gqa", False), ("more-keys", True), ("decode", True))
}
FP8 |= {
    f"fp8-d128-{'causal' if causal else 'full'}-{direction}": Case(
        Shape(2, 128, 128, 4, nheads_k, 128, 128), "fp8", direction, causal
    )
    for nheads_k, causal, direction in ((2, True, "bwd"), (4, False, "bwd"), (4, True, "fwd_bwd"))
}
CASES |= FP8
ONE_OF_EACH = {
    f"{dtype}-{direction}": Case(SHAPES[name], dtype, direction, causal)
    for (dtype, direction), (name, causal) in zip(KINDS, [("gqa", True), ("decode", False)] * 2, strict=True)
} | {"square-fp32-fwd_bwd": Case(SHAPES["square"], "fp32", "fwd_bwd", True), "fp8-fwd": FP8["fp8-gqa-full"]}
LAYOUTS = {
    f"{layout}-{name}-{'causal' if causal else 'full'}-{dtype}-{direction}": Case(
        SHAPES[name], dtype, direction, causal, layout=layout
    )
    for layout in ("bshd", "bhsd", "packed")
    for name, causal, dtype, direction in (
        ("square", True, "fp32", "fwd_bwd"),
        ("square", False, "bf16", "bwd"),
        ("gqa", True, "fp32", "bwd"),
        ("gqa", False, "fp16", "fwd_bwd"),
        ("gqa", False, "fp8", "fwd"),
        ("more-keys", True, "fp32", "fwd_bwd"),
        ("decode", True, "bf16", "fwd"),
        ("mqa-headdim-v", False, "fp32", "bwd"),
    )
    if layout != "packed" or packable(SHAPES[name])
}
CASES |= LAYOUTS
ONE_OF_EACH |= {name: case for name, case in LAYOUTS.items() if "gqa" in name or name.startswith("bhsd-square")}
CASES["window"] = Case(SHAPES["square"], "fp32", "fwd_bwd", True, window_size=(16, 0))
CASES["softcap"] = Case(SHAPES["square"], "fp32", "fwd_bwd", softcap=2.0)
CASES["window-more-keys"] = Case(SHAPES["more-keys"], "fp32", "bwd", window_size=(9, 5))
CASES["window-more-queries"] = Case(SHAPES["more-queries"], "fp32", "fwd_bwd", window_size=(9, 5))
CASES["window-decode"] = Case(SHAPES["decode"], "fp32", "fwd", True, window_size=(30, 0))
CASES["window-softcap-gqa"] = Case(SHAPES["gqa"], "fp16", "fwd_bwd", True, window_size=(20, 0), softcap=2.0)
LENGTHS = {
    "unlike": ((1, 40, 40), (1, 7, 7), (1, 70, 70)),
    "served": ((1, 48, 48), (2, 1, 77), (1, 16, 60)),  # a prefill, decode steps, a chunk
}
RAGGED = {
    f"ragged-{name}-{'causal' if causal else 'full'}-{dtype}-{direction}": Case(
        Shape(*sizes_of(LENGTHS[name]), 4, 2, 32, 32), dtype, direction, causal, lengths=LENGTHS[name]
    )
    for name in LENGTHS
    for causal in (False, True)
    for dtype, direction in KINDS
}
RAGGED["ragged-window"] = replace(RAGGED["ragged-served-causal-fp32-fwd"], window_size=(9, 0))
RAGGED["ragged-softcap"] = replace(RAGGED["ragged-unlike-full-fp16-fwd_bwd"], softcap=2.0)
RAGGED |= {  # SDPA's nested tensors have no grouped heads
    f"ragged-{name}-ungrouped-{dtype}-{direction}": Case(
        Shape(*sizes_of(LENGTHS[name]), 2, 2, 32, 32), dtype, direction, lengths=LENGTHS[name]
    )
    for name in LENGTHS
    for dtype, direction in KINDS
}
CASES |= RAGGED
ONE_OF_EACH |= {name: case for name, case in RAGGED.items() if re.match("ragged-unlike-(causal|ungrouped)", name)}
PAGED = {
    f"paged-{page}-{name}-{dtype}{'-causal' if causal else ''}": Case(
        SHAPES[name], dtype, "fwd", causal, page_size=page
    )
    for page, name, dtype, causal in (
        (1, "decode", "fp32", False),
        (16, "decode", "bf16", True),
        (64, "decode", "fp16", False),
        (256, "decode", "fp16", True),
        (16, "more-keys", "fp16", True),
        (64, "gqa", "bf16", True),
        (16, "gqa", "fp32", False),
        (16, "mqa-headdim-v", "fp32", True),
    )
}
PAGED |= {
    f"paged-ragged-{page}-{name}-{dtype}": Case(
        Shape(*sizes_of(LENGTHS[name]), 4, 2, 32, 32), dtype, "fwd", True, lengths=LENGTHS[name], page_size=page
    )
    for page, name, dtype in ((16, "served", "fp32"), (16, "unlike", "fp16"), (64, "served", "bf16"))
}
PAGED["paged-window"] = replace(PAGED["paged-16-more-keys-fp16-causal"], window_size=(9, 0))
PAGED["paged-softcap"] = replace(PAGED["paged-16-gqa-fp32"], softcap=2.0)
PAGED["paged-fp8"] = replace(PAGED["paged-16-decode-bf16-causal"], cache_dtype="fp8")
PAGED["paged-fp8-served"] = replace(PAGED["paged-ragged-64-served-bf16"], cache_dtype="fp8")
PAGED["paged-append"] = replace(PAGED["paged-16-more-keys-fp16-causal"], append=True)
PAGED["paged-append-decode"] = replace(PAGED["paged-256-decode-fp16-causal"], append=True)
PAGED["paged-append-served"] = replace(PAGED["paged-ragged-16-served-fp32"], append=True)
PREFIX = {
    f"prefix-{name}": Case(shape, dtype, "fwd", True, page_size=page, shared_prefix=prefix, lengths=lengths)
    for name, shape, dtype, page, prefix, lengths in (
        ("decode-fp32", Shape(3, 1, 77, 2, 1, 32, 32), "fp32", 16, 48, ()),
        ("decode-bf16", Shape(8, 1, 1159, 16, 4, 128, 128), "bf16", 16, 1024, ()),
        ("decode-fp16", Shape(2, 1, 400, 4, 4, 64, 64), "fp16", 64, 128, ()),
        ("decode-256", Shape(3, 1, 700, 4, 2, 128, 128), "bf16", 256, 512, ()),
        ("speculative", Shape(4, 3, 300, 8, 1, 128, 128), "bf16", 64, 192, ()),
        ("chunk", Shape(2, 40, 200, 4, 2, 64, 64), "fp16", 16, 160, ()),
        ("served", Shape(4, 48, 160, 4, 2, 128, 128), "bf16", 16, 64, ((1, 48, 160), (2, 1, 77), (1, 16, 100))),
    )
}
PREFIX["prefix-full"] = replace(PREFIX["prefix-chunk"], causal=False)
PREFIX["prefix-append"] = replace(PREFIX["prefix-served"], append=True)
PREFIX["prefix-softcap"] = replace(PREFIX["prefix-speculative"], softcap=2.0)
PREFIX["prefix-window"] = replace(PREFIX["prefix-decode-bf16"], window_size=(500, 0))
PREFIX["prefix-fp8"] = replace(PREFIX["prefix-decode-bf16"], cache_dtype="fp8")
PREFIX["prefix-latent"] = Case(
    Shape(3, 1, 300, 16, 1, 576, 512), "bf16", "fwd", True, page_size=64, latent=True, scale=0.1, shared_prefix=256
)
PAGED |= PREFIX
PAGED["scale"] = Case(SHAPES["gqa"], "fp32", "fwd_bwd", True, scale=0.3)
SINK = {
    f"sink-{name}-{dtype}-{direction}{'-causal' if causal else ''}": Case(
        SHAPES[name], dtype, direction, causal, sink=True
    )
    for name, dtype, direction, causal in (
        ("square", "fp32", "fwd_bwd", True),
        ("gqa", "bf16", "bwd", True),
        ("gqa", "fp16", "fwd_bwd", False),
        ("more-keys", "fp32", "bwd", True),
        ("more-queries", "fp32", "fwd_bwd", True),
        ("decode", "fp16", "fwd", False),
        ("mqa-headdim-v", "fp32", "fwd_bwd", True),
    )
}
SINK["sink-window"] = replace(SINK["sink-square-fp32-fwd_bwd-causal"], window_size=(16, 0))
SINK["sink-softcap"] = replace(SINK["sink-gqa-fp16-fwd_bwd"], softcap=2.0)
SINK["sink-packed"] = replace(SINK["sink-gqa-fp16-fwd_bwd"], layout="packed")
SINK["sink-ragged"] = replace(RAGGED["ragged-served-causal-fp32-fwd"], sink=True)
SINK["sink-ragged-bwd"] = replace(RAGGED["ragged-unlike-full-fp16-fwd_bwd"], sink=True)
SINK["sink-paged"] = replace(PAGED["paged-16-more-keys-fp16-causal"], sink=True)
SINK["sink-paged-served"] = replace(PAGED["paged-ragged-16-served-fp32"], sink=True)
ALIBI = {
    name.replace("sink", "alibi"): replace(case, sink=False, alibi=True)
    for name, case in SINK.items()
    if not case.softcap
}
MASKED = {
    f"mask-{mask}-{name}-{dtype}-{direction}{'-causal' if causal else ''}": Case(
        SHAPES[name], dtype, direction, causal, mask=mask
    )
    for mask, name, dtype, direction, causal in (
        ("prefix:32", "square", "fp32", "fwd_bwd", True),
        ("prefix:1k", "more-keys", "fp16", "bwd", True),
        ("strided:16", "gqa", "bf16", "fwd_bwd", True),
        ("strided:24", "square", "fp32", "fwd_bwd", False),
        ("dilated:2", "more-keys", "fp32", "fwd_bwd", True),
        ("dilated:3", "decode", "fp16", "fwd", False),
    )
}
BLOCKS = Shape(1, 136, 200, 2, 1, 32, 32)  # for random:P, which has blocks of 128
MASKED["mask-random"] = Case(BLOCKS, "fp16", "fwd_bwd", mask="random:0.3")
MASKED["mask-random-aligned"] = Case(Shape(1, 144, 144, 1, 1, 32, 32), "fp32", "fwd_bwd", True, mask="random:0.1")
MASKED["mask-random-causal"] = Case(BLOCKS, "fp16", "bwd", True, mask="random:0.1")
MASKED["mask-random-tiles"] = Case(Shape(2, 200, 1224, 4, 2, 64, 64), "bf16", "fwd", mask="random:0.3")
MASKED["mask-sink_tokens"] = Case(SHAPES["square"], "fp32", "fwd_bwd", True, (16, 0), mask="sink_tokens:4")
MASKED["mask-softcap"] = replace(MASKED["mask-strided:16-gqa-bf16-fwd_bwd-causal"], softcap=2.0, dtype="fp16")
MASKED["mask-alibi-sink"] = replace(MASKED["mask-dilated:2-more-keys-fp32-fwd_bwd-causal"], alibi=True, sink=True)
LATENT = {
    f"latent{page or ''}-{name}-{dtype}": Case(shape, dtype, "fwd", True, page_size=page, latent=True, scale=0.2)
    for page, name, shape, dtype in (
        (0, "decode", Shape(2, 1, 77, 4, 1, 48, 32), "fp32"),
        (16, "decode", Shape(2, 1, 77, 4, 1, 48, 32), "bf16"),
        (64, "decode-deepseek", Shape(2, 1, 77, 16, 1, 576, 512), "bf16"),
        (64, "speculative", Shape(2, 3, 77, 16, 1, 576, 512), "fp16"),
    )
}
CHOSEN = {
    f"chosen-{name}": Case(
        shape, dtype, "fwd", True, page_size=page, latent=True, scale=0.1, mask=mask, cache_dtype=cache
    )
    for name, page, shape, dtype, mask, cache in (
        ("small", 16, Shape(2, 1, 300, 4, 1, 48, 32), "fp32", "topk:64", "same"),
        ("decode", 64, Shape(2, 1, 700, 64, 1, 576, 512), "bf16", "topk:128", "same"),
        ("few-keys", 64, Shape(2, 3, 100, 128, 1, 576, 512), "bf16", "topk:128", "same"),
        ("prefill", 64, Shape(1, 200, 456, 64, 1, 576, 512), "bf16", "topk:128", "same"),
        ("fp8", 64, Shape(2, 1, 700, 64, 1, 576, 512), "bf16", "topk:128", "fp8"),
        ("fp8-recent", 64, Shape(3, 2, 500, 128, 1, 576, 512), "bf16", "topk_recent:64", "fp8"),
    )
}
CHOSEN["chosen-contiguous"] = Case(Shape(1, 40, 200, 4, 2, 32, 32), "fp32", "fwd_bwd", True, mask="topk:16")
CASES |= PAGED | LATENT | SINK | ALIBI | MASKED | CHOSEN
for name in ("paged-append-served", "paged-16-decode-bf16-causal", "paged-ragged-16-served-fp32", "paged-fp8"):
    ONE_OF_EACH[name] = PAGED[name]
ONE_OF_EACH["prefix-served"] = PREFIX["prefix-served"]
for name in ("sink-square-fp32-fwd_bwd-causal", "sink-gqa-bf16-bwd-causal", "sink-paged"):
    ONE_OF_EACH[name] = SINK[name]
for name in ("alibi-square-fp32-fwd_bwd-causal", "alibi-paged"):
    ONE_OF_EACH[name] = ALIBI[name]
for name in ("mask-prefix:32-square-fp32-fwd_bwd-causal", "mask-sink_tokens"):
    ONE_OF_EACH[name] = MASKED[name]
OTHER_KINDS = {
    f"{kind}-{name}-{dtype}-{direction}": Case(shape, dtype, direction, True, kind=kind)
    for kind, name, shape, dtype, direction in (
        ("gdn", "prompt", Shape(2, 150, 150, 4, 2, 64, 64), "fp32", "fwd"),
        ("gdn", "prompt", Shape(2, 150, 150, 4, 2, 64, 64), "bf16", "fwd"),
        ("gdn", "prompt", Shape(2, 150, 150, 4, 2, 128, 128), "fp16", "fwd_bwd"),
        ("gdn", "whole", Shape(1, 128, 128, 4, 4, 128, 128), "bf16", "bwd"),
        ("gdn", "headdim-v", Shape(2, 70, 70, 2, 1, 64, 128), "bf16", "fwd_bwd"),
        ("gdn", "short", Shape(2, 5, 5, 4, 2, 128, 128), "bf16", "fwd"),
        ("gdn", "token", Shape(3, 1, 1, 4, 2, 128, 128), "bf16", "fwd"),
        ("gdn", "token", Shape(3, 1, 1, 4, 2, 128, 128), "fp32", "fwd"),
        ("kda", "prompt", Shape(2, 150, 150, 4, 4, 64, 64), "bf16", "fwd"),
        ("kda", "prompt", Shape(2, 150, 150, 4, 2, 64, 64), "fp32", "fwd_bwd"),
        ("kda", "whole", Shape(1, 128, 128, 4, 4, 128, 128), "bf16", "bwd"),
        ("kda", "headdim-v", Shape(2, 70, 70, 2, 2, 64, 128), "bf16", "fwd_bwd"),
        ("kda", "token", Shape(3, 1, 1, 4, 4, 128, 128), "bf16", "fwd"),
    )
}
OTHER_KINDS["gdn-scale"] = replace(OTHER_KINDS["gdn-prompt-bf16-fwd"], scale=0.5)
OTHER_KINDS |= {
    f"indexer-{name}-{dtype}": Case(shape, dtype, "fwd", True, mask="topk:16", kind="indexer")
    for name, shape, dtype in (
        ("prompt", Shape(2, 50, 50, 8, 1, 64, 64), "bf16"),
        ("prompt", Shape(2, 50, 50, 8, 1, 64, 64), "fp16"),
        ("prompt", Shape(2, 50, 50, 8, 1, 64, 64), "fp8"),
        ("whole", Shape(1, 256, 256, 64, 1, 128, 128), "bf16"),
        ("whole", Shape(1, 256, 256, 64, 1, 128, 128), "fp8"),
        ("more-keys", Shape(2, 9, 70, 3, 1, 20, 20), "fp32"),
        ("more-keys", Shape(2, 9, 70, 32, 1, 128, 128), "bf16"),
        ("decode", Shape(3, 1, 90, 8, 1, 32, 32), "fp32"),
        ("decode", Shape(3, 1, 300, 32, 1, 128, 128), "fp8"),
        ("decode", Shape(3, 1, 300, 64, 1, 128, 128), "bf16"),
        ("few-keys", Shape(2, 3, 7, 4, 1, 16, 16), "fp16"),
    )
}
DROPOUT = {
    f"dropout-{name}-{'causal' if causal else 'full'}-{dtype}-{direction}": Case(
        SHAPES[name], dtype, direction, causal, dropout_p=p
    )
    for name, causal, dtype, direction, p in (
        ("square", False, "fp32", "fwd", 0.1),
        ("square", True, "fp16", "bwd", 0.1),
        ("gqa", True, "bf16", "fwd_bwd", 0.25),
        ("gqa", False, "fp16", "fwd", 0.25),
        ("more-keys", True, "bf16", "fwd_bwd", 0.1),
        ("more-queries", True, "fp32", "fwd_bwd", 0.5),
        ("decode", True, "bf16", "fwd", 0.5),
    )
}
DROPOUT["dropout-bhsd"] = Case(SHAPES["gqa"], "fp32", "fwd_bwd", True, dropout_p=0.1, layout="bhsd")
DROPOUT["dropout-packed"] = Case(SHAPES["gqa"], "fp32", "fwd", dropout_p=0.1, layout="packed")
DROPOUT["dropout-packed-bwd"] = Case(SHAPES["square"], "fp32", "fwd_bwd", True, dropout_p=0.1, layout="packed")
DROPOUT["dropout-window"] = Case(SHAPES["square"], "fp16", "fwd_bwd", True, window_size=(16, 0), dropout_p=0.1)
DROPOUT["dropout-softcap"] = Case(SHAPES["square"], "bf16", "fwd_bwd", softcap=2.0, dropout_p=0.1)


@functools.cache
def broad() -> Sequence[Case]:
    """Return cases of every kind, even if no backend can run them."""
    heads = ((12, 3, 1, 1), (128, 1, 8, 80), (12, 3, 64, 64), (12, 3, 192, 128), (128, 1, 192, 128), (128, 1, 576, 512))
    lengths = ((1, 1, 1), (64, 1, 2**17), (3, 17, 100), (3, 100, 17), (1, 2**20, 2**20))
    kinds = (("bf16", "fwd"), ("fp16", "bwd"), ("fp32", "fwd_bwd"), ("fp8", "fwd"), ("fp8", "bwd"))
    of_kind = [Case(Shape(3, 64, 64, *of), *kind) for of in heads for kind in kinds]
    of_size = [Case(Shape(*sizes, *of), "bf16", "fwd", causal=True) for sizes in lengths for of in heads]
    plain = [*of_kind, *(replace(case, causal=True) for case in of_kind), *of_size]
    extras = [{"window_size": (128, None)}, {"window_size": (0, 0)}, {"softcap": 30.0}, {"dropout_p": 0.1}]
    every = [*plain, *(replace(case, **extra) for case in plain for extra in extras)]
    every += [replace(case, **{of: True}) for case in plain if case.dtype != "fp8" for of in ("sink", "alibi")]
    every += [replace(case, page_size=16) for case in every if is_cached(case)]
    every += [replace(case, cache_dtype="fp8") for case in every if case.page_size and case.dtype != "fp8"]
    latent = (case for case in every if is_cached(case) and not case.alibi and case.shape.headdim_v == 512)
    every += [replace(case, latent=True) for case in latent]
    one_longer = (
        replace(case, lengths=((case.shape.batch - 1, 1, 1), (1, *sizes(case)))) for case in every if unlike(case)
    )
    return [*every, *one_longer]


def is_cached(case: Case) -> bool:
    """Return whether the keys of a case may be in a cache."""
    plain = case.direction == "fwd" and not case.dropout_p and case.shape.nheads_k == 1
    return plain and case.shape.seqlen_q <= case.shape.seqlen_k


def sizes(case: Case) -> tuple[int, int]:
    return case.shape.seqlen_q, case.shape.seqlen_k


def unlike(case: Case) -> bool:
    """Return whether the batch of a case may have sequences of different lengths, some of one token."""
    return case.shape.batch > 1 and sizes(case) != (1, 1) and not case.dropout_p


@pytest.fixture(params=[*BACKENDS, OWN])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def backend(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if name != OWN:
        return _shipped(name)
    monkeypatch.syspath_prepend(tmp_path)  # both are undone after the test
    monkeypatch.setitem(sys.modules, "own_attention", None)
    (tmp_path / "own_attention.py").write_text(OWN_SOURCE)
    return load(name, f"{tmp_path}/own_attention.py:attention")


@cache
def _shipped(name: str) -> Backend:
    """Return the one backend of a name, as a worker has it: what its probe found counts in all its cases."""
    return load(name, BACKENDS[name])


_WHY_NOT: dict[str, str | None] = {}  # by backend, computed once for thousands of tests


def why_not(backend: Backend) -> str | None:
    """Return why a backend can run no case here, or None."""
    if backend.name not in _WHY_NOT:
        _WHY_NOT[backend.name] = _find_why_not(backend)
    return _WHY_NOT[backend.name]


def _find_why_not(backend: Backend) -> str | None:
    if getattr(backend, "simulated", False):
        return "it is simulated and computes nothing"
    with warnings.catch_warnings():  # a library may warn when it is imported
        warnings.simplefilter("ignore")
        probe = backend.probe()
    if not probe.usable:
        return probe.reason
    reasons = [refusal(backend, case, DEVICE) for case in (*CASES.values(), *OTHER_KINDS.values())]
    return None if None in reasons else reasons[0]


def is_one_line(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip()) and "\n" not in text


def test_required_names_are_known() -> None:
    assert {*BACKENDS, OWN} >= REQUIRED


def test_runs_here(backend: Backend) -> None:
    if reason := why_not(backend):
        if backend.name in REQUIRED:
            pytest.fail(f"ATTNBENCH_REQUIRE asks for {backend.name}, which cannot run here: {reason}")
        pytest.skip(f"{backend.name}: {reason}")


def test_name_is_that_of_the_map(name: str) -> None:
    if name == OWN:
        pytest.skip("named by whoever gives it")
    module, _, attribute = BACKENDS[name].partition(":")
    own = getattr(importlib.import_module(module), attribute.partition("[")[0]).name
    assert own == "" if attribute.endswith("]") else name in (own, f"{ULYSSES}{own}")


def test_probe_gives_a_version_or_a_reason(backend: Backend) -> None:
    probe = backend.probe()
    assert is_one_line(probe.version if probe.usable else probe.reason)
    assert probe.install is None or is_one_line(probe.install)


def test_answers_are_pure(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any case on any device a backend's answers (a reason, a workspace, patterns) are valid and repeatable."""
    simulated, patterns = getattr(backend, "simulated", False), set[object]()
    for device in DEVICES:
        monkeypatch.setenv("TRITON_INTERPRET", "1" if device.kind == "cpu" else "0")  # so that each device may run
        for case in (*CASES.values(), *broad()):
            reason = backend.unsupported(case, device)
            assert reason is None or is_one_line(reason), f"{reason!r} for {case} on {device.name}"
            assert backend.unsupported(case, device) == reason
            if reason is None and not simulated:
                signature = backend.signature(case, device)
                assert isinstance(signature, Signature)
                assert backend.signature(case, device) == signature
                patterns |= {*signature.runs, *signature.never}
    for pattern in patterns:
        assert isinstance(pattern, str)
        assert not re.search(pattern, ""), f"{pattern!r} is found in any name"
    for case in broad():
        workspace = backend.workspace(case)
        assert isinstance(workspace.nbytes, int)
        assert workspace.nbytes >= 0, case
        assert workspace.passes >= 0, case
        assert is_one_line(workspace.what)


def test_pure_functions_import_nothing_heavy() -> None:
    """Pure functions import neither torch nor the library, so that a broken installation matters only to the probe."""
    code = """
import sys
before = set(sys.modules)
from attnbench.backends import BACKENDS, load
from attnbench.core.case import Case, Shape
from attnbench.core.layouts import packable
from attnbench.core.machine import Device
case = Case(Shape(1, 64, 64, 2, 2, 64, 64), "fp16", "bwd", causal=True)
for name, spec in BACKENDS.items():
    backend = load(name, spec)
    for device in (Device("cuda", 0, "", 1, 1, (9, 0)), Device("cpu", 0, "", 1, 1)):
        backend.unsupported(case, device)
    backend.workspace(case)
    loaded = {m.partition(".")[0] for m in set(sys.modules) - before}
    if found := sorted(loaded - set(sys.stdlib_module_names) - {"attnbench"}):
        print(name, *found)
        break
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def taken(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    """Parametrize a test by backends and the cases that they accept here.

    These are all cases on a GPU. On a CPU, where thousands would take many minutes, they have every pair of features.
    """
    chosen = (lambda cases: cases) if ON_GPU else every_pair
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRET:
            patch.setenv("TRITON_INTERPRET", "1")
        backends = {name: load(name, BACKENDS[name]) for name in BACKENDS}
        pairs = [
            pytest.param(name, case, id=f"{name}-{key}")
            for name, backend in backends.items()
            if name not in SEVERAL  # with one rank these are another backend; see tests/worker/test_ranks.py
            if not getattr(backend, "simulated", False)
            for key, case in chosen({k: c for k, c in cases.items() if not refusal(backend, c, DEVICE)}).items()
        ]
        softmax = {key: case for key, case in cases.items() if case.is_softmax}
    pairs += [pytest.param(OWN, case, id=f"{OWN}-{key}") for key, case in chosen(softmax).items()]
    return pytest.mark.parametrize(("name", "case"), pairs)


@pytest.fixture
def able(backend: Backend, case: Case) -> None:
    """Skip a backend that cannot run here, and a case that a person's own function refuses."""
    if reason := why_not(backend) or refusal(backend, case, DEVICE):
        pytest.skip(f"{backend.name}: {reason}")


def prepared_or_skip(backend: Backend, case: Case, given: Inputs) -> tuple[Prepared, Any]:
    """Return the prepared case and the raw results of a first launch; skip it where the library refuses."""
    try:
        prepared = backend.prepare(case, given)
        return prepared, prepared.launch()
    except Unsupported as refusal:
        if not is_one_line(str(refusal)):
            pytest.fail(f"not one line: {str(refusal)!r}")
        pytest.skip(f"{backend.name}: {refusal}")


@pytest.mark.skipif(ON_GPU, reason="operators are seen on a CPU")
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_what_a_backend_copies_for_a_layout_is_in_its_launch(direction: str) -> None:
    """Copies for a layout are in the launch: eager attention first copies heads that are not contiguous."""

    def copies(layout: str) -> int:
        case = Case(SHAPES["gqa"], "fp32", direction, layout=layout)
        prepared = load("eager", BACKENDS["eager"]).prepare(case, inputs.make(case, "cpu", seed=0))
        return sum(bool(re.search("aten::(clone|copy_|cat)", name)) for name in operator_names(prepared.launch))

    assert copies("native") == copies("bhsd")  # copies of scalars only
    assert copies("bshd") > copies("native")
    assert copies("packed") > copies("native")


def test_inputs_that_are_not_views_of_one_tensor_are_packed_and_named() -> None:
    """Inputs that are separate tensors, as in a check with other values of v, are packed and named in `reads`."""
    case = Case(SHAPES["gqa"], "fp32", "fwd_bwd", layout="packed")
    given = inputs.make(replace(case, layout="native"), "cpu", seed=0)
    prepared = load("eager", BACKENDS["eager"]).prepare(case, given)
    prepared.reads["v"].zero_()
    assert not prepared.canonical(prepared.launch())["out"].any()


@pytest.mark.usefixtures("able")
@taken(ONE_OF_EACH | OTHER_KINDS)
def test_declared_kernels_run_and_results_follow_the_inputs(backend: Backend, case: Case) -> None:
    signature, ran = backend.signature(case, DEVICE), operators_of_launches(backend, case)
    if DEVICE.kind == "cpu" and signature != Signature() and ran:
        assert kernel_rules.find_broken_rule(case, signature, kernel_rules.count_by_name(ran)) is None


def operators_of_launches(backend: Backend, case: Case) -> list[str]:
    """Return the operators of a launch on inputs that were changed in place, which the results must follow.

    So a backend that copies inputs in `prepare` must name the copies in `reads`, and one that returns stored results
    fails. `canonical` must return views only, because its computations would not be timed.
    """
    given = inputs.make(case, DEVICE.kind, seed=0)
    prepared, raw = prepared_or_skip(backend, case, given)
    assert kernel_rules.first_computing_operator(operator_names(lambda: prepared.canonical(raw))) is None
    assert set(prepared.reads) <= {"q", "k", "v", "dout", "sink"}
    for name, tensor in prepared.reads.items():
        own = given.values[name]
        assert tensor.numel() == own.numel()
        assert tensor.shape[-1] == own.shape[-1], f"{name}: headdim is not its last dimension"
    before = {name: t.detach().float() for name, t in prepared.canonical(raw).items()}
    renewal = InputRenewal(case, given, prepared, seed=0)
    renewal.renew()
    launched: list[Any] = []
    ran = operator_names(lambda: launched.append(prepared.launch()))
    results = prepared.canonical(launched.pop())
    for name in set(judge.expected_results(case)) - ({"out"} if case.direction == "bwd" else set()):
        assert not torch.equal(results[name].float(), before[name]), f"{name} did not change with the inputs"
    fresh = renewal.apply_to(inputs.make(case, DEVICE.kind, seed=0))
    accuracy = judge.make_check(case, fresh, 0, backend).check_first(results)
    assert accuracy.ok, accuracy.problem()
    return ran


@pytest.mark.usefixtures("able")
@taken(DROPOUT)
def test_dropout(backend: Backend, case: Case) -> None:
    """Dropout keeps the right fraction, and results are exact for its mask in each launch and on other inputs."""
    given = inputs.make(case, DEVICE.kind, seed=0)
    check = judge.make_check(case, given, seed=0)
    try:
        prepared = backend.prepare(case, check.inputs)
        launch = check.launcher(prepared)
        raw = launch()
    except Unsupported as refusal:
        pytest.skip(f"{backend.name}: {refusal}")
    for results in (raw, launch()):
        accuracy = check.check_first(prepared.canonical(results))
        assert accuracy.ok, accuracy.problem()
    renewal = InputRenewal(case, given, prepared, seed=0)
    renewal.renew()
    accuracy = check.check_renewed(
        renewal.now, renewal.apply_to(inputs.make(case, DEVICE.kind, seed=0)), prepared.canonical(launch())
    )
    assert accuracy.ok, f"on new inputs: {accuracy.problem()}"
    renewal.restore()
    accuracy = check.check_restored(prepared.canonical(launch()))
    assert accuracy.ok, f"on the old inputs: {accuracy.problem()}"
    assert check.notes == (), "its mask is not known"
    assert inputs.first_changed(given, inputs.make(case, DEVICE.kind, seed=0)) is None


@pytest.mark.usefixtures("able")
@taken(CASES | OTHER_KINDS)
def test_results(backend: Backend, case: Case) -> None:
    """Results of every accepted case have the right names, shapes, dtypes and values, and no input changes."""
    given = inputs.make(case, DEVICE.kind, seed=0)
    before = inputs.clone(given)
    check = judge.make_check(case, given, 0, backend)
    prepared, raw = prepared_or_skip(backend, case, given)
    results = prepared.canonical(raw)
    factors = {f"descale_{name}" for name, t in results.items() if t.dtype.itemsize == 1}
    assert set(results) - factors - {"selected"} == set(judge.expected_results(case))
    accuracy = check.check_first(results)  # checks shapes and dtypes too
    assert accuracy.ok, accuracy.problem()
    assert check.fp8_problem(prepared, accuracy) is None
    if case.has_backward:
        assert prepared.forward is not None, "without it the memory that the forward keeps is not measured"
        prepared.forward()
    if prepared.plan is not None:
        prepared.plan()
    again = check.check_restored(prepared.canonical(prepared.launch()))
    assert again.ok, f"second launch, planned again: {again.problem()}"
    pages.appender(case, before)()
    assert inputs.first_changed(given, before) is None, "launching changed an input"
    assert not any(t.requires_grad for t in given.values.values()), "preparing changed an input"
