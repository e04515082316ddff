"""Workloads of flashinfer-trace become the cases that a server had, and hostile files become one line."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.run import flashinfer_workloads
from attnbench.run.suite import load_suite, parse_options, resolve

DECODE = "gqa_paged_decode_h32_kv8_d128_ps16"


def safetensors(tensors: Mapping[str, Sequence[int]], code: str = "i") -> bytes:
    """Return the content of a safetensors file with integer tensors (huggingface/safetensors, README.md, Format)."""
    header, data = {}, b""
    for name, values in tensors.items():
        begin, data = len(data), data + struct.pack(f"<{len(values)}{code}", *values)
        dtype = {"i": "I32", "q": "I64"}[code]
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [begin, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + data


def workload(root: Path, definition: str, code: str = "i", scale: float | None = None, **tensors: Sequence[int]) -> str:
    """Return the line of a workload, as flashinfer-bench writes it; its tensors lie below the root of the data set."""
    blobs = root / "blob/workloads"
    blobs.mkdir(parents=True, exist_ok=True)
    uuid = len([*blobs.iterdir()])
    (blobs / f"{uuid}.safetensors").write_bytes(safetensors(tensors, code))
    inputs: dict[str, Any] = {"q": {"type": "random"}}
    for name in tensors:
        inputs[name] = {"type": "safetensors", "path": f"blob/workloads/{uuid}.safetensors", "tensor_key": name}
    if scale:
        inputs["sm_scale"] = {"type": "scalar", "value": scale}
    of = {"uuid": str(uuid), "axes": {"len_indptr": len(tensors["kv_indptr"])}, "inputs": inputs}
    return json.dumps({"definition": definition, "workload": of, "solution": None, "evaluation": None})


def written(root: Path, *lines: str) -> str:
    folder = root / "workloads/gqa_paged"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "trace.jsonl")


def test_each_workload_is_the_case_that_the_server_had(tmp_path: Path) -> None:
    pages = [0, 2, 3, 3, 6]  # sequences of 2, 1, 0 and 3 pages, of which the last hold 5, 16, 0 and 1 tokens
    lines = [
        workload(tmp_path, DECODE, scale=0.0883, kv_indptr=pages, kv_last_page_len=[5, 16, 0, 1]),
        workload(tmp_path, DECODE, "q", kv_indptr=pages, kv_last_page_len=[5, 16, 0, 1, 0]),  # the same batch
        workload(tmp_path, DECODE, kv_indptr=[0, 4, 8]),
        workload(
            tmp_path, "gqa_paged_prefill_causal_h32_kv8_d128_ps1", qo_indptr=[0, 100, 101], kv_indptr=[0, 300, 800]
        ),
        workload(tmp_path, "gqa_ragged_prefill_causal_h32_kv8_d128", qo_indptr=[0, 7, 2055], kv_indptr=[0, 7, 2055]),
        workload(tmp_path, "mla_paged_decode_h16_ckv512_kpe64_ps64", scale=0.1352, kv_indptr=[0, 3]),
        workload(tmp_path, "mla_paged_decode_h16_ckv512_kpe64_ps64", scale=1, kv_indptr=[0, 3]),
        workload(tmp_path, "gemm_n4096_k4096", kv_indptr=[0, 3]),
        workload(tmp_path, "gemm_n4096_k4096", kv_indptr=[0, 3]),
    ]
    found = resolve(load_suite(written(tmp_path, *lines)), "cuda")

    def case(q: int, k: int, lengths: tuple[tuple[int, ...], ...], page: int) -> Case:
        batch = sum(of[0] for of in lengths) or 2
        return Case(Shape(batch, q, k, 32, 8, 128, 128), "bf16", "fwd", causal=True, lengths=lengths, page_size=page)

    latent = Case(
        Shape(1, 1, 192, 16, 1, 576, 512), "bf16", "fwd", causal=True, page_size=64, latent=True, scale=0.1352
    )
    assert found.cases == (
        case(1, 33, ((1, 1, 21), (1, 1, 16), (1, 1, 33)), 16),
        case(1, 64, (), 16),
        case(100, 500, ((1, 100, 300), (1, 1, 500)), 1),
        case(2048, 2048, ((1, 7, 7), (1, 2048, 2048)), 0),
        latent,
        replace(latent, scale=1.0),
    )
    assert found.notes == ("left out: 2 workloads of gemm_n4096_k4096, a definition that attnbench has no case for",)
    fp16 = resolve(load_suite(written(tmp_path, *lines)), "cuda", parse_options({"axes": {"dtype": "fp16"}}))
    assert {c.dtype for c in fp16.cases} == {"fp16"}


GOOD = {"type": "safetensors", "path": "t.safetensors", "tensor_key": "kv_indptr"}


def line(**inputs: Any) -> str:
    return json.dumps({"definition": DECODE, "workload": {"inputs": inputs}})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no workload of attention; the file is empty"),
        ("[" * 5000, "neither a run file nor a workload of flashinfer-trace"),
        ('{"definition": 1}', "neither a run file nor a workload of flashinfer-trace: definition: 1 is not text"),
        ("[1]", "neither a run file nor a workload of flashinfer-trace: [1] is not a mapping"),
        ("\0\x1b[31m", "neither a run file nor"),
        (line(), "kv_indptr: the workload has no tensor"),
        (line(kv_indptr={"type": "random"}), "kv_indptr: the workload has no tensor"),
        (line(kv_indptr={**GOOD, "path": "nowhere"}), "there is no nowhere in a folder above"),
        (line(kv_indptr={**GOOD, "path": "a\0b" * 5000}), "there is no "),
        (line(kv_indptr={**GOOD, "path": "/dev/zero"}), "there is no /dev/zero"),
        (line(kv_indptr={**GOOD, "tensor_key": "other"}), "is no safetensors file with 'other'"),
        (line(kv_indptr=GOOD, kv_last_page_len={**GOOD}), "a number from 0 to 16 for each sequence"),
        ("x" * (flashinfer_workloads.MOST_OF_LINE + 1), "or one of more than 1 MiB"),
        (line(kv_indptr=GOOD).replace(DECODE, r"x\u001b" * 999), "no workload of attention; left out: 1 workload of"),
        (line(kv_indptr=GOOD).replace("d128", "d0"), "headdim"),
        (line(kv_indptr=GOOD).replace("kv8", "kv5"), "not a multiple of 5"),
    ],
)
def test_a_hostile_file_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(safetensors({"kv_indptr": [0, 40]}))
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(UserError) as error:
        resolve(load_suite(str(tmp_path / "trace.jsonl")), "cuda")
    said = str(error.value)
    assert why in said
    assert len(said) < 1000
    assert said.isprintable()


def header(**of: Any) -> bytes:
    text = json.dumps({"kv_indptr": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8], **of}}).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack("<2i", 0, 40)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
        (b"\xff" * 8, "the header of this file is longer than"),
        (struct.pack("<Q", 9) + b"[" * 9, "no safetensors file"),
        (header(dtype="BF16"), "no safetensors file"),
        (header(dtype=[]), "no safetensors file"),
        (header(shape=[2, 1]), "no safetensors file"),
        (header(shape=[2**40]), "more than 4096 sequences"),
        (header(shape=[-1], data_offsets=[4, 0]), "no safetensors file"),
        (header(data_offsets=[2**70, 2**70 + 8]), "no safetensors file"),
        (header(data_offsets=[-(2**20), 8 - 2**20]), "Invalid argument"),
        (header(data_offsets=[0, math.inf]), "no safetensors file"),
        (header()[:-4], "no safetensors file"),
        (safetensors({"kv_indptr": [5, 2]}), "must ascend from 0"),
        (safetensors({"kv_indptr": [0, 0]}), "without a token"),
        (safetensors({"kv_indptr": [3]}), "without a token"),
    ],
)
def test_a_hostile_tensor_is_one_line(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    (tmp_path / "trace.jsonl").write_text(line(kv_indptr=GOOD))
    with pytest.raises(UserError, match=why):
        load_suite(str(tmp_path / "trace.jsonl"))
