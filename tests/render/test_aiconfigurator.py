"""The tables for aiconfigurator have its columns, units and meaning, and only rows that are what they say."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from attnbench import __version__
from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from attnbench.render.export import trackers
from attnbench.results.cells import cells
from builders import H200, case, ended, ok, run

# The schema of aic-core/src/aiconfigurator_core/systems/data/h100_sxm/attention/vllm/0.24.0/*.parquet in
# ai-dynamo/aiconfigurator 095f58a, as pyarrow reads it.
SCHEMA = {
    **dict.fromkeys(("framework", "version", "device", "op_name", "kernel_source"), "string"),
    **dict.fromkeys(("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "beam_width"), "int64"),
    **dict.fromkeys(("attn_dtype", "kv_cache_dtype"), "string"),
    **dict.fromkeys(("step", "window_size"), "int64"),
    "latency": "double",
    "backend": "string",  # ours: aiconfigurator reads columns by name
}


def table(phase: str, *runs: Run) -> list[dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = trackers.content(f"aiconfigurator-{phase}", cells(runs))
    assert isinstance(found, bytes)
    read = parquet.read_table(io.BytesIO(found))
    assert {of.name: str(of.type).removeprefix("large_") for of in read.schema} == SCHEMA
    assert read.schema.names == [*SCHEMA]
    rows: list[dict[str, Any]] = read.to_pylist()
    return rows


def decode(**changes: Any) -> Case:
    sizes = Shape(64, 1, 8192, 32, 8, 128, 128)
    return Case(sizes, "bf16", "fwd", **{"causal": True, "page_size": 16, **changes})


def test_a_context_row_has_the_latency_in_ms_of_the_fastest_right_backend() -> None:
    causal, window = case(2048, causal=True, nheads_k=4), case(2048, causal=True, window_size=(127, 0))
    found = table(
        "context",
        run(
            [
                ok(causal, "triton", 400, time=[2e-3] * 9),
                ok(causal, "fa3", 600, time=[1.5e-3] * 9),
                ended(causal, "eager", "wrong", "an element is wrong"),
                ok(window, "triton", 400, time=[1e-4] * 9),
            ]
        ),
    )
    common: dict[str, Any] = {"framework": "attnbench", "kernel_source": "attnbench", "version": __version__}
    common |= {"device": "NVIDIA H200"}
    common |= {"op_name": "context_attention", "batch_size": 8, "isl": 2048, "num_heads": 16, "head_dim": 128}
    common |= {"beam_width": 1, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "step": 0}
    assert found == [
        {**common, "backend": "fa3", "num_key_value_heads": 4, "window_size": 0, "latency": pytest.approx(1.5)},
        {
            **common,
            "backend": "triton",
            "num_key_value_heads": 16,
            "window_size": 128,
            "latency": pytest.approx(0.1),
        },
    ]


def test_a_generation_row_counts_the_tokens_before_its_query() -> None:
    (row,) = table("generation", run([ok(decode(cache_dtype="fp8"), "flashinfer", 10, time=[2e-3] * 9)]))
    assert (row["batch_size"], row["isl"], row["step"], row["latency"]) == (64, 1, 8191, pytest.approx(2.0))
    assert (row["attn_dtype"], row["kv_cache_dtype"]) == ("bfloat16", "fp8")


def test_the_cell_most_like_a_call_of_an_engine_has_the_row() -> None:
    """A contiguous cache is faster than pages, and pages than appending to them, but an engine does the latter."""
    found = [
        ok(decode(page_size=0), "sdpa-flash", 10, time=[1e-3] * 9),
        ok(decode(), "flashinfer", 10, time=[2e-3] * 9),
        ok(decode(append=True), "fa2", 10, time=[3e-3] * 9),
    ]
    assert [row["backend"] for row in table("generation", run(found[:1]))] == ["sdpa-flash"]
    assert [row["backend"] for row in table("generation", run(found[:2]))] == ["flashinfer"]
    assert [row["backend"] for row in table("generation", run(found))] == ["fa2"]


def test_cells_that_no_row_can_stand_for_are_left_out() -> None:
    dense = case(1024, causal=True)
    others = [
        case(1024),
        case(1024, causal=True, direction="bwd"),
        case(1024, causal=True, dtype="fp16"),
        case(1024, causal=True, softcap=30.0),
        case(1024, causal=True, headdim_v=64),
        case(1024, causal=True, seqlen_q=512),
        replace(dense, sink=True),
        replace(dense, scale=0.5),
        replace(dense, lengths=((15, 1024, 1024), (1, 512, 512))),
        decode(),
    ]
    kept = table("context", run([ok(of, "triton", 100) for of in [dense, *others]]))
    assert len(kept) == 1
    with pytest.raises(UserError, match=r"^--format aiconfigurator-context: no cell .* --causal --pass fwd$"):
        table("context", run([ok(of, "triton", 100) for of in others]))
    disturbed = run([ok(dense, "triton", 100, others=("python",))])
    assert cells([disturbed])[0].is_disturbed
    with pytest.raises(UserError, match=r"no cell has a latency that a row can stand for"):
        table("context", disturbed)


def test_a_table_is_of_one_device() -> None:
    h100 = run([ok(decode(), "fa2", 10)], device=replace(H200, name="NVIDIA H100"))
    with pytest.raises(UserError, match=r"of one device, not of NVIDIA H100 and NVIDIA H200"):
        table("generation", run([ok(decode(), "fa2", 10)]), h100)
