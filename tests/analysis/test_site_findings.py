"""What a site ranks: no own code beside backends that a reader can take."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from attnbench.analysis.site import findings
from attnbench.analysis.site.findings import Findings, run_files
from attnbench.analysis.site.pages import pages
from attnbench.render.document import Document
from attnbench.results import run_file

RESULTS = Path(__file__).parents[2] / "results" / "ci-experiment"


def of(*names: str) -> Findings:
    paths = [RESULTS / f"{name}.jsonl" for name in names]
    return Findings(run_files([(path, run_file.read(path)[0]) for path in paths], [RESULTS]))


def test_own_code_is_ranked_only_where_there_is_nothing_else() -> None:
    both = of("shipped", "slow-5")
    assert (both.backends, both.own_code) == (("sdpa-flash", "triton"), ("Planted",))
    (standings,) = both.standings.values()
    assert {backend for of_case in standings.values() for _, backend in of_case.measured} == {"sdpa-flash", "triton"}
    alone = of("slow-5")
    assert (alone.backends, alone.own_code) == (("Planted",), ())


def test_a_machine_of_own_code_alone_stands_beside_another() -> None:
    """Each page can be made; the page of the own code links its machine's page."""
    shipped, own = (run_file.read(RESULTS / f"{name}.jsonl")[0] for name in ("shipped", "slow-5"))
    device = replace(own.environment.device, name="NVIDIA H100", uuid="1")
    own = replace(own, environment=replace(own.environment, device=device))
    site = Findings(run_files([(Path("a.jsonl"), shipped), (Path("b.jsonl"), own)], []))
    made = {page.address: str(page.make()) for page in pages(site, ["results/"], lambda _: Document("report", "a run"))}
    (page,) = (address for address in made if address.startswith("gpu-h100"))
    assert page in made[site.backend_address("Planted")]


def test_one_model_with_two_power_limits_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = run_file.read(RESULTS / "shipped.jsonl")
    of = run.environment
    machines = {
        "a.jsonl": replace(of, device=replace(of.device, name="NVIDIA H200", uuid="1"), power_limit_w=700.0),
        "b.jsonl": replace(of, device=replace(of.device, name="NVIDIA H200", uuid="2"), power_limit_w=600.0),
        "c.jsonl": replace(of, device=replace(of.device, name="NVIDIA H100", uuid="3"), power_limit_w=700.0),
    }
    files = run_files([(Path(name), replace(run, environment=one)) for name, one in machines.items()], [])
    site = Findings(files)
    labels = {machine.label for machine in site.machines}
    assert labels == {"H200 700 W", "H200 600 W", "H100"}
    assert {frozenset(pair.labels) for pair in site.pairs} == {frozenset(two) for two in combinations(labels, 2)}
    assert len({site.pair_address(pair) for pair in site.pairs}) == 3
    monkeypatch.setattr(findings, "MOST_PAIRS", 1)
    fewer = Findings(files)
    assert (len(fewer.pairs), fewer.not_compared) == (1, 2)


def test_an_address_of_a_long_name_is_short_enough_for_a_file() -> None:
    deep = Path(*["nightly-runs-of-the-laboratory"] * 9)
    paths = [deep / "default.jsonl", deep / "sustained.jsonl"]
    run = run_file.read(RESULTS / "shipped.jsonl")[0]
    addresses = {file.address for file in run_files([(path, run) for path in paths], [Path()])}
    assert len(addresses) == 2
    assert all(len(one) < 150 for one in addresses)
