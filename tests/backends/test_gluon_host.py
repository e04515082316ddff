"""The host side of the Gluon kernels: the distribution of work, tiles, memory, and refusals.

No GPU is needed. Code that imports Gluon runs in a separate process, as in test_gluon_compile.py.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from attnbench.backends.gluon.backend import MULTIPROCESSORS, Gluon
from attnbench.backends.gluon.backward_tiles import BACKWARD_TILES, PROGRAMS, choose_backward_tiles, query_parts
from attnbench.backends.gluon.forward_tiles import SHORT, block_lists, choose_forward_tiles, head_widths
from attnbench.backends.shared import libraries
from attnbench.core.case import Case, Shape
from attnbench.core.machine import Device

HEADDIMS = tuple(itertools.product((16, 64, 72, 128, 136, 192, 200, 256), repeat=2))


@pytest.mark.parametrize("right", [None, 0])
@pytest.mark.parametrize(
    ("seqlen_q", "seqlen_k", "heads", "section", "block", "programs"),
    [
        (1000, 1300, 8, 3, (128, 128), 132),
        (1300, 1000, 8, 8, (192, 128), 5),
        (1, 7, 2, 1, (128, 64), 2),
        (4100, 100, 7, 4, (192, 128), 132),
    ],
)
def test_block_lists(
    right: int | None,
    seqlen_q: int,
    seqlen_k: int,
    heads: int,
    section: int,
    block: tuple[int, int],
    programs: int,
) -> None:
    lists = block_lists((seqlen_q, seqlen_k, heads), right, section, block, programs)
    assert len(lists) == programs
    assert {len(one) for one in lists} == {3 + 2 * max(one[0] for one in lists)}
    found: list[tuple[int, int]] = []
    for count, *numbers in lists:
        assert 2 * count + 2 <= len(numbers)  # a program reads one entry beyond its last
        assert not any(numbers[2 * count :])
        mine = list(zip(numbers[: 2 * count : 2], numbers[1 : 2 * count : 2], strict=True))
        sections = [head // section for head, _ in mine]
        assert sections == sorted(sections)
        found += mine
    assert sorted(found) == sorted(itertools.product(range(heads), range(0, seqlen_q, block[0])))


def test_block_lists_share_the_work_evenly() -> None:
    lists = block_lists((16384, 16384, 16), 0, 16, (128, 128), 132)
    tiles = [sum(numbers[2 * i + 2] // 128 + 1 for i in range(numbers[0])) for numbers in lists]
    assert max(tiles) < 1.05 * sum(tiles) / 132


@pytest.mark.parametrize(("headdim", "headdim_v"), HEADDIMS)
def test_forward_tiles(headdim: int, headdim_v: int) -> None:
    width, rest = head_widths(headdim, headdim_v)
    assert width + rest >= headdim
    assert width >= headdim_v
    for seqlen_q in (1, SHORT, SHORT + 1):
        tiles = choose_forward_tiles(width, rest, seqlen_q)
        assert tiles.groups in (2, 3)
        assert tiles.groups * 128 * tiles.registers + 128 * 24 <= 1 << 16  # the registers of a multiprocessor


def test_short_sequences_have_smaller_blocks_at_headdim_64() -> None:
    assert [choose_forward_tiles(64, 0, n).groups for n in (SHORT, SHORT + 1)] == [2, 3]
    assert choose_forward_tiles(128, 0, SHORT) == choose_forward_tiles(128, 0, SHORT + 1)


@pytest.mark.parametrize(("headdim", "headdim_v"), HEADDIMS)
def test_backward_tiles(headdim: int, headdim_v: int) -> None:
    tiles = choose_backward_tiles(headdim, headdim_v)
    assert tiles.width >= headdim
    assert tiles.width_v >= headdim_v
    assert tiles.wide == (max(headdim, headdim_v) > 128)
    assert tiles.constants["STAGES"] == tiles.stages


def test_stages_that_the_exchange_can_free() -> None:
    """Rings have 2 or 3 stages, for the reason in the loader of the backward up to 128 columns."""
    assert {tiles.stages for tiles in BACKWARD_TILES.values() if not tiles.wide} <= {2, 3}


@pytest.mark.parametrize("group", [1, 2, 3, 6, 8, 32])
@pytest.mark.parametrize("programs", [1, 10, 100, 200, 1000])
def test_query_parts(group: int, programs: int) -> None:
    parts = query_parts(group, programs, MULTIPROCESSORS)
    wanted = PROGRAMS * MULTIPROCESSORS
    assert group % parts == 0
    assert parts == group or programs * parts >= wanted
    assert all(programs * n < wanted for n in range(1, parts) if group % n == 0)


WORKSPACES = tuple(
    Shape(2, 100, 300, 4, nheads_k, *headdims)
    for nheads_k in (4, 1)
    for headdims in ((64, 64), (96, 128), (192, 128), (256, 256))
)
# Prints the reasons of refusals for inputs on a CPU, and the bytes that are allocated for WORKSPACES.
IN_GLUON = """
import json
import sys

import torch

from attnbench.backends.gluon.attention import attention
from attnbench.backends.gluon.backward_tiles import choose_backward_tiles
from attnbench.backends.gluon.dq_sum import zero_sum
from attnbench.backends.triton import backward

reasons = []
for dtype in (torch.float32, torch.bfloat16):
    try:
        attention(*(torch.zeros(1, 16, 2, 64, dtype=dtype) for _ in range(3)))
    except ValueError as error:
        reasons.append(str(error))

backward.launch = lambda *_, **__: None  # only allocate
nbytes = []
for batch, seqlen_q, seqlen_k, nheads, nheads_k, headdim, headdim_v in json.loads(sys.argv[1]):
    q, out = (torch.zeros(batch, seqlen_q, nheads, d) for d in (headdim, headdim_v))
    lse = torch.zeros(batch, nheads, seqlen_q)
    found = [lse, *backward.padded_lse_and_delta(out, out, lse), zero_sum(q, choose_backward_tiles(headdim, headdim_v))]
    if nheads > nheads_k:  # so few programs that each query head has its own
        for d in (headdim, headdim_v):
            found.append(backward.empty_splits(torch.zeros(batch, seqlen_k, nheads_k, d), nheads // nheads_k))
    nbytes.append([lse.nbytes, sum(x.nbytes for x in found)])
print(json.dumps({"reasons": reasons, "nbytes": nbytes}))
"""


@pytest.fixture(scope="module")
def in_gluon() -> dict[str, list[Any]]:
    if find_spec("triton") is None or (found := Gluon().installed()) is None or found.reason:
        pytest.skip("Triton is missing or too old")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    sizes = json.dumps([astuple(s) for s in WORKSPACES])
    done = subprocess.run([sys.executable, "-c", IN_GLUON, sizes], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    said: dict[str, list[Any]] = json.loads(done.stdout)
    return said


def test_refusals_without_a_gpu(in_gluon: dict[str, list[Any]]) -> None:
    """Inputs on a CPU are refused; the dtype is checked first, then the device."""
    wrong_dtype, wrong_device = in_gluon["reasons"]
    assert "bfloat16 or float16" in wrong_dtype
    assert wrong_device == "needs a GPU of compute capability 9.0, q is on cpu"


def test_workspace_is_what_is_allocated(in_gluon: dict[str, list[Any]]) -> None:
    for shape, (forward, backward) in zip(WORKSPACES, in_gluon["nbytes"], strict=True):
        assert Gluon().workspace(Case(shape, "fp16", "fwd")).nbytes == forward
        assert Gluon().workspace(Case(shape, "fp16", "bwd")).nbytes == backward, shape


@pytest.mark.parametrize("capability", [(9, 0), (9, 4), None])
def test_a_gpu_of_amd_is_refused(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    """An AMD GPU is refused, even gfx90a, whose gfx number equals Hopper's capability."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    case = Case(Shape(1, 8, 8, 2, 1, 64, 64), "fp16", "fwd")
    device = Device("cuda", 0, "AMD Instinct MI250X", 1 << 30, 1 << 30, capability)
    assert Gluon().unsupported(case, device) == "needs an NVIDIA GPU, this is AMD Instinct MI250X"


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Shape(1, 8, 8, 2, 1, 64, 64), "fp16", "fwd")
    hopper = Device("cuda", 0, "a device", 1 << 30, 1 << 30, (9, 0))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert Gluon().unsupported(case, hopper) is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET=1 is set" in str(Gluon().unsupported(case, hopper))


def test_an_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(libraries, "installed_version", lambda _: "3.5.1")
    assert "triton 3.5.1 is older than 3.6" in str(Gluon().installed())
