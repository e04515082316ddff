"""The shared contract, run with a stand-in on a CPU, for the cases that a backend takes on a GPU.

Whether the real kernels have the declared names can only be tested on a GPU.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.backends import BACKENDS, load
from attnbench.core.backend import Backend
from attnbench.core.case import Case, Shape, sizes_of
from attnbench.core.machine import Device
from contract.pairwise import every_pair_of_several

HOPPER = Device("cuda", 0, "NVIDIA H200", 2**37, 2**37, (9, 0))
AMPERE = Device("cuda", 0, "NVIDIA A100", 2**35, 2**35, (8, 0))
ADA = Device("cuda", 0, "NVIDIA L40S", 2**35, 2**35, (8, 9))
BLACKWELL = Device("cuda", 0, "NVIDIA B200", 2**37, 2**37, (10, 0))
RTX = Device("cuda", 0, "NVIDIA RTX PRO 6000", 2**36, 2**36, (12, 0))
CPU = Device("cpu", 0, "a CPU", 2**34, 2**34)


def _load() -> Any:
    path = Path(__file__).parents[1] / "contract" / "test_backends.py"
    spec = importlib.util.spec_from_file_location("shared_contract", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


shared = _load()

CASES: dict[str, Case] = dict(shared.CASES)
# Larger head dims, for libraries with few head dims, and masks with unequal lengths.
CASES |= {
    f"{name}-{direction}": Case(shape, "bf16", direction, causal, window)  # type: ignore[arg-type]
    for name, shape, causal, window in (
        ("d128-causal", Shape(2, 40, 40, 4, 2, 128, 128), True, (None, None)),
        ("d128-single-causal", Shape(1, 24, 56, 4, 2, 128, 128), True, (None, None)),
        ("d64-full", Shape(2, 24, 40, 2, 2, 64, 64), False, (None, None)),
        ("d192-128-full", Shape(2, 24, 40, 2, 2, 192, 128), False, (None, None)),
        ("d64-window", Shape(1, 40, 70, 2, 2, 64, 64), True, (16, None)),
        ("d128-window-equal", Shape(2, 40, 40, 2, 2, 128, 128), True, (16, 0)),
        ("d64-window-both", Shape(1, 40, 40, 2, 2, 64, 64), False, (8, 5)),
        ("d64-window-left", Shape(1, 40, 48, 2, 2, 64, 64), False, (8, None)),
        ("d64-decode-ungrouped", Shape(2, 1, 48, 2, 2, 64, 64), True, (None, None)),
        ("d64-decode-causal", Shape(2, 1, 48, 4, 2, 64, 64), True, (None, None)),
    )
    for direction in ("fwd", "bwd")
}
CASES |= {  # float16, bfloat16 and head dims of all libraries
    f"d64-{feature}-{name}-{direction}": Case(shape, "bf16", direction, causal, window, **{feature: True})  # type: ignore[arg-type]
    for feature in ("sink", "alibi")
    for name, shape, causal, window in (
        ("full", Shape(2, 40, 40, 4, 2, 64, 64), False, (None, None)),
        ("causal", Shape(2, 40, 40, 3, 3, 64, 64), True, (None, None)),
        ("causal-unequal", Shape(1, 24, 56, 6, 2, 64, 64), True, (None, None)),
        ("window", Shape(2, 40, 40, 2, 2, 64, 64), True, (16, 0)),
    )
    for direction in ("fwd", "fwd_bwd")
}
CASES |= {  # several blocks of queries and of keys, for libraries that visit blocks
    f"blocks-{mask}-d{d}-{direction}": Case(
        Shape(2, seqlen_q, seqlen_k, 4, 2, d, d_v), "bf16", direction, causal, window, mask=mask
    )  # type: ignore[arg-type]
    for mask, seqlen_q, seqlen_k, d, d_v, causal, window in (
        ("prefix:200", 330, 330, 64, 64, True, (None, None)),
        ("sink_tokens:4", 300, 400, 64, 64, True, (150, None)),
        ("strided:200", 300, 400, 128, 128, True, (None, None)),
        ("dilated:3", 256, 384, 64, 64, False, (40, 140)),
        ("random:0.4", 512, 512, 64, 64, True, (None, None)),
        ("random:0.3", 300, 400, 64, 64, False, (None, None)),
        ("random:0.3", 300, 400, 192, 192, True, (None, None)),
        ("random:0.3", 200, 1224, 128, 128, False, (None, None)),
        ("strided:200", 300, 400, 256, 256, True, (None, None)),
    )
    for direction in ("fwd", "fwd_bwd")
}
CASES["d64-softcap"] = Case(Shape(1, 40, 48, 2, 2, 64, 64), "bf16", "fwd_bwd", True, softcap=2.0)
CASES["d64-softcap-fwd"] = replace(CASES["d64-softcap"], direction="fwd")
UNLIKE, SERVED = shared.LENGTHS["unlike"], shared.LENGTHS["served"]
CASES |= {
    f"ragged-{name}-{direction}": Case(Shape(*sizes_of(lengths), *sizes), "bf16", direction, causal, lengths=lengths)  # type: ignore[arg-type]
    for name, lengths, sizes, causal in (
        ("d64-full", UNLIKE, (2, 2, 64, 64), False),
        ("d64-causal", UNLIKE, (2, 2, 64, 64), True),
        ("d64-causal-unlike", SERVED, (2, 2, 64, 64), True),
        ("d128-gqa-causal", SERVED, (4, 2, 128, 128), True),
        ("d128-causal-chunks", ((1, 77, 77), (3, 1, 48), (1, 16, 60)), (4, 2, 128, 128), True),
        ("d64-decode", ((2, 1, 40), (1, 1, 77)), (4, 2, 64, 64), True),
        ("d192-128-full", UNLIKE, (2, 2, 192, 128), False),
        ("d64-more-queries", ((1, 40, 24), (2, 24, 48)), (2, 2, 64, 64), True),
    )
    for direction in ("fwd", "bwd", "fwd_bwd")
}
for name, window, causal in (("causal", (16, 0), True), ("both", (8, 5), False), ("left", (8, None), False)):
    for direction in ("fwd", "bwd"):
        plain = CASES[f"ragged-d64-causal-unlike-{direction}"]
        CASES[f"ragged-window-{name}-{direction}"] = replace(plain, causal=causal, window_size=window)  # type: ignore[arg-type]
CASES["ragged-decode-window"] = replace(CASES["ragged-d64-decode-fwd"], window_size=(16, 0))
PAGES = ((2, 1, 300), (1, 1, 700))  # decode steps over several pages
BESIDE = ((1, 40, 40), (2, 1, 600), (1, 16, 300))  # a prefill, decode steps, a chunk
PAGED = {
    f"pages-{page}-{name}": Case(
        Shape(*(sizes or sizes_of(lengths)), *heads), "bf16", "fwd", True, lengths=lengths, page_size=page
    )
    for page in (16, 64, 256)
    for name, sizes, heads, lengths in (
        ("decode", (3, 1, 600), (4, 2, 64, 64), ()),
        ("decode-ungrouped", (2, 1, 300), (2, 2, 128, 128), ()),
        ("speculative", (2, 4, 300), (4, 1, 128, 128), ()),
        ("chunk", (1, 40, 300), (4, 2, 64, 64), ()),
        ("unlike", (), (4, 2, 64, 64), PAGES),
        ("beside", (), (4, 2, 64, 64), BESIDE),
    )
}
PREFIX = {
    f"{name}-prefix": replace(case, shared_prefix=256)
    for name, case in PAGED.items()
    if "unlike" in name or not case.lengths
}
PAGED |= {f"{name}-append": replace(case, append=True) for name, case in PAGED.items()}
PAGED |= {f"{name}-fp8": replace(case, cache_dtype="fp8") for name, case in PAGED.items() if not case.append}
for page in (64, 256):
    chunk, decode = PAGED[f"pages-{page}-chunk"], PAGED[f"pages-{page}-decode"]
    PAGED |= {
        f"pages-{page}-full": replace(chunk, causal=False),
        f"pages-{page}-window": replace(chunk, window_size=(50, 0)),
        f"pages-{page}-decode-window": replace(decode, window_size=(50, 0)),
        f"pages-{page}-softcap": replace(chunk, softcap=2.0),
        f"pages-{page}-scale": replace(decode, scale=0.3),
        f"pages-{page}-fp8-all": replace(decode, dtype="fp8"),
        f"pages-{page}-d192-128": Case(Shape(2, 1, 300, 4, 2, 192, 128), "bf16", "fwd", True, page_size=page),
        f"pages-{page}-mla": Case(
            Shape(2, 1, 300, 16, 1, 576, 512), "bf16", "fwd", True, page_size=page, latent=True, scale=0.07
        ),
        f"pages-{page}-mla-beside": Case(
            Shape(*sizes_of(BESIDE), 16, 1, 576, 512),
            *("bf16", "fwd", True),
            lengths=BESIDE,
            page_size=page,
            latent=True,
            scale=0.07,
        ),
    }
PREFIX |= {f"{name}-append": replace(case, append=True) for name, case in PREFIX.items()}
CASES |= PAGED | PREFIX
for feature in ("sink", "alibi"):
    CASES |= {
        f"{name}-{feature}": replace(CASES[name], **{feature: True})  # type: ignore[arg-type]
        for name in (
            *(
                "d64-decode-causal-fwd",
                "ragged-d64-causal-fwd_bwd",
                "ragged-d128-gqa-causal-fwd",
                "ragged-d64-full-bwd",
            ),
            *("pages-64-chunk", "pages-64-decode", "pages-256-unlike", "pages-256-beside", "pages-256-decode-window"),
        )
    }
CASES |= shared.DROPOUT
CASES |= {
    f"d64-dropout-{direction}": Case(Shape(2, 40, 40, 2, 2, 64, 64), "bf16", direction, True, dropout_p=0.1)
    for direction in ("fwd", "bwd", "fwd_bwd")
}
SOME = [
    CASES[key]
    for key in (
        "gqa-full-bf16-bwd",
        "gqa-causal-fp16-fwd_bwd",
        "d128-causal-fwd",
        "d128-window-equal-bwd",
        "d64-softcap-fwd",
        "fp8-gqa-full",
        "fp8-d128-causal-bwd",
        "fp8-d128-causal-fwd_bwd",
        "ragged-d64-full-bwd",
        "ragged-d128-gqa-causal-fwd_bwd",
        "pages-64-decode",
        "pages-256-unlike",
        "pages-256-beside",
        "pages-256-chunk-append",
        "pages-64-mla",
        "pages-16-unlike-prefix",
    )
]


def backend(name: str) -> Backend:
    return load(name, BACKENDS[name])


def cases(
    *together: tuple[str, ...] | str, device: Device = HOPPER, where: Callable[[Case], bool] = lambda _: True
) -> Any:
    """Parametrize (name, case) with cases that the backends take on the device, with every pair of features.

    Backends in a tuple have one class and share the pairs: each has every feature, and must take two cases or more.
    """
    found = []
    for names in ((one,) if isinstance(one, str) else one for one in together):
        taken = {}
        for name in names:
            made = backend(name)
            of_name = {(name, key): c for key, c in CASES.items() if where(c) and not made.unsupported(c, device)}
            assert len(of_name) > 1, f"{name} takes {len(of_name)} of {len(CASES)} cases"
            taken |= of_name
        chosen = every_pair_of_several(taken) | {key: case for key, case in taken.items() if case in SOME}
        found += [pytest.param(name, case, id=f"{name}-{key}") for (name, key), case in chosen.items()]
    return pytest.mark.parametrize(("name", "case"), found)


def check(made: Backend, case: Case) -> None:
    """Check that the results are right, with dropout for the drawn mask.

    For the cases of SOME, check also that the results follow the inputs and that `canonical` computes nothing.
    """
    if case.dropout_p:
        shared.test_dropout(made, case)
        return
    shared.test_results(made, case)
    if case in SOME:
        shared.operators_of_launches(made, case)
