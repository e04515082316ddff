"""Workloads of flashinfer-trace as a suite: the batches of a server, which flashinfer-bench has recorded.

A file has a workload per line (flashinfer-ai/flashinfer-bench on GitHub, "flashinfer-trace"). The name of its
definition has the sizes: `gqa_paged_decode_h32_kv8_d128_ps16`. Where each sequence begins is in int32 or int64 tensors
of safetensors files (8 bytes with the length of the header, the header as JSON, the tensors), whose paths are relative
to the root of the data set, a folder above the file.

The name has no dtype: cases are bf16, as the published definitions are; `--dtype fp16` replaces it. All definitions
that are read are causal.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from attnbench.core.errors import UserError
from attnbench.core.lengths import MOST_SEQUENCES, run_lengths, spell
from attnbench.core.text import count, printable, shortened
from attnbench.run.axes import LATENT_SCALE, MAX_CASES
from attnbench.run.yaml_file import first_mistake

_GQA = re.compile(
    r"gqa_(?P<kind>paged_decode|paged_prefill|ragged)(?:_prefill)?(?:_causal)?"
    r"_h(?P<nheads>\d{1,6})_kv(?P<nheads_k>\d{1,6})_d(?P<headdim>\d{1,6})(?:_ps(?P<page_size>\d{1,6}))?"
)
_MLA = re.compile(
    r"mla_(?P<kind>paged_decode|paged_prefill)(?:_causal)?"
    r"_h(?P<nheads>\d{1,6})_ckv(?P<ckv>\d{1,6})_kpe(?P<kpe>\d{1,6})_ps(?P<page_size>\d{1,6})"
)
_DTYPES = {"I32": ("i", 4), "I64": ("q", 8)}  # dtype in safetensors -> code of struct, bytes
_POINTER = b"version https://git-lfs"  # the beginning of a file that Git LFS has not fetched
MOST_OF_LINE, MOST_OF_HEADER = 2**20, 2**20  # bytes of a workload, and of the header of its safetensors
MOST_LINES = 100_000
SAME_SCALE = 1e-3  # a scale so near to the usual one, as a share of it, is the usual one, stored with fewer digits


class _Input(BaseModel):
    type: str
    path: str = ""
    tensor_key: str = ""
    value: Any = None


class _Workload(BaseModel):
    inputs: dict[str, _Input]


class _Line(BaseModel):
    definition: str
    workload: _Workload


class _Left(Exception):
    """A workload that is no case of attnbench; the text is the reason."""


def read(path: Path) -> dict[str, Any]:
    """Return the workloads of a file as the content of a suite file, each batch once.

    Sequences without a token, as padding leaves them, are dropped. `notes` say which workloads are left out. Raises
    UserError, with the line, for a file that cannot be read, and where no workload is left.
    """
    found: dict[tuple[tuple[str, Any], ...], None] = {}
    left: Counter[str] = Counter()
    number = 0
    for number, line in enumerate(_lines(path), 1):
        try:
            given = _Line.model_validate_json(line)
        except ValidationError as error:
            why = first_mistake(error, {"": _Line})
            raise UserError(f"{path}:{number}: neither a run file nor a workload of flashinfer-trace: {why}") from None
        try:
            found.setdefault(tuple(_case(given, path).items()))
        except _Left as reason:
            left[str(reason)] += 1
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if len(found) > MAX_CASES:
            raise UserError(f"{path}: more than {MAX_CASES} different batches; give a file with fewer lines")
    notes = [f"left out: {count(times, 'workload')} of {reason}" for reason, times in left.items()]
    if not found:
        raise UserError(f"{path}: no workload of attention; {notes[0] if notes else 'the file is empty'}")
    description = f"{count(number, 'workload')} of flashinfer-trace"
    return {"name": path.stem, "description": description, "cases": [dict(case) for case in found], "notes": notes}


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for number in range(MOST_LINES + 1):
                line = file.readline(MOST_OF_LINE + 1)
                if len(line) > MOST_OF_LINE or number == MOST_LINES:
                    raise UserError(f"{path}: more than {MOST_LINES} lines, or one of more than 1 MiB; split the file")
                if not line:
                    return
                if line.strip():
                    yield line
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _case(given: _Line, path: Path) -> dict[str, Any]:
    """Return a workload as a block of a suite. Raises _Left, and UserError where its tensors cannot be read."""
    name = given.definition
    sizes = _GQA.fullmatch(name) or _MLA.fullmatch(name)
    if not sizes or ("page_size" in sizes.groupdict() and bool(sizes["page_size"]) != ("paged" in sizes["kind"])):
        raise _Left(f"{shortened(printable(name))}, a definition that attnbench has no case for")
    inputs = given.workload.inputs
    keys = [*map(_difference, pairwise(_tensor(inputs, "kv_indptr", path)))]
    if page := int(sizes["page_size"] or 0):
        keys = _tokens(keys, page, inputs, path)
    queries = [1] * len(keys)
    if sizes["kind"] != "paged_decode":
        queries = [*map(_difference, pairwise(_tensor(inputs, "qo_indptr", path)))]
    if len(queries) != len(keys):
        raise UserError(f"qo_indptr has {count(len(queries), 'sequence')}, kv_indptr {len(keys)}")
    pairs = [(q, k) for q, k in zip(queries, keys, strict=True) if q and k]
    if not pairs:
        raise _Left(f"{name} without a token")
    if page and any(q > k for q, k in pairs):
        raise _Left(f"{name} with more queries than keys")
    block: dict[str, Any] = {"dtype": "bf16", "causal": True, "nheads": sizes["nheads"]}
    if sizes.re is _GQA:
        block |= {"nheads_k": sizes["nheads_k"], "headdim": sizes["headdim"]}
        usual = max(1, int(sizes["headdim"])) ** -0.5
    else:
        ckv = int(sizes["ckv"])
        block |= {"nheads_k": "1", "headdim": f"{ckv + int(sizes['kpe'])}-{ckv}", "latent": True}
        usual = LATENT_SCALE
    if page:
        block["page_size"] = str(page)
    scale = inputs["sm_scale"].value if "sm_scale" in inputs else None
    if isinstance(scale, int | float) and 0 < scale <= sys.float_info.max and abs(scale / usual - 1) > SAME_SCALE:
        block["softmax_scale"] = repr(float(scale))
    if lengths := run_lengths(pairs):
        return {**block, "lengths": spell(lengths)}
    (q, k), batch = pairs[0], len(pairs)
    return {**block, "batch": str(batch), "seqlen": str(k)} | ({"seqlen_q": str(q)} if q != k else {})


def _tokens(pages: list[int], page: int, inputs: Mapping[str, _Input], path: Path) -> list[int]:
    """Return the tokens of sequences with so many pages; without `kv_last_page_len` all pages are full."""
    if "kv_last_page_len" not in inputs:
        return [page * number for number in pages]
    last = _tensor(inputs, "kv_last_page_len", path)  # may have one entry more, as padding
    if len(last) < len(pages) or not all(0 <= tokens <= page for tokens in last):
        raise UserError(f"kv_last_page_len must have a number from 0 to {page} for each sequence")
    return [page * (number - 1) + tokens if number else 0 for number, tokens in zip(pages, last, strict=False)]


def _difference(ends: tuple[int, int]) -> int:
    if ends[0] < 0 or ends[1] < ends[0]:
        raise UserError("the beginnings of sequences in qo_indptr and kv_indptr must ascend from 0")
    return ends[1] - ends[0]


def _tensor(inputs: Mapping[str, _Input], name: str, path: Path) -> tuple[int, ...]:
    """Return an integer tensor of a workload. Raises UserError where it is not there or cannot be read."""
    if name not in inputs or inputs[name].type != "safetensors":
        raise UserError(f"{name}: the workload has no tensor of this name in a safetensors file")
    given = inputs[name]
    # The path is relative to the root of the data set. Of a FIFO or device `isfile` is false.
    places = (os.path.join(root, given.path) for root in path.absolute().parents)
    file = next(filter(os.path.isfile, places), None)
    said = printable(given.path[:300])
    if file is None:
        raise UserError(f"{name}: there is no {said} in a folder above the workloads; fetch the data set's files")
    try:
        with open(file, "rb") as opened:
            return _integers(opened, given.tensor_key)
    except OSError as error:
        raise UserError(f"{name}: cannot read {said}: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{name}: {said}: {error}") from None
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError, struct.error):
        key = shortened(printable(given.tensor_key))
        raise UserError(
            f"{name}: {said} is no safetensors file with {key!r}, int32 or int64 of one dimension"
        ) from None


def _integers(file: IO[bytes], key: str) -> tuple[int, ...]:
    """Return a tensor of one dimension. Raises UserError where it is too large, and other errors for a damaged file."""
    first = file.read(8)
    if first and _POINTER.startswith(first):
        raise UserError("Git LFS has not fetched this file; run git lfs pull in the data set")
    (length,) = struct.unpack("<Q", first)
    if length > MOST_OF_HEADER:
        raise UserError(f"the header of this file is longer than {MOST_OF_HEADER} bytes")
    found = json.loads(file.read(length))[key]
    code, size = _DTYPES[found["dtype"]]
    (number,) = found["shape"]
    begin, end = found["data_offsets"]
    if number > MOST_SEQUENCES + 1:
        raise UserError(f"more than {MOST_SEQUENCES} sequences, the most of a batch")
    if end - begin != number * size:
        raise ValueError
    file.seek(8 + length + begin)
    return struct.unpack(f"<{number}{code}", file.read(number * size))
