"""The first lines of a report: how many cells ended how, and who is fastest."""

from __future__ import annotations

from attnbench.analysis.report.answer import answer
from attnbench.core.record import Record, Run
from attnbench.results.cells import cells
from builders import case, ended, ok, run


def answered(*runs: Run) -> tuple[str, ...]:
    return answer(cells(runs), runs)


def test_backends_are_ranked_by_their_wins() -> None:
    speeds = {1024: (300.0, 200.0), 2048: (200.0, 300.0), 4096: (200.0, 300.0)}
    records = [ok(case(n), b, s) for n, both in speeds.items() for b, s in zip(("fa4", "eager"), both, strict=True)]
    records.append(ok(case(8192), "fa4", 300.0))  # without a rival
    assert answered(run(records))[1] == "Fastest of 3 cases: eager in 2, fa4 in 1."


def test_a_version_has_one_name_and_none_where_it_is_the_only_one() -> None:
    """A run in which another backend has another version of the library tells versions in its tables."""
    fa4 = "flash-attn-4 4.0.0b36"
    both = run(raced(1024, "sdpa-fa4"), versions={"fa4": fa4, "sdpa-fa4": "torch 2.11.0, flash-attn-4 4.0.0b18"})
    alone = run(raced(2048, "eager"), versions={"fa4": fa4})
    assert answered(both, alone)[1] == "Fastest of 2 cases: fa4 in 2."
    assert {c.backend_name for c in cells([both, alone]) if c.backend == "fa4"} == {"fa4 (4.0.0b36)"}
    other = run(raced(4096, "eager"), versions={"fa4": "flash-attn-4 4.0.0b40"})
    assert answered(alone, other)[1] == (
        "Fastest of 2 cases: fa4 (flash-attn-4 4.0.0b36) in 1, fa4 (flash-attn-4 4.0.0b40) in 1."
    )


def raced(seqlen: int, slower: str) -> list[Record]:
    return [ok(case(seqlen), "fa4", 300.0), ok(case(seqlen), slower, 200.0)]


def test_nothing_measured() -> None:
    assert answered(run([])) == answered() == ("Nothing was measured: there are no records.",)
    skipped = run([ended(case(), "triton", "skipped", "needs a GPU")])
    assert answered(skipped) == ("1 cell: 1 skipped.", "Nothing was measured; the reasons are in this report.")


EAGER = 5e-4  # seconds


def test_a_latency_that_is_hardly_known_is_not_the_fastest() -> None:
    loud = ok(case(), "fa2", 100.0, time=[1e-9, 1e-5, 3e-2])
    reads_faster = "Fastest of 1 case: not known in 1, where fa2 may be faster, since it is hardly known."
    assert answered(run([loud, ok(case(), "eager", 50.0)]))[1] == reads_faster
    wide = (0.5, 0.7, 1, 1, 1.4, 2)
    for slower in (0.2, 1.3):  # times eager
        a_little = ok(case(), "fa2", 300.0, time=[EAGER * slower * factor for factor in wide])
        said = answered(run([a_little, ok(case(), "eager", 1.0, time=[EAGER] * 6)]))[1]
        assert "fa2 may be faster, since it is known to ±75% only." in said
    far = ok(case(), "fa2", 100.0, time=[EAGER * 3.0 * factor for factor in wide])
    assert answered(run([far, ok(case(), "eager", 1.0, time=[EAGER] * 6)]))[1] == "Fastest of 1 case: eager in 1."
    both = run([loud, ok(case(), "eager", 1.0, time=[1e-9, 1e-5, 3e-2])])
    said = "not known in 1, where no latency is known to better than a factor of 1.5."
    assert answered(both)[1] == f"Fastest of 1 case: {said}"
