"""What a run says of each cell as it goes."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from attnbench.report.progress.run_progress import Live
from builders import case, decode, ended, ok, run


def test_what_a_run_says_as_it_goes() -> None:
    records = [
        ok(case(16384), "triton", 300.0),
        decode(16384, "triton", 12.0),
        ended(case(16384), "fa4", "wrong-kernel", "sgemm ran", seconds=1.0),
    ]
    made = run(records)
    stream = io.StringIO()
    live = Live(Console(file=stream, width=200))
    live.planned(replace(made, records=()), made.plan, None, ())
    for job, record in zip(made.plan, records, strict=True):
        live.ended(job, record)
    live.close()
    said = stream.getvalue()
    assert "triton 16k d128 full fwd  300 TFLOP/s 30%\n" in said
    assert "triton 1x16k d128 full fwd  12.0 TFLOP/s 63%m\n" in said
    assert "fa4 16k d128 full fwd  KERNEL! sgemm ran\n" in said


def test_a_run_of_several_dtypes_names_them_as_it_goes() -> None:
    records = [ok(case(dtype=dtype), "triton", 300.0) for dtype in ("bf16", "fp8")]
    made, stream = run(records), io.StringIO()
    live = Live(Console(file=stream, width=200))
    live.planned(replace(made, records=()), made.plan, None, ())
    for job, record in zip(made.plan, records, strict=True):
        live.ended(job, record)
    live.close()
    assert "triton 1k d128 full fwd bf16  300" in stream.getvalue()
    assert "triton 1k d128 full fwd fp8  300" in stream.getvalue()
