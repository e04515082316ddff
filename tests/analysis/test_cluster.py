"""`cluster report` on known devices: which ones stand out, by which values, and which ones are not pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnbench.analysis.cluster.document import document, exit_code
from attnbench.analysis.cluster.findings import models
from attnbench.core.machine import Device
from attnbench.core.record import Run
from attnbench.render import markdown
from builders import H200, case, decode, ended, environment, ok, run

SEQLENS = (2048, 4096, 8192, 16384)
NOISE = 0.002  # standard deviation between units


def unit(number: int, slow: float = 0.0, slow_decode: float = 0.0, wrong: Sequence[int] = (), **changes: Any) -> Run:
    """Return the run of a GPU on which some latencies are longer by a fraction and some results are wrong."""
    rng = np.random.default_rng(number)
    records = []
    memory_clock = changes.pop("clock_mem", 2.619e9)
    more = {name: changes.pop(name) for name in ("ecc_errors", "limits") if name in changes}
    for seqlen in SEQLENS:
        factor = float(np.exp(rng.normal(0, NOISE)))
        if seqlen in wrong:
            records.append(ended(case(seqlen), "triton", "wrong", "out is off by 0.02 where 0.004 is allowed"))
        else:
            speed = 400 / factor / (1 + slow)
            records.append(ok(case(seqlen), "triton", speed, clock_held=1.7e9, clock_mem=memory_clock, **more))
        records.append(decode(seqlen, "triton", 4 / factor / (1 + slow + slow_decode), clock_mem=memory_clock))
    return run(records, environment=environment(card(number), **changes), method=2)


def cluster(number: int, **special: Run) -> list[tuple[str, Run]]:
    return [(name, special.get(name, unit(i))) for i, name in enumerate(f"n{i}" for i in range(number))]


def told(files: list[tuple[str, Run]]) -> str:
    return " ".join(document(files).answer)


def test_units_that_are_alike_do_not_stand_out() -> None:
    files = cluster(8)
    assert told(files) == "None of 8 units stands out."
    assert exit_code(models(files)) == 0


def test_a_unit_that_is_slow_is_named_with_what_is_known_of_it() -> None:
    slow = unit(3, slow=0.06, limits=("sw power cap",), ecc_errors=2)
    files = cluster(8, n3=slow)
    found = document(files)
    assert exit_code(models(files)) == 1
    (answer,) = found.answer
    assert answer.startswith("n3 stands out of 8 units: +")
    assert "latency in compute bound, +" in answer
    assert "latency in memory bound" in answer
    (first,) = (one for one in found.data["units"] if one["outlier"])
    assert (first["unit"], first["ecc_errors"], first["limits"]) == ("n3", 2 * len(SEQLENS), ["sw power cap"])
    assert abs(first["compute_bound"] - 0.06) < 0.01
    assert "Uncorrected memory errors (ECC) on n3." in str(found.cautions[0])
    assert markdown.render(found).index("| n3 ") < markdown.render(found).index("| n0 ")


def test_a_unit_at_the_end_of_a_tail_is_not_decided() -> None:
    """A unit that is far off, but not farther than the tail of a distribution may explain, is not decided."""
    files = [(f"n{i}", unit(i, slow=0.015 * (i > 4))) for i in range(7)]
    files.append(("n7", unit(7, slow=0.08)))
    found = document(files)
    assert exit_code(models(files)) == 3
    assert found.verdict.text == "NOT DECIDED: 1 far off, but not apart from the others, of 8 units, 1 model"
    (answer,) = found.answer
    assert answer.startswith("Far off among 8 units, but not apart from the others: n7 (+")
    faster = [*files[:-1], ("n7", unit(7, slow=-0.08))]
    assert "Far off among 8 units" in told(faster)
    assert exit_code(models(faster)) == 0


def test_a_unit_that_is_slow_where_memory_bounds_is_found() -> None:
    """A low memory clock is found, although as many compute-bound cells are as fast as on other units."""
    files = cluster(8, n5=unit(5, slow_decode=0.06, clock_mem=2.4e9))
    (answer,) = document(files).answer
    assert answer.startswith("n5 stands out of 8 units: +")
    assert answer.endswith("latency in memory bound.")
    assert "2400 MHz" in markdown.render(document(files))


def test_a_result_that_one_unit_alone_has_wrong_comes_first() -> None:
    files = cluster(4, n1=unit(1, wrong=[4096]), n2=unit(2, slow=0.1))
    first, second = document(files).answer
    assert first.startswith("n1 computed wrong results that 3 other units of its model computed right, in triton 4k")
    assert "silent data corruption" in first
    assert second.startswith("n2 stands out")
    assert exit_code(models(files)) == 5


def test_what_all_units_have_wrong_is_the_kernel() -> None:
    files = [(f"n{i}", unit(i, wrong=[4096])) for i in range(3)]
    assert told(files).startswith("Wrong on every unit that measured it, so probably by the kernel: triton 4k")
    assert exit_code(models(files)) == 5


def test_what_no_second_unit_measured_acquits_no_card() -> None:
    """A second run of the same card, in any setup, or ranks that share the card, cannot clear it of a wrong result."""
    unknown = "Wrong, and right on no other card of the same setup, so the kernel, the card or its software: triton 4k"
    alone = ("n0", unit(0, wrong=[4096]))
    again = ("n0-again", unit(0, wrong=[4096], power_limit_w=500.0))
    right = ("n1-otherwise", unit(1, power_limit_w=500.0))
    without = ("n1", only(unit(1), 2048, 8192, 16384))
    for files in ([alone], [alone, without], [alone, again, without], [alone, ("n0-later", unit(0))], [alone, right]):
        assert document(files).answer[0].startswith(f"{unknown} d128 full fwd on n0")
        assert exit_code(models(files)) == 5
    wrong = [ended(replace(case(4096), ranks=2), "triton", "wrong", "out is off by 0.02 where 0.004 is allowed")]
    groups = [run(wrong, environment=environment(card(a), peers=(card(b),))) for a, b in ((0, 1), (1, 2))]
    assert told([*zip("ab", groups, strict=True)]).startswith(unknown)


def test_another_kernel_than_declared_is_no_wrong_result() -> None:
    other = run([ended(case(4096), "triton", "wrong-kernel", "magma_sgemm ran")], environment=environment(card(1)))
    found = document([*cluster(1), ("n1", replace(other, method=2))])
    assert "rong on" not in " ".join(found.answer)
    assert found.answer[0].startswith("A kernel of another name or precision than the backend declares ran")
    assert found.verdict.text.startswith("KERNELS NOT AS DECLARED: 1")


def test_a_card_of_two_setups_is_counted_once() -> None:
    files = [(f"n{i}", unit(i, power_limit_w=300.0 + 50 * i)) for i in range(4)]
    found = document([*files, ("n0-again", unit(0, power_limit_w=700.0))])
    assert found.answer[0].startswith("No outlier can be named among 4 units")
    assert found.title == "Cluster of 4 units"
    assert found.verdict.text.endswith("of 4 units, 1 model, 5 setups")
    (answer,) = document([files[0], ("n0-again", unit(0, power_limit_w=700.0))]).answer
    assert answer.startswith("No outlier can be named among 1 unit: no 3 are of one model")


def test_two_units_are_too_few_and_so_is_one_beside_another_driver() -> None:
    files = cluster(2, n1=unit(1, slow=0.3))
    assert "No outlier can be named among 2 units" in told(files)
    assert exit_code(models(files)) == 3
    files = cluster(4, n3=unit(3, power_limit_w=500.0, slow=0.2))
    found = document(files)
    assert found.answer[0].startswith("None of 3 units of NVIDIA H200, 700 W stands out.")
    (caution,) = found.cautions
    assert caution.what == ("Not pooled with 3 units of the same model: n3: power_limit_w was 700.0 and is 500.0.")


def test_runs_of_one_uuid_are_of_one_unit() -> None:
    files = [*cluster(3), ("n0-again", unit(0))]
    (model,) = models(files)
    assert [len(unit.runs) for unit in model.units] == [2, 1, 1]
    (caution,) = document(files).cautions
    assert caution.what == "Measured more than once, by the UUID: n0 (2 files)."
    later = run([ended(case(1024), "fa1", "wrong", "off")], environment=unit(0).environment, method=2)
    bad = [("n0", unit(0)), ("n0-later", later)]
    assert "fa1 1k d128 full fwd on n0-later." in told(bad), "the file that has the result, not the unit's first"


def test_units_that_measured_other_cells_are_not_judged() -> None:
    """GPUs of one model are not judged where no cell was measured on three of them."""
    apart = [(f"o{i}", run([ok(case(512 * (i + 1)), "triton", 400)], environment=environment(H200))) for i in range(3)]
    apart = [(name, replace(one, method=2)) for name, one in apart]
    assert told(apart).startswith("No outlier can be named among 3 units: no 3 are of one model")
    assert exit_code(models(apart)) == 3
    files = [*cluster(3), *((name, with_uuid(one, name)) for name, one in apart)]
    assert document(files).answer[1].startswith("Not judged: 3 units, of which no 3 are of one model")
    assert "none of 6 units, 1 model, 3 of them not judged" in document(files).verdict.text


def card(number: int) -> Device:
    return replace(H200, uuid=f"GPU-{number:04}")


def only(one: Run, *seqlens: int) -> Run:
    """Return a run without the cells of other lengths."""
    return replace(one, records=[r for r in one.records if r.case.shape.seqlen_k in seqlens])


def with_uuid(one: Run, uuid: str) -> Run:
    device = replace(one.environment.device, uuid=uuid)
    return replace(one, environment=replace(one.environment, device=device))
