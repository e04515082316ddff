"""The steps of a search in the parent: their order, the end of workers, and steps that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnbench.core.backend import Probe
from attnbench.core.case import Case
from attnbench.core.record import Accuracy, Job, Record, Run, Search, TensorError, fit_measurements
from attnbench.run import capacity
from attnbench.run.plan import CaseSupport
from attnbench.run.session import Session, create
from builders import H200, case, environment, run

ONE = Search("seqlen", 100.0)
RIGHT = Accuracy({"out": TensorError(0.0, 0.0, 1.0, 0.0)}, rows=1, heads=1)
MOST = 64 * 1024  # most tokens of each rank
BASE = replace(case(4096, nheads=16, causal=True), shape=replace(case(4096).shape, batch=1))


class FakePool:
    """A pool in which steps fit up to MOST tokens of each rank. `log` has the sizes and the ended workers."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def survey(self, probes: Mapping[str, Probe], cases: Any, device: Any) -> dict[str, list[CaseSupport]]:
        return {name: [CaseSupport() for _ in cases] for name in probes}

    def fit(self, job: Job, policy: Any, device: Any, memory: int | None) -> Record:
        tokens, ranks = job.case.shape.seqlen_k, job.case.ranks
        self.log.append(("fit", ranks, tokens))
        fits = tokens <= MOST * ranks
        measured = fit_measurements(1e-3, tokens, {"memory_peak": tokens}) if fits else {}
        return Record(job.case, job.backend, 0, "ok" if fits else "oom", accuracy=RIGHT, measurements=measured)

    def close_worker(self, name: str) -> None:
        self.log.append(("close", name))


def searched(tmp_path: Path, *cases: Case, peers: int = 3) -> tuple[Run, FakePool]:
    """Return a finished search on GPUs, and its pool."""
    session = Session(None)
    session.pool = pool = FakePool()  # type: ignore[assignment]
    session.environment, session.probes = environment(H200, peers=(H200,) * peers), {"ulysses-fa3": Probe(version="1")}
    plan = capacity._plan(cases, session, run([]).policy, ONE)
    planned = replace(run([], plan=plan), environment=session.environment, search=ONE)
    ended = capacity._measured(create(planned, tmp_path / "a.jsonl"), session, None, lambda *_, **__: None)
    return ended.measured, pool


def test_each_number_of_ranks_has_workers_of_its_own(tmp_path: Path) -> None:
    """Each number of ranks has its own workers; workers of fewer ranks end first, to free the devices' memory."""
    ended, pool = searched(tmp_path, BASE, replace(BASE, ranks=2))
    first = pool.log.index(next(entry for entry in pool.log if entry[:2] == ("fit", 2)))
    assert pool.log[first - 1] == ("close", "ulysses-fa3")
    found = {
        ranks: max(r.case.shape.seqlen_k for r in ended.records if r.status == "ok" and r.case.ranks == ranks)
        for ranks in (1, 2)
    }
    assert found == {1: MOST, 2: 2 * MOST}


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_does_not_fit_was_seen_by_new_processes(tmp_path: Path, ranks: int) -> None:
    """New processes confirm what does not fit: on one device a new worker, with several ranks after every lack."""
    ended, pool = searched(tmp_path, replace(BASE, ranks=ranks))
    stops = min(r.case.shape.seqlen_k for r in ended.records if r.status == "oom")
    tries = [i for i, entry in enumerate(pool.log) if entry == ("fit", ranks, stops)]
    before = pool.log[tries[-1] - 1]
    assert before == ("close", "ulysses-fa3") or (ranks > 1 and before[2] > MOST * ranks)


def test_more_ranks_than_devices_are_not_tried(tmp_path: Path) -> None:
    ended, pool = searched(tmp_path, replace(BASE, ranks=4), peers=1)
    assert pool.log == []
    assert [r.status for r in ended.records] == ["skipped"]
    assert "needs 4 GPUs; there are 2" in str(ended.records[0].reason)


def test_records_that_no_search_makes_do_not_count(tmp_path: Path) -> None:
    """Records that no search makes do not count: sizes outside of the grid, and ragged batches."""
    ended, _ = searched(tmp_path, BASE)
    shape = replace(BASE.shape, batch=2, seqlen_q=64, seqlen_k=64)
    ragged = replace(BASE, shape=shape, lengths=((1, 32, 32), (1, 64, 64)))
    odd = [replace(ended.records[0], case=case) for case in (capacity.at_size(BASE, "seqlen", 12345), ragged)]
    key = capacity.key_of(ended.records[0], "seqlen")
    assert capacity.known([*ended.records, *odd], key, ONE) == capacity.known(ended.records, key, ONE)
