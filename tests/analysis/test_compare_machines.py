"""Run files -> machines: which are one, what they are called, what each costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.analysis.compare import prices
from attnbench.analysis.compare.cautions import cautions
from attnbench.analysis.compare.compare import compare
from attnbench.analysis.compare.machines import Machine, machines, named, parse_names, reference
from attnbench.core.errors import UserError
from attnbench.core.record import Run
from builders import CPU, H200, case, environment, ok, run

H100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory=80 * 2**30)


def a_run(device=H200, tflops: float = 500, rounds: int = 1, **environment_: object) -> Run:  # type: ignore[no-untyped-def]
    found = run([ok(case(), "triton", tflops, round=i) for i in range(rounds)], device=device)
    return replace(found, environment=environment(device, **environment_))


def made(*runs: Run, names: dict[Path, str] | None = None) -> list[Machine]:
    return machines([Path(f"{i}.jsonl") for i in range(len(runs))], runs, names)


def labels(*runs: Run, **rest: dict[Path, str]) -> list[str]:
    return [machine.label for machine in made(*runs, **rest)]


def test_names_are_short_and_say_what_differs() -> None:
    assert labels(a_run(), a_run(H100)) == ["H200", "H100 80GB HBM3"]
    assert labels(a_run(), a_run(power_limit_w=500.0)) == ["H200 700 W", "H200 500 W"]
    assert labels(a_run(), a_run(torch="2.12.0")) == ["H200 torch 2.11.0+cu130", "H200 torch 2.12.0"]
    assert labels(a_run(), a_run(power_limit_w=500.0), a_run(power_limit_w=500.0, torch="2.12.0")) == [
        "H200 700 W torch 2.11.0+cu130",
        "H200 500 W torch 2.11.0+cu130",
        "H200 500 W torch 2.12.0",
    ]
    assert labels(a_run(), a_run(packages={"triton": "3.6.0"})) == ["H200 #1", "H200 #2"]
    epyc = replace(CPU, name="AMD EPYC 9654 96-Core Processor (192 cores)")
    xeon = replace(CPU, name="Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz (8 cores)")
    assert labels(a_run(epyc), a_run(xeon)) == ["EPYC 9654 CPU", "Xeon Platinum 8480+ CPU"]


def test_files_of_one_machine_are_its_rounds() -> None:
    one, other = made(a_run(rounds=2), a_run(H100), a_run(rounds=3))
    ((key, logs),) = one.log_latencies.items()
    assert list(logs) == [0, 1, 2, 3, 4]
    assert [file.path.name for file in one.files] == ["0.jsonl", "2.jsonl"]
    assert other.log_latencies.keys() == {key}


def test_alike_files_alone_stand_each_for_itself() -> None:
    assert labels(a_run(), a_run()) == ["H200 #1", "H200 #2"]


def test_a_name_joins_and_parts() -> None:
    lab = {Path("0.jsonl"): "lab", Path("1.jsonl"): "lab", Path("2.jsonl"): "cloud"}
    assert [(m.label, len(m.files)) for m in made(*[a_run()] * 3, names=lab)] == [("lab", 2), ("cloud", 1)]
    with pytest.raises(UserError, match="not of the same machine"):
        made(a_run(), a_run(H100), names=lab)


@pytest.mark.parametrize(
    ("option", "said"),
    [("x.jsonl=lab", "is none of the files"), ("lab", "is not FILE=LABEL"), ("a.jsonl=", "is not FILE=LABEL")],
)
def test_names_that_cannot_be_are_one_line(option: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_names([option], [Path("results/a.jsonl")])


def test_a_file_is_named_by_path_or_name() -> None:
    path = Path("results/a.jsonl")
    for word in ("results/a.jsonl", "a.jsonl", "a"):
        assert parse_names([f"{word} = my lab"], [path]) == {path: "my lab"}


def test_the_reference_is_the_first_or_the_one_named() -> None:
    found = made(a_run(), a_run(H100), a_run(power_limit_w=500.0))
    assert reference(found, None) is found[0]
    assert reference(found, "h100") is found[1]
    with pytest.raises(UserError, match="fits several machines: H200 700 W and H200 500 W"):
        reference(found, "H200")
    with pytest.raises(UserError, match='did you mean "H200 500 W"'):
        reference(found, "H200 550 W")


def test_a_part_of_a_name_is_whole_words() -> None:
    found = made(a_run(), a_run(H100), a_run(replace(H200, name="NVIDIA GH200 480GB")))
    assert [m.label for m in named(found, "h200", "--to")] == ["H200"]


def test_prices() -> None:
    found = made(a_run(), a_run(H100))
    by_hour = prices.parse_prices(["h200=3.40/h", "H100 = $2/hr"], found)
    assert {label: (p.amount, p.per) for label, p in by_hour.items()} == {
        "H200": (3.40, "hour"),
        "H100 80GB HBM3": (2.0, "hour"),
    }
    assert by_hour["H200"].buys(500) == pytest.approx(500 * 3600 / 3.40 / 1000)
    assert prices.parse_price("x=32,000")[1].buys(500) == pytest.approx(500 / 32)
    assert prices.parse_price("x=$1,032,000.50")[1].amount == 1032000.5
    assert str(prices.parse_price("x=3.40")[1]) == "$3.40 to buy"


def test_a_whole_name_goes_before_a_part_of_it() -> None:
    found = made(a_run(), a_run(power_limit_w=500.0))
    got = prices.parse_prices(["h200=3/h", "h200 500 W=2/h"], found)
    assert {label: price.amount for label, price in got.items()} == {"H200 700 W": 3.0, "H200 500 W": 2.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["h200"], "is not NAME=PRICE"),
        (["h200=cheap"], "is not NAME=PRICE"),
        (["h200=0"], "not above 0"),
        (["H300=3/h"], 'did you mean "H200"'),
        (["h200=300", "NVIDIA=400"], None),
        (["NVIDIA=300", "80GB=400"], "two prices"),
        (["h200=3,40/h"], "is not NAME=PRICE"),
        (["h200=€3/h"], "is not NAME=PRICE"),
        (["h200=3/h", "h100=30000"], "the same way"),
    ],
)
def test_prices_that_cannot_be_are_one_line(options: list[str], said: str | None) -> None:
    found = made(a_run(), a_run(H100))
    if said is None:
        assert prices.parse_prices(options, found)["H200"].amount == 300
        return
    with pytest.raises(UserError, match=said):
        prices.parse_prices(options, found)


def warnings(*runs: Run) -> list[str]:
    """Return what is doubted beside intervals and the lack of power readings, which are the first and the last."""
    _, *found, _ = cautions(compare([Path(f"{i}.jsonl") for i in range(len(runs))], runs))
    return [str(caution) for caution in found]


def test_every_difference_in_software_is_a_warning() -> None:
    theirs = {"torch": "2.12.0", "driver": "590.1", "packages": {"flash-attn": "2.8"}, "power_limit_w": 500.0}
    ours, other = a_run(), a_run(**theirs)  # type: ignore[arg-type]
    lines = warnings(replace(ours, versions={"triton": "3.6"}), replace(other, versions={"triton": "3.7"}))
    said = ["torch differs", "driver differs", "flash-attn differs: not there", "triton differs", "The power limit of"]
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True)), lines
    assert not warnings(a_run(), a_run(CPU)), "hardware is what is compared"


def test_a_library_that_one_machine_lacks_is_named_once() -> None:
    without = a_run(replace(H200, name="A"))
    others = [
        replace(a_run(replace(H200, name=name), packages={"triton": version}), versions={"triton": version})
        for name, version in (("B", "2.7"), ("C", "2.8"))
    ]
    assert warnings(without, *others) == [
        "triton differs: not there on A, 2.7 on B, 2.8 on C. It may explain a part of the ratio."
    ]


def test_a_clock_held_down_and_a_backend_never_tried_are_warnings() -> None:
    held = ok(case(), "triton", 500, clock_held=1.4e9, limits=("power cap",))
    lines = warnings(run([held]), run([ok(case(), "fa4", 600)], device=H100))
    assert [line.partition(":")[0] for line in lines] == [
        "H200 was not measured with what is fastest on another",
        "H100 80GB HBM3 was not measured with what is fastest on another",
        "A limit held the clock below its best",
    ]
    assert "H200 in 1 of 1 case" in lines[-1]
