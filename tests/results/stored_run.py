"""A small run for tests of run files."""

from __future__ import annotations

import gzip
from pathlib import Path

from builders import case, ended, job, ok, run

CASES = [case(n, causal=c) for n in (1024, 2048, 4096) for c in (False, True)]
RECORDS = (
    ok(CASES[0], "triton", 300.0),
    ok(CASES[1], "triton", 200.0, memory_peak=5),
    ended(CASES[2], "triton", "oom", "MemoryError"),
)
RUN = run(RECORDS, plan=[job(c, "triton") for c in CASES], specs={"triton": "m:T"}, peak={"": 1e15}, argv=("run", "-b"))


def gzipped(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return packed
