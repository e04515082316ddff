"""The table of devices on which each backend gave right results comes from the run files only."""

from __future__ import annotations

from dataclasses import replace

import where_tried as computed

from attnbench.core.case import Case, Shape
from attnbench.core.record import Record
from attnbench.results import run_file
from attnbench.results.where_tried import UNVERIFIED, features, right_on_gpus, text, trials

DENSE = Case(Shape(2, 64, 64, 4, 4, 64, 64), "bf16", "fwd")
RUN, _ = run_file.read(computed.RESULTS / "20261124-123458-claims-nvidia-h100.jsonl.gz")


def test_the_table_is_what_the_run_files_say() -> None:
    """The table equals the run files'. Renew it with: python tests/results/where_tried.py"""
    assert computed.TABLE.read_text(encoding="utf-8") == computed.table()


def found(
    backend: str, case: Case, status: str = "ok", spec: str = "attnbench.backends.x:Old"
) -> list[tuple[str, ...]]:
    record = Record(case, backend, 0, status, version="1.2, code 77, without HDIM96")  # type: ignore[arg-type]
    run = replace(RUN, records=[record], specs={backend: spec})
    return [(device, direction, feature) for _, device, _, direction, feature in computed.of_run(run)]


def test_only_what_was_right_counts() -> None:
    both = replace(DENSE, direction="fwd_bwd", sink=True)
    assert sorted(found("triton", both)) == [("NVIDIA H100", "bwd", "sinks"), ("NVIDIA H100", "fwd", "sinks")]
    assert found("triton", DENSE) == [("NVIDIA H100", "fwd", "dense")]
    assert not any(found("triton", DENSE, status) for status in ("wrong", "wrong-kernel", "skipped", "oom", "failed"))
    assert found("triton", DENSE, spec="/home/me/mine.py:triton") == []
    assert found("mine", DENSE) == []
    assert found("ulysses-triton", DENSE) == []  # on one device it splits nothing
    assert found("ulysses-triton", replace(DENSE, ranks=2)) == [("2 NVIDIA H100", "fwd", "dense")]


def test_what_is_shown() -> None:
    assert text("no-such-backend") == UNVERIFIED
    assert text("fa1") == "NVIDIA H100, flash-attn 1.0.9"
    assert text("flashinfer-cudnn").endswith(", forward")
    assert "AMD EPYC" in text("eager")
    assert "dense" in right_on_gpus("eager")
    assert all(one.forward or one.backward for of in trials().values() for one in of)
    assert features(replace(DENSE, lengths=((1, 8, 8), (1, 64, 64)), alibi=True)) == ("ALiBi", "ragged batches")
