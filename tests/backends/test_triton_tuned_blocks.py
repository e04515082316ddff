"""Block sizes from timing: the search is bounded, choices are kept in a file, a damaged file is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from attnbench.backends.triton import tuned_blocks

A, B, C = (64, 64, 4, 2), (128, 64, 8, 3), (64, 128, 4, 3)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_fastest_is_chosen() -> None:
    took = {A: 3e-3, B: 1e-3, C: 2e-3}
    best, seconds = tuned_blocks.search([A, B, C], took.__getitem__)
    assert best == B
    assert seconds == {"64x64x4x2": 3e-3, "128x64x8x3": 1e-3, "64x128x4x3": 2e-3}


def test_the_search_stops_at_its_budget_but_tries_one() -> None:
    clock = Clock()

    def slow(_: tuned_blocks.Sizes) -> float:
        clock.now += 12.0  # the time of a compilation
        return 1.0 - clock.now / 1000  # each is faster than the one before

    best, seconds = tuned_blocks.search([A, B, C], slow, budget_s=20.0, clock=clock)
    assert best == B
    assert len(seconds) == 2
    best, seconds = tuned_blocks.search([A, B, C], slow, budget_s=0.0, clock=clock)
    assert best == A
    assert len(seconds) == 1


def test_a_candidate_that_fails_is_left_out() -> None:
    def time_one(sizes: tuned_blocks.Sizes) -> float:
        if sizes != C:
            raise RuntimeError("out of shared memory")
        return 1.0

    assert tuned_blocks.search([A, B, C], time_one)[0] == C
    assert tuned_blocks.search([A, B], time_one) == (A, {})


def test_a_choice_is_added_to_the_others(tmp_path: Path) -> None:
    path = tmp_path / "new" / "triton-blocks.json"
    tuned_blocks.save_choice(path, "one", A, {"64x64x4x2": 1e-3})
    tuned_blocks.save_choice(path, "two", B, {})
    tuned_blocks.save_choice(path, "one", C, {})
    assert {key: tuple(entry["blocks"]) for key, entry in tuned_blocks.read_choices(path).items()} == {
        "one": C,
        "two": B,
    }
    assert [p.name for p in path.parent.iterdir()] == ["triton-blocks.json"]  # no temporary file is left


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 99, "choices": {"k": {"blocks": [1]}}}',
        '{"format": 1}',
        '{"format": 1, "choices": {"k": {}}}',
        '{"format": 1, "choices": {"k": {"blocks": 3}}}',
        '{"format": 1, "choices": 7}',
        "\xff\xfe\x00",
        "[" * 200_000,
    ],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "triton-blocks.json"
    path.write_text(text, encoding="latin-1")  # the last text is not UTF-8
    assert tuned_blocks.read_choices(path) == {}
    tuned_blocks.save_choice(path, "k", A, {})
    assert tuned_blocks.read_choices(path)["k"]["blocks"] == list(A)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tuned_blocks.save_choice(tmp_path / "file" / "triton-blocks.json", "k", A, {})
    assert (tmp_path / "file").read_text() == ""


def test_the_folder_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.delenv("ATTNBENCH_CACHE_DIR", raising=False)
    assert tuned_blocks.cache_file() == tmp_path / "x" / "attnbench" / "triton-blocks.json"
    monkeypatch.setenv("ATTNBENCH_CACHE_DIR", str(tmp_path / "y"))
    assert tuned_blocks.cache_file() == tmp_path / "y" / "triton-blocks.json"


def test_a_gpu_without_a_measured_row_is_timed_only_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from attnbench.backends.triton import block_sizes as config
    from attnbench.backends.triton import launch as launch

    rows = (config.Blocks(*A), config.Blocks(*B), config.Blocks(*C, tma=True))
    timed, ran = [], []

    def seconds(run, _) -> float:
        run()
        timed.append(ran.pop())
        return {A: 3.0, B: 2.0, C: 1.0}[tuple(timed[-1][:4])]

    monkeypatch.setenv("ATTNBENCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config, "device_index", lambda _: 0)
    monkeypatch.setattr(config, "architecture", lambda _: "sm_120")
    monkeypatch.setattr(config, "candidates", lambda *_: rows)
    monkeypatch.setattr(launch, "_time_run", seconds)
    monkeypatch.setattr(launch, "_choices", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    q = torch.zeros(1, 1, 1, 64)

    def call(mask: str = "causal") -> config.Blocks:
        launch.launch_best("fwd", q, q, mask, True, ran.append)
        return ran.pop()

    assert call() == rows[2]
    assert timed == list(rows)
    assert call() == rows[2]
    launch._choices.clear()  # as in another process
    assert call() == rows[2]
    assert len(timed) == 3
    call("full")
    assert len(timed) == 6
    entry = json.loads(tuned_blocks.cache_file().read_text())["choices"]
    assert any(key.startswith("sm_120 triton-") and key.endswith("fwd 64 64 torch.float32 causal tma") for key in entry)

    launch._choices.clear()
    monkeypatch.setenv("ATTNBENCH_TUNE", "0")
    assert call() == rows[0]
    monkeypatch.delenv("ATTNBENCH_TUNE")
    monkeypatch.setattr(config, "candidates", lambda *_: rows[:1])  # as on Hopper
    assert call() == rows[0]
    assert len(timed) == 6


@pytest.mark.parametrize(("architecture", "few"), [("sm_90", True), ("sm_100", False), ("sm_80", False)])
def test_hopper_has_one_candidate(architecture: str, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hopper has one candidate; on other GPUs with tensor descriptors Hopper's row is one of the candidates."""
    pytest.importorskip("triton")
    from attnbench.backends.triton import block_sizes as config

    monkeypatch.setattr(config, "architecture", lambda _: architecture)
    monkeypatch.setattr(config, "has_tma", lambda _: architecture != "sm_80")
    monkeypatch.setattr(config, "_shared_memory_limit", lambda _: 227 * 1024.0)
    found = config.candidates.__wrapped__("dkdv", 128, 128, 2, 0, True, "causal")
    measured = config._HOPPER_MEASURED["dkdv"][128][1]
    plain = config._HALF_PRECISION["dkdv"][128]
    assert found == ((measured,) if few else plain if architecture == "sm_80" else (*plain, measured))
    without = config.candidates.__wrapped__("dkdv", 128, 128, 2, 0, False, "causal")
    assert without == (plain[:1] if few else plain)
    ragged = config.candidates.__wrapped__("dkdv", 128, 128, 2, 0, False, "varlen")
    assert ragged == (config._HOPPER_RAGGED["dkdv"][128] if few else plain)
    forward = config.candidates.__wrapped__("fwd", 64, 64, 2, 0, True, "varlen")
    assert (forward == config._HOPPER_MEASURED["fwd"][64]) == few
    of_short = config.candidates.__wrapped__("fwd", 64, 64, 2, 0, True, "varlen short")
    assert of_short == (config._HOPPER_RAGGED_SHORT["fwd"][64] if few else forward)
    of_fp32 = config.candidates.__wrapped__("dkdv", 128, 128, 4, 0, False, "varlen")
    assert of_fp32[0] == config._SINGLE_PRECISION["dkdv"][128][0]
