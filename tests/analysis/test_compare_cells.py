"""The cells that machines have in common, and the ones that each lacks; the longest sequence; power."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnbench.analysis.compare.answer import answer
from attnbench.analysis.compare.cautions import cautions
from attnbench.analysis.compare.common_cells import NOT_PLANNED, NOT_RUN
from attnbench.analysis.compare.document import document
from attnbench.analysis.compare.figures import Figures
from attnbench.analysis.compare.findings import Comparison, compare
from attnbench.analysis.compare.longest_sequence import Fit
from attnbench.analysis.compare.tables import tables
from attnbench.core import flops
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.formats import digits
from attnbench.core.machine import Device
from attnbench.core.policy import CHECK
from attnbench.core.record import NO_ROOM_TO_CHECK, Measurement, Record, Run, Search
from attnbench.render import terminal
from builders import CPU, H200, case, ended, job, ok, run

H100 = replace(H200, name="NVIDIA H100")
ROOM = "needs 137 GiB of scores; 80 GiB free"


def compared(ours: Sequence[Record], theirs: Sequence[Record], device: Device = H100, **of: Any) -> Comparison:
    """Return the findings of a comparison of two machines; `plan` is the second one's."""
    theirs_ = run(theirs, device=device, plan=of.pop("plan", None))
    return compare([Path("a.jsonl"), Path("b.jsonl")], [run(ours), theirs_], **of)


def refused(seqlen: int, backend: str) -> Record:
    return ended(case(seqlen), backend, "skipped", "its kernels are of another architecture")


def ratio(figures: Figures, label: str = "H100") -> float:
    found = figures.ratio(label)
    assert found
    return found.value


def test_cells_common_to_all_and_the_fastest_backend_of_each() -> None:
    ours = [ok(case(), "eager", 100), ok(case(), "fa3", 600), ok(case(), "triton", 500), ok(case(2048), "fa3", 610)]
    theirs = [ok(case(), "eager", 50), ok(case(), "triton", 400), ok(case(), "fa3", 300), ok(case(4096), "fa3", 300)]
    got = compared(ours, theirs)
    assert [backend for _, backend in got.cells] == ["eager", "triton", "fa3"]
    assert got.cases == (case(),)
    assert [machine.fastest[case()][1] for machine in got.machines] == ["fa3", "triton"]
    (figures,) = got.figures
    assert figures.shared, "each machine's own fastest backend is one that both have"
    assert ratio(figures) == pytest.approx(400 / 600)
    assert [figures.tflops(label) for label in got.labels] == pytest.approx([600, 400])
    assert figures.utilization("H200") == pytest.approx(600 / 989, rel=0.01)


def test_own_code_is_ranked_only_where_there_is_nothing_else() -> None:
    fast, slow = ([ok(case(), "fa3", rate), ok(case(), "mine", 2 * rate)] for rate in (300, 200))
    runs = [replace(run(fast), specs={"mine": "mine.py:attention"}), run(slow, device=H100)]
    runs[1] = replace(runs[1], specs=runs[0].specs)
    got = compare([Path("a.jsonl"), Path("b.jsonl")], runs)
    assert [machine.fastest[case()][1] for machine in got.machines] == ["fa3", "fa3"]
    shown = {table.name: [row[0] for row in table.rows] for table in tables(got, every=True)}
    assert [len(shown[name]) for name in ("cells", "own-code")] == [1, 1]
    assert any("own code: mine" in str(note) for note in document(got).notes)
    alone = compare([Path("a.jsonl"), Path("b.jsonl")], [replace(of, records=of.records[1:]) for of in runs])
    assert [machine.fastest[case()][1] for machine in alone.machines] == ["mine", "mine"]
    assert "own-code" not in {table.name for table in tables(alone, every=True)}


def test_like_is_compared_with_like_first() -> None:
    ours = [ok(case(), "fa4", 600), ok(case(), "triton", 500), ok(case(2048), "fa4", 600), refused(2048, "triton")]
    theirs = [ok(case(), "triton", 550), refused(1024, "fa4"), ok(case(2048), "triton", 500), refused(2048, "fa4")]
    shared, own = compared(ours, theirs).figures
    assert (shared.shared, shared.cases, own.shared, own.cases) == (True, (case(),), False, (case(), case(2048)))
    assert ratio(shared) == pytest.approx(550 / 500)
    assert ratio(own) == pytest.approx((550 / 600 * 500 / 600) ** 0.5)
    ours, theirs = [ok(case(), "fa4", 600)], [ok(case(), "triton", 300)]
    (alone,) = compared([*ours, refused(1024, "triton")], [*theirs, refused(1024, "fa4")]).figures
    assert not alone.shared, "no backend is on both"
    with pytest.raises(UserError, match=r"in common: .*; and in no case did each try the backend that is fastest"):
        compared(ours, theirs)


@pytest.mark.parametrize(
    ("theirs", "counts"),
    [
        (ended(case(), "fa4", "skipped", "no fp8"), True),
        (ended(case(), "fa4", "wrong", "off by 3"), True),
        (ended(case(), "fa4", "failed", f"NoRoomToCheckError: {NO_ROOM_TO_CHECK}"), False),
        (ended(case(), "fa4", "skipped", "the time limit of 1 minute", resumable=True), False),
        (ended(case(), "fa4", "timeout", "no answer within 5m"), False),
        (ended(case(), "sdpa-fa4", "skipped", "sdpa-fa4 is not installed"), False),  # a skipped backend has no version
        (None, False),
    ],
)
def test_totals_of_own_backends_are_of_cases_that_each_machine_tried(theirs: Record | None, counts: bool) -> None:
    """Totals of each machine's own fastest backend omit cases not planned, not installed or left out for time."""
    name = theirs.backend if theirs else "fa4"
    both = [ok(case(n), "triton", 500) for n in (1024, 2048)]
    runs = [run([*both, ok(case(), name, 1000)]), run([*both, *filter(None, [theirs])], device=H100)]
    runs = [replace(one, versions={"triton": "3.6", "fa4": "4.0"}) for one in runs]
    got = compare([Path("a"), Path("b")], runs, prices=("h200=2/h", "h100=2/h"))
    own, said = got.beside(sustained=False, shared=False), " ".join(answer(got))
    assert (got.untried, bool(own)) == (() if counts else (case(),), counts)
    assert got.cases == (case(), case(2048)), "the case list has both"
    if own:
        assert ratio(own) == pytest.approx(0.5**0.5)
        assert said.count("own fastest backend") == 2, "of speed and of money"
        return
    assert (
        "; 1 case is in no total of own fastest backends, as a machine did not try the backend that is fastest on"
        in said
    )
    (table,) = [table for table in tables(got) if table.name == "cases"]
    assert "[1]" in " ".join(map(str, table.rows[0]))
    assert table.footnotes[0].startswith(f"{name} has no figure on H100: ")


def test_kinds_of_own_backends_say_how_many_of_their_cases_count() -> None:
    """Each kind of cases is listed with the number of its counted cases, even if all cases have one dtype."""
    cases = [case(), case(2048), case(dtype="fp16")]
    ours = [*[ok(which, "triton", 500) for which in cases], ok(case(), "fa4", 1000), ok(case(dtype="fp16"), "fa4", 900)]
    got = compared(ours, [*ours[:3], refused(1024, "fa4")])
    (table,) = [table for table in tables(got) if table.name == "groups"]
    shown = [" ".join(str(entry).partition(" (")[0] for entry in row) for row in table.rows]
    assert shown[:2] == ["bf16 d128 full fwd 2 1.000x 0.707x", "fp16 d128 full fwd 1 / 0 1.000x -"]


@pytest.mark.parametrize(("like", "unlike", "counted"), [(2, 2, 2), (3, 0, 3), (1, 3, 4), (0, 2, 2)])
def test_unlike_versions_are_no_shared_backend(like: int, unlike: int, counted: int) -> None:
    """A backend in different versions is not shared if one version has half of the cases.

    Otherwise the answer has the number of cases with different versions.
    """
    lengths = [1024 * 2**n for n in range(like + unlike)]

    def of(device: Device, version: str) -> Run:
        found = [ok(case(n), "fa3", 500, version="1" if i < like else version) for i, n in enumerate(lengths)]
        return run(found, device=device)

    got = compare([Path("a"), Path("b")], [of(H200, "1"), of(H100, "2")])
    assert got.main.shared
    assert len(got.main.cases) == counted
    warned = [str(caution) for caution in cautions(got) if "unlike versions of fa3" in str(caution)]
    assert len(warned) == bool(unlike)
    assert ("of unlike versions" in answer(got)[0]) == (counted > like)
    one_model = compare([Path("a"), Path("b")], [of(H200, "1"), of(H200, "2")])
    assert len(one_model.main.cases) == like + unlike, "what the software differs by may be what is asked"


def test_own_kernels_of_a_changed_checkout_are_of_one_run() -> None:
    def of(device: Device, commit: str, day: str) -> Run:
        records = [ok(case(), "triton", 500), ok(case(), "sdpa-flash", 400)]
        found = run(records, device=device, started=f"2026-11-{day}T00:00:00")
        return replace(found, environment=replace(found.environment, git=commit))

    clean = compare([Path("a"), Path("b")], [of(H200, "abc", "01"), of(H100, "abc", "02")])
    assert {key[1] for key in clean.cells} == {"triton", "sdpa-flash"}
    changed = compare([Path("a"), Path("b")], [of(H200, "abc+dirty", "01"), of(H100, "abc+dirty", "02")])
    assert {key[1] for key in changed.cells} == {"sdpa-flash"}

    def by_code(device: Device, code: str) -> Run:
        return replace(of(device, "abc+dirty", "03"), versions={"triton": f"3.6.0, code {code}"})

    same = compare([Path("a"), Path("b")], [by_code(H200, "1a2b3c4d"), by_code(H100, "1a2b3c4d")])
    assert {key[1] for key in same.cells} == {"triton", "sdpa-flash"}
    other = compare([Path("a"), Path("b")], [by_code(H200, "1a2b3c4d"), by_code(H100, "5e6f7a8b")])
    assert {key[1] for key in other.cells} == {"sdpa-flash"}


def test_many_cases_are_told_by_kind_of_work() -> None:
    lengths = [128 * n for n in range(1, 26)]
    cases = [case(n, direction=pass_) for n in lengths for pass_ in ("fwd", "bwd")]
    cases += [decode(), replace(case(1024), ranks=2)]
    ours, theirs = ([ok(c, "fa3", 5 if c.is_decode else rate) for c in cases] for rate in (500, 400))
    got = compared(ours, theirs)
    found = {table.name: table for table in tables(got)}
    assert {*found} == {"groups", "rates"}
    assert [row[0] for row in found["groups"].rows] == ["prefill", "training", "decode", "prefill, 2 devices", "all"]
    rates = "\n".join(" ".join(map(str, row)) for row in found["rates"].rows)
    assert re.search(r"^prefill compute \d+ 500 TFLOP/s 400 TFLOP/s$", rates, re.MULTILINE)
    assert re.search(r"^decode memory 1 \S+ GB/s \S+ GB/s\ndecode any 1 \S+ tokens/s", rates, re.MULTILINE)
    assert {"cases", "by-memory", "cells"} <= {table.name for table in tables(got, every=True)}
    brief, whole = document(got), document(got, every=True)
    assert len(brief.cautions) <= 3
    assert not any(caution.todo for caution in brief.cautions)
    shown = [io.StringIO() for _ in range(2)]
    for stream, one in zip(shown, (brief, whole), strict=True):
        terminal.render(Console(file=stream, width=80), one)
    screen, every = (len(stream.getvalue().splitlines()) for stream in shown)
    assert screen < 55 < every


def test_groups_are_pass_mask_and_headdim() -> None:
    cases = [case(), case(2048), case(direction="bwd"), case(causal=True), case(headdim=192, headdim_v=128)]
    records = [ok(c, "fa3", 500) for c in cases]
    found = {name: len(of.cases) for name, of in compared(records, records).main.kinds.items()}
    assert found == {"d128 full fwd": 2, "d128 full bwd": 1, "d128 causal fwd": 1, "d192-128 full fwd": 1}


def test_what_is_missing_is_counted_by_reason() -> None:
    ours = [ok(case(n), "eager", 100) for n in (1024, 4096, 8192, 16384, 32768, 65536)]
    theirs = [
        ok(case(), "eager", 100),
        ended(case(4096), "eager", "skipped", "needs 64 GiB of scores; 40 GiB free"),
        ended(case(8192), "eager", "skipped", "needs 128 GiB of scores; 40 GiB free"),
        ended(case(16384), "eager", "wrong", "off by 3"),
    ]
    plan = [job(case(32768), "eager")]
    got = compared(ours, theirs, plan=plan)
    assert [(k.machine, k.why, k.cells, k.where, k.reason) for k in got.missing] == [
        ("H100", "skip", 2, "4k, 8k", "needs 64 GiB to 128 GiB of scores; 40 GiB free"),
        ("H100", "WRONG", 1, "16k", "off by 3"),
        ("H100", NOT_RUN, 1, "32k", ""),
        ("H100", NOT_PLANNED, 1, "64k", ""),
    ]
    assert not compared(ours, ours).missing


def test_nothing_in_common_says_where_they_part_and_what_to_measure() -> None:
    theirs = [ok(case(256, dtype="fp32", batch=4, nheads=2), "eager", 1)]
    with pytest.raises(UserError) as error:
        compared([ok(case(n), "eager", 100) for n in (1024, 2048)], theirs, CPU)
    said = str(error.value)
    assert "H200 and EPYC CPU have no case in common: dtype bf16 on H200, fp32 on EPYC CPU" in said
    assert "attnbench run --dtype fp32 --seqlen 256 --batch 4 --nheads 2 --headdim 128 --pass fwd --full" in said


def test_what_to_measure_is_a_command_of_a_shell() -> None:
    """The command quotes the name of a mask's file, which a shell could read as words and commands."""
    mask = "my masks; $(touch x)/it's.py:blocks"
    theirs = [ok(replace(case(causal=True), mask=f"{mask}@01234567"), "eager", 100)]
    with pytest.raises(UserError) as error:
        compared([ok(case(n, causal=True), "eager", 100) for n in (1024, 2048)], theirs)
    words = shlex.split(str(error.value).partition("as in ")[2])
    assert words[:2] == ["attnbench", "run"]
    assert words[words.index("--mask") + 1].partition("@")[0] == mask


def test_runs_without_a_figure_and_single_runs_are_one_line() -> None:
    some = [ok(case(), "eager", 100)]
    with pytest.raises(UserError, match=r"H100 \(b.jsonl\) has no figure"):
        compared(some, [ended(case(), "eager", "oom", "out of memory")])
    searched = [replace(run([ended(case(), "eager", "oom", "out of memory")]), search=Search("seqlen", 1.0))] * 2
    with pytest.raises(UserError, match=r"no time of a call: .* searches for what fits, which attnbench capacity a "):
        compare([Path("a"), Path("b")], searched)
    with pytest.raises(UserError, match="at least two"):
        compare([Path("a")], [run(some)])
    with pytest.raises(UserError, match="given twice"):
        compare([Path("a"), Path("./a")], [run(some), run(some)])
    with pytest.raises(UserError, match="one machine of all"):
        compare([Path("a"), Path("b")], [run(some), run(some)], names=("a=x", "b=x"))


def alone(seqlen: int, **changes: Any) -> Case:
    """Return a case of one sequence, so that all lengths are in one row."""
    return case(seqlen, batch=1, **changes)


def test_what_an_earlier_check_called_wrong_says_nothing_of_a_machine_and_a_later_figure_outweighs_it() -> None:
    both = [ok(case(n), "triton", 500) for n in (1024, 2048)]
    ours = run([*both, ok(case(), "fa4", 1000)])
    for check, untried in ((1, (case(),)), (CHECK, ())):
        wrong = run([*both, ended(case(), "fa4", "wrong-kernel", "0.9%")], device=H100, check=check)
        got = compare([Path("a"), Path("b")], [ours, wrong])
        assert (got.untried, bool(got.beside(sustained=False, shared=False))) == (untried, not untried)
    later = run([ok(case(), "fa4", 1000)], device=H100)
    got = compare([Path("a"), Path("b"), Path("c")], [ours, replace(wrong, check=1), later])
    assert (case(), "fa4") in got.main.machines["H100"].log_figure


def test_the_longest_sequence_that_fits() -> None:
    ours = [ok(alone(n), "eager", 100) for n in (1024, 2048)] + [ended(alone(4096), "eager", "oom", "out of memory")]
    ours += [ok(alone(n), "fa3", 500) for n in (1024, 2048, 4096)]
    theirs = [ok(alone(1024), "eager", 100), ended(alone(2048), "eager", "skipped", ROOM)]
    theirs += [ended(alone(4096), "eager", "skipped", ROOM), ok(alone(1024), "fa3", 100)]
    theirs += [ended(alone(2048), "fa3", "failed", "crashed")]
    eager, fa3 = compared(ours, theirs).longest
    assert [*eager.fits.values()] == [Fit(2048, 4096), Fit(1024, 2048)]
    assert [*fa3.fits.values()] == [Fit(4096, None), Fit(1024, None, (2048, 4096))], "a crash is not a want of memory"
    assert (eager.limited, fa3.limited) == (True, False)


@pytest.mark.parametrize(
    "between",
    [
        ended(alone(2048), "fa3", "skipped", "the time limit of 1 minute", resumable=True),
        ended(alone(2048), "fa3", "wrong", "off by 3"),
        None,  # planned, but not run yet
    ],
)
def test_a_length_is_the_limit_only_if_none_before_it_was_left_out(between: Record | None) -> None:
    """A length is a machine's limit only if no shorter one was left out; else the limit is at least this length."""
    ours = [ok(alone(1024), "fa3", 500), *filter(None, [between]), ended(alone(8192), "fa3", "skipped", ROOM)]
    plan = [job(alone(n), "fa3") for n in (1024, 2048, 8192)]
    theirs = [ok(alone(n), "fa3", 500) for n in (1024, 4096)] + [ended(alone(8192), "fa3", "oom", "out of memory")]
    got = compare([Path("a"), Path("b")], [run(ours, plan=plan), run(theirs, device=H100)])
    assert [*got.longest[0].fits.values()] == [Fit(1024, None, (2048, 4096)), Fit(4096, 8192)]
    fits = "H200 at least 1k (2k, 4k not measured), H100 4k (no room to measure 8k)"
    assert answer(got)[-1].endswith(f"d128 fwd, batch 1, heads 16: {fits}.")


def test_the_longest_context_is_that_of_any_backend() -> None:
    ours = [ok(alone(n), "fa3", 500) for n in (1024, 2048, 4096)]
    ours += [ended(alone(4096), "eager", "oom", "out of memory")]
    theirs = [ok(alone(1024), "fa3", 500), ok(alone(2048), "eager", 1), ended(alone(4096), "fa3", "skipped", ROOM)]
    got = compared(ours, theirs)
    (line,) = got.longest_of_any
    assert [*line.fits.values()] == [Fit(4096, None), Fit(2048, 4096)]
    said = answer(got)[-1]
    assert said.endswith("d128 fwd, batch 1, heads 16: H200 at least 4k, H100 2k (no room to measure 4k).")
    lacking = [*ours, ok(alone(8192), "triton", 500)]
    assert answer(compared(lacking, theirs))[-1] == said, "a backend that one lacks tells nothing of its memory"
    planned = [ok(alone(n), "fa3", 500) for n in (1024, 2048)]
    slow = [ok(alone(1024), "fa3", 500), ended(alone(2048), "fa3", "timeout", "one call took 9s")]
    assert "Longest" not in " ".join(answer(compared(planned, slow))), "time is no memory, and nobody searched"


def test_power_is_that_of_work_without_pauses() -> None:
    work = flops.flops(case())
    ours = [ok(case(), "fa3", 600, power=300, sustained=work / 500e12, sustained_power=700.0)]
    theirs = [ok(case(), "fa3", 600, power=300, sustained=work / 500e12, sustained_power=350.0)]
    more = [ok(case(2048), "fa3", 600, power=300)]
    got = compared([*ours, *more], [*theirs, *more])
    assert len(got.main.cases) == 2
    assert got.main.watts("H200") is None
    of = got.powered
    assert of.cases == (case(),)
    assert [of.watts(label) for label in got.labels] == pytest.approx([700, 350])
    assert [of.tflops_per_watt(label) for label in got.labels] == pytest.approx([500 / 700, 500 / 350])
    assert "Per watt, without pauses, H100 gives 2.00x" in " ".join(answer(got)).replace("; per", ". Per")
    assert "The power without pauses" not in str(cautions(compared(ours, theirs))[-1])
    assert not compared(more, more).main.sustained
    one_sided = compared(ours, [*more, ok(case(), "fa3", 600)])
    assert not one_sided.main.sustained
    assert str(cautions(one_sided)[-1]).startswith("The power without pauses is not known for H100,")


def test_what_no_device_can_reach_is_no_figure() -> None:
    """A rate that no device can reach is left out; 989 TFLOP/s is the peak of both machines."""
    ours = [ok(case(), "fa3", 500), ok(case(), "eager", 1300)]
    got = compared(ours, [ok(case(), "fa3", 400), ok(case(), "eager", 60)])
    assert [got.main.tflops(label) for label in got.labels] == pytest.approx([500, 400])
    (missing,) = got.missing
    assert (missing.backend, missing.reason) == ("eager", "its rate is above what the device can do")


def decode(seqlen: int = 8192, batch: int = 16) -> Case:
    return case(seqlen, seqlen_q=1, causal=True, nheads_k=4, batch=batch)


def test_decode_is_a_kind_of_its_own_in_its_own_unit() -> None:
    """Decode has a rate in GB/s, apart from other cases, which have TFLOP/s and TFLOP/s per dollar."""
    device = replace(H200, name="NVIDIA B200")
    ours = [ok(case(8192, causal=True), "fa3", 600), ok(decode(), "fa3", 5)]
    theirs = [ok(case(8192, causal=True), "fa3", 1200), ok(decode(), "fa3", 10)]
    got = compared(ours, theirs, device, prices=("h200=3/h", "b200=6/h"))
    assert {*got.main.kinds} == {"d128 causal fwd", "d128 causal decode"}
    seconds = flops.flops(decode()) / 5e12
    gbps = flops.ideal_bytes(decode()) / seconds / 1e9
    assert [got.main.tflops(label) for label in got.labels] == pytest.approx([600, 1200])
    assert [got.main.gbps(label) for label in got.labels] == pytest.approx([gbps, 2 * gbps])
    assert got.bought(got.main, "H200") == pytest.approx(600 * 3.6 / 3)
    assert got.bought_of_decode(got.main, "H200") == pytest.approx(gbps * 3.6 / 3)
    shown = {table.name: table for table in tables(got, every=True)}
    for name, figure in (("cases", "600"), ("by-memory", digits(gbps))):
        assert [str(entry) for entry in shown[name].rows[0][1:3]] == ["fa3", figure]


def noisy(record: Record, seconds: float) -> Record:
    """Return a record whose samples hardly determine its latency."""
    times = tuple(seconds * factor for factor in (0.3, 0.5, 0.8, 1.0, 1.2, 2.0, 3.0))
    return replace(record, measurements={**record.measurements, "time": Measurement("s", times)})


def test_what_is_hardly_known_decides_nothing() -> None:
    """A case whose fastest latency is very uncertain is left out and named; an uncertain slower one changes nothing."""
    known, other = ok(case(), "fa3", 500), ok(case(2048), "fa3", 500)
    seconds = flops.flops(case()) / 500e12
    faster, slower = (noisy(ok(case(), "triton", 500), seconds * factor) for factor in (0.5, 2.0))
    got = compared([known, other, faster], [known, other])
    assert got.main.cases == (case(), case(2048)), "fa3, which both have, is known there"
    assert (own := got.beside(sustained=False, shared=False))
    assert own.cases == (case(2048),)
    (said,) = [str(caution) for caution in cautions(got) if "factor of 1.5" in str(caution)]
    assert "triton 1k d128 full fwd on H200" in said
    both = compared([known, other, faster], [known, other, faster])
    assert both.main.cases == (case(2048),)
    assert compared([known, other, slower], [known, other]).main.cases == (case(), case(2048))
    once = replace(faster, measurements={**faster.measurements, "time": Measurement("s", (seconds / 2,))})
    assert compared([known, other, once], [known, other, once]).main.cases == (case(2048),), "one sample tells nothing"
    with pytest.raises(UserError, match=r"no case whose fastest figure is known to better than a factor of 1\.5"):
        compared([faster], [known])


def test_one_backend_by_unlike_kernels_is_no_shared_backend() -> None:
    fa3 = {"cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Collective...": 1}
    fa2 = {"pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>": 1, "Memset (Device)": 1}
    split = {"pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64>>": 1, "Memset (Device)": 1}
    triton = {"_forward": 1}

    def records(kernels: dict[str, int], tflops: float) -> list[Record]:
        return [ok(case(), "xformers", tflops, kernels=kernels), ok(case(), "triton", 200, kernels=triton)]

    unlike, alike = compared(records(fa3, 600), records(fa2, 300)), compared(records(split, 600), records(fa2, 300))
    assert unlike.main.shared
    assert ratio(unlike.main) == pytest.approx(1)
    assert ratio(alike.main) == pytest.approx(0.5), "one library that splits a call otherwise"
    ampere = compared(records(fa3, 600), records(fa2, 300), device=replace(H100, capability=(8, 0)))
    assert ratio(ampere.main) == pytest.approx(0.5), "another architecture has kernels of its own"
    assert (
        "as a machine did not try the backend that is fastest on another, or ran it by unlike kernels"
        in answer(unlike)[0]
    )
    assert not unlike.beside(sustained=False, shared=False)
    assert [c for c in cautions(unlike) if "xformers ran unlike kernels in 1 case" in str(c)]
    assert unlike.same_ratio(unlike.others[0], (case(), "xformers")) is None


def test_figures_without_pauses_lead_where_they_cover_the_cases_in_bursts() -> None:
    work = flops.flops(case())
    long = [ok(case(), "fa3", tflops, sustained=work / tflops / 1e12) for tflops in (500, 300)]
    more = ok(case(2048), "fa3", 600)
    some = compared([long[0], more], [long[1], more])
    assert [of.sustained for of in some.figures] == [False, True]
    assert re.search(r"; without pauses 0\.600x \(\S+ to \S+\) over 1 case\.$", answer(some)[0])


def test_what_waits_for_the_host_decides_nothing() -> None:
    """A latency with waits for the host is left out, found by the record's flag or by a launch longer than the call."""
    known, work = ok(case(2048), "fa3", 500), flops.flops(case())
    flagged = ok(case(), "fa3", 500, host_bound=True)
    got = compared([known, flagged], [known, ok(case(), "fa3", 500)])
    assert got.main.cases == (case(2048),)
    (said,) = [str(caution) for caution in cautions(got) if "waits for the host" in str(caution)]
    assert said.startswith("1 case left out in bursts, with shared backends:")
    assert "fa3 1k d128 full fwd on H200" in said
    both = compared([known, flagged], [known, flagged])
    (said,) = [str(caution) for caution in cautions(both) if "waits for the host" in str(caution)]
    assert "(fa3 1k d128 full fwd on H200 and H100)" in said, "one case, named once"
    slow = ok(case(), "fa3", 500, enqueue=work / 100e12, sustained=work / 100e12)
    quick = ok(case(), "fa3", 500, enqueue=work / 900e12, sustained=work / 400e12)
    assert [of.sustained for of in compared([slow], [slow]).figures] == [False], "in bursts launches are queued before"
    assert [of.sustained for of in compared([quick], [quick]).figures] == [True, False]
    with pytest.raises(UserError, match="and is the device's"):
        compared([flagged], [known])
