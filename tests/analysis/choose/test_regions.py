"""Regions of shapes from cells whose speeds a test sets, and the lengths that refine their borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.analysis.choose.refine import further_cases
from attnbench.analysis.choose.regions import Region, between, regions, single, unknown_borders
from attnbench.analysis.recommend.findings import TRAINING, Problem, answered_once, problems
from attnbench.core.case import Case
from attnbench.core.record import Record, Run
from attnbench.results.cells import cells
from builders import case, ended, ok, run


def at(length: int, **changes: object) -> Case:
    return case(length, causal=True, **{"batch": 1, **changes})  # type: ignore[arg-type]


def found(run: Run) -> list[Problem]:
    return answered_once(problems(cells([run], by_machine=True)))


def told(parts: list[Region]) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    return [(part.use, part.batches, part.lengths) for part in parts]


def speeds(length: int, **tflops: float) -> list[Record]:
    return [ok(at(length), name.replace("_", "-"), value) for name, value in tflops.items()]


CROSSING = [  # fa3 wins up to 1k, cuDNN from 4k on, and they tie at 2k
    *(record for length in (512, 1024) for record in speeds(length, fa3=500, sdpa_cudnn=400, sdpa=300)),
    *speeds(2048, fa3=500, sdpa_cudnn=501, sdpa=300),
    *(record for length in (4096, 8192) for record in speeds(length, fa3=500, sdpa_cudnn=600, sdpa=300)),
]


def test_a_region_goes_on_while_one_backend_is_among_the_fastest() -> None:
    """Ties extend a region, its ends lie halfway between neighbours, and no size beyond the measured ones has one."""
    parts = regions(found(run(CROSSING)))
    assert told(parts) == [("fa3", (1, 1), (512, 2896)), ("sdpa-cudnn", (1, 1), (2897, 8192))]
    assert [len(part.problems) for part in parts] == [3, 2]
    assert parts[0].loss == pytest.approx(501 / 500)


def test_batches_share_the_sizes_between_them() -> None:
    records = [ok(at(1024, batch=batch), "fa3", 500) for batch in (1, 4, 16)]
    assert [part.batches for part in regions(found(run(records)))] == [(1, 2), (3, 8), (9, 16)]


def test_a_wrong_backend_is_never_chosen() -> None:
    records = [*speeds(1024, fa3=500, sdpa=300), ended(at(1024), "sdpa-cudnn", "wrong", "out is off")]
    (part,) = regions(found(run(records)))
    assert part.use == "fa3"
    (part,) = regions(found(run([ended(at(1024), "sdpa-cudnn", "wrong", "out is off")])))
    assert (part.use, part.loss) == ("", 1.0)


def test_training_keeps_one_backend_unless_it_may_vary() -> None:
    """The backend of all training is the one with the least mean loss that was right in all cases."""
    records = []
    for length, fa3, cudnn in ((512, 500, 300), (8192, 550, 600)):
        for direction in ("fwd", "bwd"):
            which = at(length, direction=direction)
            records += [ok(which, "fa3", fa3), ok(which, "sdpa-cudnn", cudnn), ok(which, "sdpa", 200)]
            records += [ok(which, "triton", 900)] if length == 512 else []
    own = [problem for problem in found(run(records)) if problem.step == TRAINING]
    kept = regions(own)
    assert told(kept) == [("fa3", (1, 1), (512, 8192))]
    assert kept[0].loss == pytest.approx(900 / 500)
    assert [part.use for part in regions(own, vary=True)] == ["triton", "sdpa-cudnn"]


def test_training_has_no_choice_where_its_backend_was_not_right() -> None:
    """A length at which the backend of all training failed, or nothing was measured, is a region without a choice."""
    records = [ok(at(n, direction=d), "fa3", 500) for n in (512, 1024, 2048) for d in ("fwd", "bwd")]
    records += [ok(at(512, direction=d), "sdpa", 300) for d in ("fwd", "bwd")]
    records[3] = ended(at(1024, direction="bwd"), "fa3", "oom", "no memory")
    own = [problem for problem in found(run(records)) if problem.step == TRAINING]
    assert [(part.use, part.lengths) for part in regions(own)] == [
        ("fa3", (512, 724)),
        ("", (725, 1448)),
        ("fa3", (1449, 2048)),
    ]


def test_a_backend_that_failed_is_no_name_for_all() -> None:
    """A failure counts against a name also where no other backend was right."""
    failed = [
        *CROSSING,
        ended(at(16384), "fa3", "wrong", "out is off"),
        ended(at(16384), "sdpa-cudnn", "oom", "no memory"),
    ]
    one = single(found(run(failed)))
    assert one is not None
    assert one.use == "sdpa-cudnn"


def test_cases_on_several_devices_have_kinds() -> None:
    which = replace(at(4096), ranks=4)
    (part,) = regions(found(run([ok(which, "ring-allgather-cudnn", 500)])))
    assert part.lengths == (4096, 4096)


def test_one_name_for_all_says_its_worst_loss() -> None:
    one = single(found(run(CROSSING)))
    assert one is not None
    assert (one.use, one.where.case.shape.seqlen_k) == ("fa3", 4096)
    assert one.loss == pytest.approx(600 / 500)
    named = single(found(run(CROSSING)), {"sdpa-cudnn": "CUDNN_ATTENTION"})
    assert named is not None
    assert (named.use, named.where.case.shape.seqlen_k) == ("sdpa-cudnn", 512)
    assert named.loss == pytest.approx(500 / 400)


def test_one_name_may_be_untried_between_lengths_at_which_it_is_behind() -> None:
    """A refined length has the near backends alone; the greater loss of its neighbours counts for the others."""
    records = [*CROSSING, *(ok(at(length), "fa4", tflops) for length, tflops in ((512, 250), (8192, 300)))]
    one = single(found(run(records)), {"fa4": ""})
    assert one is not None
    assert (one.loss, one.where.case.shape.seqlen_k) == (pytest.approx(2.0), 512)
    assert one.mean == pytest.approx(2.0)
    assert single(found(run([*records, ended(at(2048), "fa4", "oom", "no memory")])), {"fa4": ""}) is None
    assert single(found(run([r for r in records if r.case != at(8192) or r.backend != "fa4"])), {"fa4": ""}) is None


def test_borders_are_halved_until_they_are_known() -> None:
    """Further lengths are asked for until the last on one side and the first on the other differ by 1.2 at most."""
    truth, records = 2500, [r for length in (512, 1024, 2048, 4096, 8192) for r in _by_length(length, 2500)]
    asked = []
    while wanted := further_cases(run(records), (), vary=False):
        (which,) = wanted
        length = which.shape.seqlen_k
        asked.append(length)
        assert which.shape.seqlen_q == length
        assert wanted[which] == ["fa3", "hf-sdpa", "sdpa", "sdpa-cudnn"], "a backend far behind is not tried"
        records += [record for record in _by_length(length, truth) if record.backend != "eager"]
    parts = regions(found(run(records)))
    assert unknown_borders(parts) == []
    low, high = parts[0].problems[-1].case.shape.seqlen_k, parts[1].problems[0].case.shape.seqlen_k
    assert low < truth <= high <= 1.2 * low
    assert asked == [3072, 2560, 2304]


def _by_length(length: int, border: int) -> list[Record]:
    first = length < border
    return speeds(length, fa3=500 if first else 400, sdpa_cudnn=400 if first else 500, sdpa=390, eager=30)


def test_a_wide_gap_in_one_region_is_measured_too() -> None:
    """Lengths that differ by more than 2 get one between them, on the backends that are near; training needs none."""
    apart = [record for length in (1024, 4096) for record in speeds(length, fa3=500, sdpa=300, triton=450)]
    (which,) = further_cases(run(apart), (), vary=False)
    assert which.shape.seqlen_k == 2048
    assert further_cases(run(apart), (), vary=False)[which] == ["fa3", "hf-sdpa", "sdpa", "triton"]
    training = [replace(record, case=replace(record.case, direction="fwd_bwd")) for record in apart]
    assert further_cases(run(training), (), vary=False) == {}


def test_what_needs_no_further_length() -> None:
    """Training that keeps one backend has no borders; decode is refined in the number of its keys."""
    both = [replace(r, case=replace(r.case, direction=d)) for r in CROSSING for d in ("fwd", "bwd")]
    assert {which.direction for which in further_cases(run(both), (), vary=False)} == {"fwd"}
    decode = [replace(r, case=replace(r.case, shape=replace(r.case.shape, seqlen_q=1))) for r in CROSSING]
    (which,) = further_cases(run(decode), (), vary=False)
    assert (which.shape.seqlen_q, which.shape.seqlen_k) == (1, 3072)


@pytest.mark.parametrize(("low", "high", "length"), [(512, 1024, 768), (2048, 4096, 3072), (7, 9, 8), (5, 8, 6)])
def test_a_length_between_two(low: int, high: int, length: int) -> None:
    assert between(low, high) == length


def test_no_length_between_neighbours() -> None:
    with pytest.raises(ValueError, match="no length"):
        between(7, 8)
