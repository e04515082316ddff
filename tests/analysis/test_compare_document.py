"""A comparison as a document, in every format: table, markdown, HTML, CSV, JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.analysis.baseline.reduce_run import reduced
from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.cautions import cautions
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.analysis.compare.tables import tables
from attnbench.core.machine import Device
from attnbench.core.record import Run
from attnbench.render import json_and_csv
from builders import H200, case, ended, ok, run

H100 = replace(H200, name="NVIDIA H100")
WOBBLE = (0.0, 0.001, -0.001, 0.0005, -0.0005)


def a_run(device: Any, factor: float, rounds: int = 3, **rest: Any) -> Any:
    records = [
        ok(case(n, causal=causal), backend, tflops * factor * (1 + WOBBLE[i]), round=i, n=10, **rest)
        for n in (1024, 2048)
        for causal in (False, True)
        for backend, tflops in (("eager", 100), ("triton", 400))
        for i in range(rounds)
    ]
    return run(records, device=device)


def json_of(c: Comparison) -> Any:
    return json.loads(json_and_csv.json_text(document(c)))


def warnings(c: Comparison) -> list[str]:
    return [str(caution) for caution in cautions(c)]


def of(*factors: float, rounds: int = 3) -> str:
    """Return the first sentence of the answer for machines with these speeds."""
    runs = [a_run(replace(H200, name=f"M{i}"), factor, rounds) for i, factor in enumerate(factors)]
    return answer(compare([Path(f"{i}") for i in range(len(runs))], runs))[0]


def test_what_cannot_be_told_apart_is_said_so() -> None:
    assert "M1 and M0 cannot be told apart: 1.000x" in of(1.0, 1.0)
    assert "M1 and M0 cannot be told apart: 1.050x" in of(1.0, 1.05), "two cards of one model may differ by as much"
    assert "M1 is 1.08" in of(1.0, 1.08)
    assert "M1 and M0 cannot be told apart: 1.010x" in of(1.0, 1.01, rounds=1)
    assert "M1 is 1.080x" in of(1.0, 1.08, rounds=1)


def test_like_with_like_comes_before_what_a_missing_backend_does() -> None:
    ours, theirs = a_run(H200, 1.0), a_run(H100, 1.168)
    better = [ok(r.case, "fa4", 467, round=r.round) for r in ours.records if r.backend == "eager"]
    without = [ended(r.case, "fa4", "skipped", "no bf16", round=r.round) for r in better]
    runs = [replace(ours, records=(*ours.records, *better)), replace(theirs, records=(*theirs.records, *without))]
    more = compare([Path("a"), Path("b")], runs, prices=("h200=2/h", "h100=2/h"))
    speed, money = answer(more)
    assert re.match(r"H100 is 1\.17x .* own fastest backend 1\.000x \(\S+ to \S+\)\.", speed)
    assert "H100 has no figure of fa4 (the fastest in 4 cases on H200)." in warnings(more)
    assert re.match(r"For the money, in bursts, H100 gives 1\.17x .* own fastest backend 1\.000x", money)
    assert "own fastest" not in of(1.0, 2.0)
    slower = [r if r.backend != "eager" else ok(r.case, "eager", 60, round=r.round, n=10) for r in ours.records]
    alike = compare([Path("a"), Path("b")], [ours, replace(theirs, records=tuple(slower))])
    assert "own fastest" not in answer(alike)[0], "each ran triton: that eager differs is not told here"


def test_without_prices_the_share_of_the_price_is_told() -> None:
    ask = [Path("a"), Path("b")], [a_run(H200, 1.0), a_run(H100, 0.5)]
    assert re.match(r"H100 is worth it below 0\.500x \(\S+ to \S+\) of the price of H200\.", answer(compare(*ask))[1])
    assert answer(compare(*ask, prices=("h200=4/h",)))[1].startswith("H100 is worth it below $2.00/h ($1.9")


def test_power_can_cost_more_than_what_a_machine_gives() -> None:
    took = ((H200, 1e-3), (H100, 0.1))
    runs = [run([ok(case(), "fa3", 600, sustained=s, sustained_power=700.0)], device=device) for device, s in took]
    got = compare([Path("a"), Path("b")], runs, prices=("h200=3500/10y", "h100=1/4y"), energy_price=1.0)
    assert "H100 is worth it at no price, as its power alone costs more" in answer(got)[1]


def test_per_watt() -> None:
    def of_power(*watts: float) -> str:
        one = [ok(case(), "fa3", 600, sustained=1e-3, sustained_power=w) for w in watts]
        machines = [replace(H200, name=f"M{i}") for i in range(len(watts))]
        runs = [run([record], device=device) for record, device in zip(one, machines, strict=True)]
        return answer(compare([Path(f"{i}") for i in range(len(runs))], runs))[1]

    assert "; per watt M1 gives 1.17x of M0." in of_power(700.0, 600.0)
    assert of_power(700.0, 600.0, 800.0) == "Per watt M1 gives 1.17x, M2 gives 0.875x of M0."


def test_of_several_machines_the_fastest_is_named() -> None:
    assert re.match(r"Fastest is M2: M2 3\.00x .*, M1 2\.00x \(\S+ to \S+\) as fast as M0 in bursts", of(1.0, 2.0, 3.0))
    assert of(1.0, 0.5, 0.4).startswith("Fastest is M0")
    assert of(1.0, 2.0, 2.0).startswith("Fastest are M1 and M2, not shown to differ:")
    assert of(1.0, 1.0, 1.0).startswith("None of the machines was shown to be faster than another")
    runs = [a_run(replace(H200, name=f"M{i}"), factor) for i, factor in enumerate((1.0, 2.0, 3.0))]
    got = compare([Path(f"{i}") for i in range(3)], runs, prices=("m0=1/h", "m1=1/h", "m2=4/h"))
    assert re.match(r"For the money, in bursts, M1 gives 2\.00x .*, M2 gives 0\.750x .* of M0; M", answer(got)[1])


@pytest.mark.parametrize(
    ("cards", "factor", "said"),
    [
        (("a", "a"), 1.02, "one machine, but .* than noise: something may have changed, such as software,"),
        ((None, None), 1.02, "one model and setup, whose units are not all named, but .* changed, such as the unit,"),
        (
            ("a", "b"),
            1.01,
            "2 units of one model and setup, so they differ by noise and the spread between units alone",
        ),
    ],
)
def test_runs_of_one_machine_are_no_choice(cards: tuple[str | None, str | None], factor: float, said: str) -> None:
    runs = [a_run(replace(H200, uuid=card), speed) for card, speed in zip(cards, (1.0, factor), strict=True)]
    (only,) = answer(compare([Path("a"), Path("b")], runs))
    assert re.match(f"These are 2 runs of {said}", only)
    assert f"a cell differs by {factor - 1:.0%} in the median, {factor - 1:.0%} at most" in only
    offers = compare([Path("a"), Path("b")], runs, names=("a=cloud", "b=lab"), prices=("cloud=3/h", "lab=2/h"))
    assert answer(offers)[1].startswith("No price is compared: all machines are of one model,")
    assert offers.for_the_money(offers.main, "lab") is None
    assert not [table for table in tables(offers) if table.name == "money"]


@pytest.mark.parametrize(
    ("mine", "eager", "source", "said"),
    [
        (1.0, 1.0, "bbbb", "between which the code of mine differs, but they differ by no more than noise"),
        (1.1, 1.1, "bbbb", "between which the code of mine differs, but they differ by more than noise"),
        (1.0, 1.0, "aaaa", "so they differ by noise alone; a cell differs by 0%"),
        (1.0, 0.9, "aaaa", "but they differ by more than noise"),  # in one backend that is nowhere the fastest
    ],
)
def test_runs_of_one_machine_say_what_sets_them_apart(mine: float, eager: float, source: str, said: str) -> None:
    def of(source: str, **speeds: float) -> Run:
        records = [ok(case(n), b, f, round=i) for n in (1024, 2048) for b, f in speeds.items() for i in range(5)]
        return run(records, device=replace(H200, uuid="a"), versions={"mine": f"mine, source {source}"})

    runs = [of("aaaa", mine=500, eager=400), of(source, mine=500 * mine, eager=400 * eager)]
    (only,) = answer(compare([Path("a"), Path("b")], runs))
    assert only.startswith(f"These are 2 runs of one machine, {said}"), only


def test_a_baseline_of_one_round_has_no_interval_and_says_so() -> None:
    once = a_run(H200, 1.0, rounds=1)
    found = compare([Path("a"), Path("b")], [reduced(once), a_run(H100, 0.5)])
    assert (ratio := found.main.ratio("H100"))
    assert ratio.low is None
    (said,) = [line for line in warnings(found) if "interval" in line]
    assert said.startswith("No intervals for the figures of a baseline with one round (H200)")


def test_csv_has_a_row_a_cell_and_machine() -> None:
    ours, theirs = a_run(H200, 1.0), a_run(H100, 0.5)
    theirs = replace(theirs, records=(*theirs.records, ended(case(4096), "eager", "oom", "full")))
    ours = replace(ours, records=(*ours.records, ok(case(4096), "eager", 100)))
    found = document(compare([Path("a"), Path("b")], [ours, theirs], prices=("h200=4/h", "h100=1/h"))).rows
    assert len(found) == 9 * 2
    triton = [r for r in found if (r["machine"], r["backend"], r["status"]) == ("H100", "triton", "ok")]
    assert [r["ratio"] for r in triton] == pytest.approx([0.5] * 4)
    assert {(r["fastest"], r["interval_from"]) for r in triton} == {(True, "rounds")}
    (lost,) = [r for r in found if r["status"] == "oom"]
    assert (lost["machine"], lost["ratio"], lost["reason"]) == ("H100", None, "full")


def test_cases_of_one_name_are_told_apart_by_their_batch() -> None:
    records = [ok(case(batch=b), "triton", 100) for b in (1, 2)]
    got = compare([Path("a"), Path("b")], [run(records), run(records, device=H100)])
    (block,) = [b for b in tables(got) if b.name == "cases"]
    assert [row[0] for row in block.rows] == ["1k d128 full fwd b1 h16", "1k d128 full fwd b2 h16"]


def test_a_workload_is_the_answer(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("name: chat\nparts: [{weight: 70%, seqlen: 1k}, {weight: 30%, seqlen: 2k}]")
    paths, runs = [Path("a"), Path("b")], [a_run(H200, 1.0), a_run(H100, 2.0)]
    got = compare(paths, runs, workload=str(file), prices=("h200=1000", "h100=1000"))
    speed, money = answer(got)
    assert speed.startswith("H100 is 2.00x (1.93 to 2.08) as fast as H200 in bursts, on the workload 'chat' with")
    assert "H100 gives 2.00x" in money
    hourly = compare(paths, runs, workload=str(file), prices=("h200=1/h",))
    assert re.search(r"a million tokens of 'chat' cost \$\S+ on H200 \(attention alone, 1 layer\)", answer(hourly)[1])
    assert json_of(got)["workload"]["parts"][0]["share"] == pytest.approx(0.7)
    small = run([ok(case(), "triton", 300)], device=replace(H200, name="M"))
    said, *_ = answer(compare(paths, [runs[0], small], workload=str(file)))
    three = compare([*paths, Path("c")], [*runs, small], workload=str(file))
    assert answer(three)[0].startswith("H100 is 2.00x"), "a machine that cannot run it is beside the answer"
    assert said.startswith("No machine but H200 can run all of the workload 'chat'; attention alone gives ")
    assert said.endswith(" tokens/s on H200. M has no figure for 'part 2', and therefore no figure for the workload.")


def test_figures_without_pauses_stand_beside_those_in_bursts() -> None:
    """The fastest backend without pauses is shown for each machine, and named where another is fastest in bursts."""

    def machine(device: Device, sustained: tuple[float, float]) -> Run:
        names = zip(("fa4", "sdpa-cudnn"), (1.0, 1.05), sustained, strict=True)
        taken = [(n, {"time": (b * 1e-3,) * 10, "sustained": (s * 1e-3,) * 10}) for n, b, s in names]
        return run([ok(case(), name, 300, **of) for name, of in taken], device=device)

    found = compare([Path("a"), Path("b")], [machine(H200, (1.4, 1.25)), machine(H100, (2.5, 2.7))])
    said, *_ = answer(found)
    assert said.startswith("H100 is 0.500x (")
    assert " as fast as H200 without pauses, over 1 case" in said
    assert re.search(r"; in bursts 1\.000x \(\S+ to \S+\) over 1 case\.", said)
    (cases,) = [table for table in tables(found) if table.name == "cases"]
    assert [entry for entry in cases.rows[0] if "sdpa-cudnn" in str(entry)] == ["110 sdpa-cudnn"]
    (changed,) = [line for line in warnings(found) if "rank" in line]
    assert changed.startswith("Bursts and runs without pauses rank backends differently on H200 in 1 pair of cells")
    assert [of["machines"][1]["ratio"] for of in json_of(found)["figures"]] == pytest.approx([0.5, 1.0])
