"""Margins as people write them, and differences between runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.gate import run_differences
from attnbench.analysis.gate.findings import Request, judge
from attnbench.analysis.gate.margins import RULES, Margins, margins, parse
from attnbench.backends import BACKENDS
from attnbench.core.errors import UserError
from attnbench.core.policy import Policy
from attnbench.core.record import Run
from attnbench.run.shipped_backends import may_use
from builders import CPU, H200, case, ended, environment, ok, run


def test_a_margin_is_a_percentage_or_a_fraction() -> None:
    assert [parse(text, "--margin") for text in ("2.5%", "0.03", "100 %", "0")] == pytest.approx([0.025, 0.03, 1.0, 0])
    for text in ("3", "-3%", "three", "", "nan", "1e-2"):
        with pytest.raises(UserError, match="--margin"):
            parse(text, "--margin")


def test_a_margin_that_judges_nothing_is_told() -> None:
    with pytest.raises(UserError, match="no metric ''"):
        margins(["=3%"])
    before, now = (run([ok(case(), "triton", tflops)]) for tflops in (500, 501))
    request = Request(("latency",), margins=margins(["3%", "joules=3%"]))
    told = "margins: joules is not judged; --metric latency,joules judges it too"
    assert [note for note in judge(before, now, request).notes if note.startswith("margins")] == [told]


def test_a_file_sets_metrics_and_cells_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "margins.yaml"
    file.write_text(
        "latency: 4%\nfirst_call: 100%\n"
        "cells:\n  'triton *': {latency: 5%}\n  'triton 64k *': {latency: 8%, relative_error: 20%}\n"
    )
    found = margins([], file)
    for metric, cell, margin in (
        ("latency", "eager 1k d64", 0.04),
        ("latency", "triton 1k d64", 0.05),
        ("latency", "triton 64k d64", 0.08),
        ("relative_error", "triton 1k d64", RULES["relative_error"].margin),
        ("first_call", "triton 64k d64", 1.0),
    ):
        assert found.of(metric, cell) == margin
    assert found.unused(["triton 1k d64"]) == ["triton 64k *"]
    over = margins(["2%", "first_call=30%"], file)
    assert (over.of("latency", "eager 1k d64"), over.of("cycles", "x"), over.of("first_call", "x")) == (0.02, 0.02, 0.3)
    assert over.of("latency", "triton 1k d64") == 0.05  # the margin of a cell stays


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("latnecy: 3%", 'did you mean "latency"'),
        ("latency: 3", "300 %"),
        ("- latency", "expected"),
        ("cells: {'a *': 3%}", "expected"),
        ("latency: [", "not readable as YAML"),
        ("cells: {'a *': {speed: 3%}}", "no metric 'speed'"),
        ("'a *': {latency: 3%}", "no metric 'a *' to gate; patterns of cells stand below cells:"),
    ],
)
def test_a_file_that_is_wrong_is_one_clear_line(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "margins.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"margins\.yaml") as found:
        margins([], file)
    assert why in str(found.value)
    assert "\n" not in str(found.value)


def test_a_file_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        margins([], tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert margins([], tmp_path / "empty.yaml") == Margins()


def a_run(*, versions: dict[str, str] | None = None, policy: Policy | None = None, **changes: Any) -> Run:
    found = run([ok(case(), "triton", 300)], policy=policy or Policy())
    return replace(found, environment=environment(**changes), versions=versions or {})


def names(ours: Run, theirs: Run) -> list[str]:
    return [d.names[0] for d in run_differences.differences(ours, theirs)]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"device": replace(H200, memory=80 * 10**9)}, "gpu"),
        ({"power_limit_w": 500.0}, "power_limit"),
        ({"cuda": "13.1"}, "torch"),
        ({"attnbench": "0.9"}, "attnbench"),
        ({"clock_max_hz": 1.5e9}, "clock_max"),
        ({"packages": {"triton": "3.5"}}, "triton"),
        ({"cpu": "AMD EPYC"}, "cpu"),
        ({"policy": Policy(l2="warm")}, "l2"),
    ],
)
def test_unlike_things_are_found_by_name(changes: dict[str, Any], name: str) -> None:
    assert names(a_run(), a_run(**changes)) == [name]
    meant, refused, idle = run_differences.split(run_differences.differences(a_run(), a_run(**changes)), [name])
    assert (len(meant), refused, idle) == (1, [], [])
    meant, refused, idle = run_differences.split(run_differences.differences(a_run(), a_run(**changes)), ["threads"])
    assert (meant, len(refused), idle) == ([], 1, ["threads"])


def test_like_things_are_not() -> None:
    assert names(a_run(), a_run()) == []
    assert names(a_run(policy=Policy(seed=1, timeout_s=9)), a_run(policy=Policy(seed=2))) == []
    assert names(a_run(git="abc"), a_run(git="def")) == []


@pytest.mark.parametrize(
    ("backend", "spec", "refused"),
    [
        ("hf-sdpa", "attnbench.backends.transformers.functions:Sdpa", True),
        ("hf-sdpa", None, True),  # from a saved baseline
        ("triton", "attnbench.backends.triton:Triton", False),
        ("fa2", None, False),
        ("mine", "./mine.py:attention", True),  # it may use any library
        ("triton", "other.package:Triton", True),
    ],
)
def test_a_library_that_no_backend_of_both_runs_uses_is_told(backend: str, spec: str | None, refused: bool) -> None:
    def made(version: str, own: str) -> Run:
        records = [*(ok(case(), name, 300) for name in (backend, own)), ended(case(), "hf-eager", "skipped", "no")]
        versions = {"hf-eager": f"transformers {version}"}
        whole = replace(run(records), environment=environment(packages={"transformers": version}), versions=versions)
        return replace(whole, specs={backend: spec} if spec else {})

    found = run_differences.differences(made("5.1", "eager"), made("5.2", "hf-flex_attention"))
    assert [d.names for d in found] == [("transformers", "hf-eager")]
    expected, others, idle = run_differences.split(found, [])
    assert (len(others), expected, idle) == (int(refused), [], [])
    said = ["Also different, but no obstacle to comparing: transformers was 5.1 and is 5.2."]
    assert run_differences.told(found, expected) == ([] if refused else said)
    assert run_differences.split(found, ["transformers"]) == (found, [], [])


def test_backends_name_the_libraries_that_may_move_their_figures() -> None:
    assert {name for name in BACKENDS if may_use(name, None, "transformers")} == {
        name for name in BACKENDS if name.startswith(("hf-", "step-"))
    }
    assert all(may_use(name, None, "triton") for name in BACKENDS), "which none names: torch compiles with it too"
    assert may_use("fa2", "./mine.py:attention", "flash-attn-4")
    assert not may_use("fa2", None, "flash-attn-4")


def test_without_a_gpu_a_library_that_compiles_kernels_for_gpus_is_told() -> None:
    ours, theirs = (a_run(device=CPU, packages=packages) for packages in ({"triton": "3.9.0"}, {}))
    found = run_differences.differences(ours, theirs)
    assert run_differences.split(found, [])[1] == []
    assert "triton was 3.9.0 and is not there" in run_differences.told(found, [])[0]
    on_gpus = [a_run(packages=packages) for packages in ({"triton": "3.9.0"}, {})]
    assert [d.names for d in run_differences.split(run_differences.differences(*on_gpus), [])[1]] == [("triton",)]


def test_another_python_or_platform_is_told() -> None:
    ours, theirs = a_run(), a_run(python="3.13.1", platform="Linux-6.9")
    found = run_differences.differences(ours, theirs)
    assert run_differences.split(found, [])[1] == []
    (said,) = run_differences.told(found, [])
    assert said.endswith("python was 3.12.3 and is 3.13.1; platform was Linux and is Linux-6.9.")
    judged = judge(ours, theirs, Request(("latency",)))
    assert said in judged.notes
    run_differences.check_names(["python", "platform"], [ours])


def test_backends_that_come_with_a_library_differ_with_it() -> None:
    ours = a_run(torch="2.11", versions={"eager": "2.11", "sdpa-flash": "2.11", "fa2": "2.7", "mine": "1"})
    theirs = a_run(torch="2.12", versions={"eager": "2.12", "sdpa-flash": "2.12", "fa2": "2.8", "new": "1"})
    found = run_differences.differences(ours, theirs)
    assert [d.names for d in found] == [("torch", "eager", "sdpa-flash"), ("fa2",)]
    assert (found[1].what, found[1].remedy) == ("fa2 was 2.7 and is 2.8", "--expect fa2")


def test_a_name_that_nothing_has_is_refused() -> None:
    run_differences.check_names(["triton", "torch", "timer"], [a_run()])
    with pytest.raises(UserError, match='did you mean "driver"'):
        run_differences.check_names(["drivr"], [a_run()])


def test_a_backend_answers_for_the_library_that_its_version_names() -> None:
    """A backend stands for the library that its version names, and for torch without its CUDA."""
    ours = a_run(
        torch="2.11.0+cu130",
        packages={"flash-attn": "2.8.3", "xformers": "0.0.3"},
        versions={"fa2": "flash-attn 2.8.3", "sdpa-flash": "torch 2.11.0", "odd": "12.8.3"},
    )
    theirs = a_run(
        torch="2.12.0+cu130",
        packages={"flash-attn": "2.8.4", "xformers": "0.0.4"},
        versions={"fa2": "flash-attn 2.8.4", "sdpa-flash": "torch 2.12.0", "odd": "12.8.4"},
    )
    names = {d.names for d in run_differences.differences(ours, theirs)}
    assert names == {("torch", "sdpa-flash"), ("flash-attn", "fa2"), ("xformers",), ("odd",)}
