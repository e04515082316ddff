"""From run files to machines: which files are one machine, their names, and their costs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analysis.compare import money
from attnbench.analysis.compare.cautions import cautions
from attnbench.analysis.compare.findings import compare
from attnbench.analysis.compare.machines import Machine, machines, named, parse_names, reference
from attnbench.analysis.compare.money import Offer
from attnbench.core.errors import UserError
from attnbench.core.machine import Device
from attnbench.core.record import Run, Search
from builders import CPU, H200, case, environment, ok, run

H100 = replace(H200, name="NVIDIA H100 80GB HBM3", memory=80 * 2**30)
H100_LABEL = "H100 80GB HBM3"


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
    power, both = a_run(power_limit_w=500.0), a_run(power_limit_w=500.0, torch="2.12.0")
    assert labels(a_run(), power, both) == ["H200 700 W", "H200 500 W"]
    assert labels(a_run(), a_run(packages={"triton": "3.6.0"})) == ["H200 #1", "H200 #2"]
    dates = (replace(a_run(), method=n, started=f"2026-11-2{n}T10:00:00+00:00") for n in (1, 2))
    assert labels(*dates) == ["H200 2026-11-21", "H200 2026-11-22"]
    assert labels(replace(a_run(), method=1), replace(a_run(), method=2)) == ["H200 method 1", "H200 method 2"]
    epyc = replace(CPU, name="AMD EPYC 9654 96-Core Processor (192 cores)")
    xeon = replace(CPU, name="Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz (8 cores)")
    assert labels(a_run(epyc), a_run(xeon)) == ["EPYC 9654 CPU", "Xeon Platinum 8480+ CPU"]


def test_files_of_one_machine_are_its_rounds() -> None:
    one, other = made(a_run(rounds=2), a_run(H100), a_run(rounds=3))
    ((key, logs),) = one.log_rounds.items()
    assert list(logs) == [0, 1, 2, 3, 4]
    assert [file.path.name for file in one.files] == ["0.jsonl", "2.jsonl"]
    assert other.log_rounds.keys() == {key}
    assert len(made(a_run(), a_run(H100), a_run(variables={"A": "1"}))) == 3


def test_files_of_one_model_are_one_machine_whatever_their_software() -> None:
    """Files of one model are one machine. A cell has its newest method and last version; other software is reported."""
    later = {"started": "2026-11-24T10:00:00+00:00"}
    old = replace(a_run(tflops=400), versions={"triton": "3.5"}, method=1)
    new = replace(a_run(tflops=500, rounds=2, torch="2.12.0"), versions={"triton": "3.6"}, method=2)
    newest = replace(a_run(tflops=600), versions={"triton": "3.7"}, method=2, **later)  # type: ignore[arg-type]
    for files in ((old, newest, new), (new, newest, old)):
        machine, _ = made(*files, a_run(H100))
        ((_, cell),) = machine.cells.items()
        assert cell.value("tflops") == pytest.approx(600)
        assert (machine.run.method, machine.older) == (2, {"triton": 3})
        assert machine.run.versions == {"triton": "3.7"}
    assert made(old, a_run(H100))[0].run.method == 1
    found = cautions(compare([Path(f"{i}") for i in range(4)], [*files, a_run(H100)]))
    assert any(str(c).startswith("Of H200, 3 rounds by an older method or version are not used") for c in found)


def test_what_says_nothing_for_a_comparison_is_left_out_and_named() -> None:
    search = replace(a_run(), search=Search("batch", 1.0))
    runs = [a_run(), a_run(H100), search]
    got = compare([Path("a"), Path("b"), Path("c.jsonl")], runs)
    assert [machine.label for machine in got.machines] == ["H200", "H100 80GB HBM3"]
    assert "1 file left out: c.jsonl (a search of a batch, or within --memory)." in map(str, cautions(got))
    limits = replace(a_run(), search=Search("seqlen", 1.0), records=())
    alone = compare([Path("a"), Path("b"), Path("c.jsonl")], [a_run(), a_run(), limits])
    assert [len(machine.files) for machine in alone.machines] == [1, 1], "of one model each file stands for itself"
    assert "1 file left out: c.jsonl (no time of a call)." in map(str, cautions(alone))
    with pytest.raises(UserError, match="do not compare machines"):
        compare([Path("a"), Path("b")], [search, search])
    with pytest.raises(UserError, match=r"one machine is left, without b \(a search of a batch, .*\); give"):
        compare([Path("a"), Path("b")], [a_run(), search])


def test_a_machine_without_a_case_in_common_is_left_out() -> None:
    """The largest set of machines with a common case is compared, with the machine of --to in it, or else the first."""
    gpus, cpu = [a_run(), a_run(H100)], run([ok(case(dtype="fp32"), "eager", 1)], device=CPU)
    got = compare([Path("a"), Path("b"), Path("c")], [cpu, *gpus], prices=("epyc=1/h", "h200=3/h", "h100=2/h"))
    assert (got.labels, got.reference.label, {*got.prices}) == (("H200", H100_LABEL), "H200", {"H200", H100_LABEL})
    why = f"EPYC CPU has no case in common with H200 and {H100_LABEL}: dtype bf16 on H200, fp32 on EPYC CPU"
    assert got.machines_left_out == {"EPYC CPU": why}
    assert f"Left out: {why}." in map(str, cautions(got))
    b200 = run([ok(case(), "triton", 900), ok(case(2048), "triton", 900)], device=replace(H200, name="NVIDIA B200"))
    longer = run([ok(case(2048), "triton", 1)], device=CPU)
    found = [longer, b200, *gpus]
    assert compare([Path("a"), Path("b"), Path("c"), Path("d")], found).labels == ("B200", "H200", H100_LABEL)
    assert compare([Path("a"), Path("b"), Path("c"), Path("d")], found, to="epyc").labels == ("EPYC CPU", "B200")
    for files, ask in (([cpu, *gpus], {"to": "epyc"}), ([cpu, gpus[0]], {})):
        with pytest.raises(UserError, match="EPYC CPU and H200 have no case in common: dtype fp32 on EPYC CPU"):
            compare([Path(f"{i}") for i in range(len(files))], files, **ask)


def test_a_name_joins_and_parts() -> None:
    lab = {Path("0.jsonl"): "lab", Path("1.jsonl"): "lab", Path("2.jsonl"): "cloud"}
    assert [(m.label, len(m.files)) for m in made(*[a_run()] * 3, names=lab)] == [("lab", 2), ("cloud", 1)]
    with pytest.raises(UserError, match="not of the same machine"):
        made(a_run(), a_run(H100), names=lab)


def test_a_file_is_named_by_path_or_name() -> None:
    path = Path("results/a.jsonl")
    for word in ("results/a.jsonl", "a.jsonl", "a"):
        assert parse_names([f"{word} = my lab"], [path]) == {path: "my lab"}
    for option, said in (("x.jsonl=lab", "is none of the files"), ("lab", "is not FILE=L"), ("a=", "is not FILE=L")):
        with pytest.raises(UserError, match=said):
            parse_names([option], [path])


def test_the_reference_is_the_first_or_the_one_named() -> None:
    found = made(a_run(), a_run(H100), a_run(power_limit_w=500.0))
    assert reference(found, None) is found[0]
    assert reference(found, "h100") is found[1]
    with pytest.raises(UserError, match="fits several machines: H200 700 W and H200 500 W"):
        reference(found, "H200")
    with pytest.raises(UserError, match='did you mean "H200 500 W"'):
        reference(found, "H200 550 W")
    grace = made(a_run(), a_run(replace(H200, name="NVIDIA GH200 480GB")))
    assert [m.label for m in named(grace, "h200", "--to")] == ["H200"], "a part of a name is whole words"


@pytest.mark.parametrize(
    ("text", "amount", "gpus", "hours", "bought", "shown"),
    [
        ("2500 / month", 2500.0, 1, 730.5, False, "$2,500.00/mo"),
        ("27.20/8gpu/h", 27.2, 8, 1.0, False, "$27.20/8gpu/h"),
        ("32000/20000h", 32000.0, 1, 20000.0, True, "$32,000/20000h"),
        ("280000/8gpus/4.5 years", 280000.0, 8, 4.5 * 8766.0, True, "$280,000/8gpu/4.5y"),
        ("$1,032,000.50", 1032000.5, 1, None, True, "$1,032,000.50"),
        ("3.40", 3.4, 1, None, True, "$3.40 to buy"),
        ("€3/h", 3.0, 1, 1.0, False, "€3.00/h"),
        ("3 chf/h", 3.0, 1, 1.0, False, "CHF 3.00/h"),
    ],
)
def test_what_a_price_may_be(
    text: str, amount: float, gpus: int, hours: float | None, bought: bool, shown: str
) -> None:
    name, price = money.parse_price(f"x={text}")
    assert (name, price.amount, price.gpus, price.hours, price.bought) == ("x", amount, gpus, hours, bought)
    assert str(price) == shown


@given(st.text(alphabet="0123456789._,/ $€gpuhydmoCHF=-en", max_size=24))
def test_any_text_is_a_price_that_can_be_computed_with_or_an_error(text: str) -> None:
    try:
        _, price = money.parse_price(f"x={text}")
    except UserError:
        return
    found = Offer(price, 0.0)
    assert 0 < found.cost < math.inf
    assert 0 < found.buys(500) < math.inf
    assert str(price)


def test_whose_price_it_is_and_in_which_currency() -> None:
    found = made(a_run(), a_run(power_limit_w=500.0))
    got = money.parse_prices(["h200=3/h", "h200 500 W=€2/h"], found)  # a whole name precedes a part of it
    assert {label: str(price) for label, price in got.items()} == {"H200 700 W": "€3.00/h", "H200 500 W": "€2.00/h"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["h200"], "is not NAME=PRICE"),
        (["h200=0"], "not above 0"),
        (["H300=3/h"], 'did you mean "H200"'),
        (["NVIDIA=300", "80GB=400"], "two prices"),
        (["h200=3,40/h"], "is not NAME=PRICE"),
        (["h200=3/h", "h100=30000"], "some prices are for a time"),
        (["h200=€3/h", "h100=$2/h"], r"in \$ and €; give all prices in one currency"),
        (["h200=" + "9" * 400 + "/h"], "the price is not above 0, or over 1e\\+12"),
        (["h200=3/0gpu/h"], "the number of GPUs is not above 0, or over 1024"),
        (["h200=3/0y"], "the time is not above 0"),
        (["h200=3/" + "9" * 400 + "y"], "the time is not above 0, or over 1e\\+06"),
        (["h200=3/fortnight"], "is not NAME=PRICE"),
    ],
)
def test_prices_that_cannot_be_are_one_line(options: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        money.parse_prices(options, made(a_run(), a_run(H100)))


def warnings(*runs: Run) -> list[str]:
    """Return the cautions, without those on intervals and on missing power readings."""
    found = [*map(str, cautions(compare([Path(f"{i}.jsonl") for i in range(len(runs))], runs)))]
    return [line for line in found if not line.startswith(("Intervals are 95 %", "The power without pauses"))]


def test_every_difference_in_software_is_a_warning() -> None:
    theirs = {"torch": "2.12.0", "driver": "590.1", "packages": {"flash-attn": "2.8"}, "power_limit_w": 500.0}
    ours, other = a_run(), a_run(**theirs)  # type: ignore[arg-type]
    lines = warnings(replace(ours, versions={"triton": "3.6"}), replace(other, versions={"triton": "3.7"}))
    said = [
        "The machines have unlike versions of triton (1 case). A ratio includes",
        "torch differs",
        "driver differs",
        "flash-attn differs: not there",
        "triton differs",
        "The power limit of",
    ]
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True)), lines
    assert not warnings(a_run(), a_run(CPU)), "hardware is what is compared"
    (line,) = warnings(a_run(), replace(a_run(H100), method=2))
    assert line.startswith("The measuring method differs: method 1 on H200, method 2 on H100 80GB HBM3.")


def test_libraries_of_another_interpreter_count_as_those_of_the_main_one() -> None:
    """Versions of libraries that a backend reports count, from any interpreter; other libraries are unknown there."""

    def of(device: Device, version: str, **rest: Any) -> Run:
        ran = ok(case(), "fa3", 500, version=f"torch 2.9.0, flash-attn-3 {version}")
        return run([ran], versions={"fa3": ran.version}, environment=environment(device, **rest))

    main = of(H200, "3.0.0", packages={"flash-attn-3": "3.0.0", "xformers": "0.0.35"})
    apart, newer = (replace(of(H100, v), interpreters={"fa3": "fa3/bin/python"}) for v in ("3.0.0", "3.1.0"))
    assert not warnings(main, apart)
    assert warnings(main, newer)[1].startswith("flash-attn-3 differs: 3.0.0 on H200, 3.1.0 on H100 80GB HBM3.")
    lacks = replace(apart, interpreters={})
    assert warnings(main, lacks)[0].startswith("xformers differs: 0.0.35 on H200, not there on H100 80GB HBM3.")
    apart, newer = (replace(of_h100, environment=environment()) for of_h100 in (apart, newer))
    same, other = (compare([Path("a"), Path("b")], [main, of_h200]) for of_h200 in (apart, newer))
    assert (same.one_setup, other.one_setup) == (True, False)


def test_a_clock_held_down_is_a_warning() -> None:
    held = ok(case(), "triton", 500, clock_held=1.4e9, limits=("power cap",))
    (line,) = warnings(run([held]), run([ok(case(), "triton", 600)], device=H100))
    assert line.startswith("A limit held the clock below its best: H200 in 1 of 1 case")


def offer(text: str, energy: float = 0.0) -> Offer:
    return Offer(money.parse_price(f"x={text}")[1], energy)


def test_what_a_dollar_buys() -> None:
    assert offer("3.40/h").buys(500) == pytest.approx(500e12 * 3600 / 3.40 / 1e15)
    assert offer("27.20/8gpu/h").buys(500) == pytest.approx(500e12 * 3600 / 3.40 / 1e15)
    assert offer("32000/10000h", energy=0.2).cost == pytest.approx(3.4)
    assert offer("32,000").buys(500) == pytest.approx(500 / 32)
    assert [offer(text).unit("GB/s") for text in ("3/h", "3")] == ["TB/$", "GB/s per $1,000"]


def test_energy_is_that_of_what_was_bought() -> None:
    ours = [ok(case(), "fa3", 600, sustained=1e-3, sustained_power=700.0)]
    runs = [run(ours), run(ours, device=H100)]
    paths = [Path("a"), Path("b")]
    got = compare(paths, runs, prices=("h200=35064/4y", "h100=2/h"), energy_price=0.2, pue=1.5)
    offers = [got.offer(label) for label in got.labels]
    assert [offer and offer.cost for offer in offers] == pytest.approx([1.0 + 0.7 * 0.2 * 1.5, 2.0])
    got = compare(paths, runs, prices=("h200=35064/4y",), energy_price=0.2)
    assert (worth := got.worth_below(got.main, "H100 80GB HBM3"))
    assert worth.value == pytest.approx(35064), "a machine without a price is bought as the other, with its own power"


@pytest.mark.parametrize(
    ("price", "energy_price", "pue", "said"),
    [
        ("3/h", 0.2, None, "needs the price of a purchase with a lifetime"),
        ("32000/4y", float("nan"), None, "--energy-price: nan is not a number from"),
        ("32000/4y", 0.2, 0.9, "--pue: 0.9 is not a number from 1 to 10"),
        ("32000/4y", None, 1.3, "--pue needs --energy-price"),
        ("32000/4y", 0.2, None, "the power of H200's work was not measured; measure all with run --sustained 10s"),
    ],
)
def test_energy_that_cannot_be_is_one_line(
    price: str, energy_price: float | None, pue: float | None, said: str
) -> None:
    asked: dict[str, Any] = {"prices": (f"h200={price}",), "energy_price": energy_price, "pue": pue}
    with pytest.raises(UserError, match=said):
        compare([Path("a"), Path("b")], [a_run(), a_run(H100)], **asked)
