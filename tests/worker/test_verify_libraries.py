"""How tests/gpu/verify_libraries.py judges its results, on scripted results without a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripted_instruments import QUICK, Events

GPU = Path(__file__).parents[1] / "gpu"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    spec = importlib.util.spec_from_file_location("verify_libraries", GPU / "verify_libraries.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


PROBE = {"version": "flash-attn 2.8.3", "reason": None, "install": None}


def cell(status: str = "ok", **more: Any) -> dict[str, Any]:
    base = {"cell": "4096x4096 16/16 d128 full fwd", "declares": ["flash_fwd"], "status": status, "reason": None}
    return {**base, "kernels": {"flash_fwd_kernel<...>": 1, "fill": 1}, "first_call": 0.5, **more}


def by_do_bench(ratio: float, hz: float = 1.9e9) -> dict[str, Any]:
    """Return a cell of this ratio to do_bench, whose clock was `hz` where attnbench's was 1.9 GHz."""
    both = {"latency": 6e-3, "clock": 1.9e9, "peer_clock": hz, "ratio": ratio, "cycles": ratio * 1.9e9 / hz}
    return cell(peers={"do_bench": both})


def test_right_cells_pass(script: ModuleType) -> None:
    cells = [*map(by_do_bench, (0.985, 1.01, 1.015)), cell("skipped", reason="no fp32", kernels={})]
    line, details, passed = script.judge([PROBE, *cells])
    assert line == "flash-attn 2.8.3: 3 ok, 1 skipped"
    assert passed
    assert "ran: flash_fwd_kernel<...>  declared as flash_fwd" in details
    assert "ran: fill  (not declared)" in details
    assert "attnbench / do_bench: 1.0100, 0.9850 to 1.0150, 3 cells" in details


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([cell(), cell("wrong-kernel", reason="no kernel like 'flash_fwd' ran")], "no kernel like 'flash_fwd' ran"),
        ([by_do_bench(1.03)], "1.0300"),
        ([by_do_bench(r) for r in (0.95, 1.0, 1.0)], "further than 2% from do_bench: 4096x4096"),
        ([by_do_bench(0.96, 1.824e9)], "0.9600, 1.0000 in cycles; 1900 MHz, do_bench 1824 MHz"),
        ([cell("skipped", reason="refused")], ""),
    ],
)
def test_wrong_cells_fail_with_details(script: ModuleType, cells: list[dict[str, Any]], expected: str) -> None:
    _, details, passed = script.judge([PROBE, *cells])
    assert not passed
    assert expected in " ".join(details)


def test_a_missing_library_is_no_failure(script: ModuleType) -> None:
    probe = {"version": None, "reason": "flash_attn is not installed", "install": "pip install flash-attn"}
    assert script.judge([probe]) == (
        "not usable: flash_attn is not installed",
        ["install with: pip install flash-attn"],
        True,
    )


def test_cells_cover_what_is_to_be_verified(script: ModuleType) -> None:
    cases = list(script.cases("cuda"))
    assert {c.shape.headdim for c in cases} == {64, 128, 256}
    assert {(c.direction, c.causal) for c in cases} == {(d, m) for d in ("fwd", "bwd") for m in (False, True)}
    assert {c.dtype for c in cases} == {"bf16", "fp8"}
    assert any(c.shape.nheads_k < c.shape.nheads for c in cases)
    assert any(c.shape.seqlen_q < c.shape.seqlen_k for c in cases)
    assert len({*cases}) == len(cases) <= 30
    features = list(script.features("cuda"))
    assert len({*features}) == len(features)
    assert not {*features} & {*cases}
    assert {(c.is_ragged, c.is_paged, c.latent) for c in features} >= {(True, True, False), (False, True, True)}
    for special in ("sink", "alibi", "append", "mask", "softcap"):
        assert any(getattr(c, special) for c in features)


@pytest.fixture
def peer_timers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    monkeypatch.delitem(sys.modules, "peer_timers", raising=False)
    return importlib.import_module("peer_timers")


def test_a_peer_under_which_the_clock_falls_is_slower_in_seconds_and_not_in_cycles(
    monkeypatch: pytest.MonkeyPatch, peer_timers: ModuleType
) -> None:
    events, flushed = Events(), []
    events.seconds = 6e-3
    monkeypatch.setattr(peer_timers, "pause", lambda _: setattr(events, "hz", 1.97e9))

    def long_burst(launch: Callable[[], object]) -> float:
        launch()
        events.hz = 1.9e9
        return events.seconds * 1.97 / 1.9

    measurer: Any = SimpleNamespace(events=events, flush=lambda: flushed.append(1))
    found = peer_timers.compare_timers(measurer, lambda: None, QUICK, peer_timers.PeerTimer(long_burst, "triton"))
    assert (found.clock, found.peer_clock) == (1.97e9, 1.9e9)
    assert found.ratio == pytest.approx(1.9 / 1.97)
    assert found.cycles == pytest.approx(1.0)
    assert events.before is measurer.flush
    events.seconds = peer_timers.SHORTEST / 2
    assert (
        peer_timers.compare_timers(measurer, lambda: None, QUICK, peer_timers.PeerTimer(long_burst, "triton")) is None
    )


def test_peer_timers_are_those_of_the_library(monkeypatch: pytest.MonkeyPatch, peer_timers: ModuleType) -> None:
    monkeypatch.setattr(peer_timers, "_is_installed", lambda _: True)
    assert [*peer_timers.peer_timers_for("eager")] == ["do_bench"]
    assert [*peer_timers.peer_timers_for("fa2")] == ["do_bench", "benchmark_attn.py", "flash_attn.utils.benchmark"]
    assert [*peer_timers.peer_timers_for("flashinfer-fa3")] == ["do_bench", "flashinfer.testing"]
    monkeypatch.undo()
    assert not peer_timers._is_installed("no_such.module")
