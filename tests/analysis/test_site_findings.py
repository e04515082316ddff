"""What a site ranks: no own code beside backends that a reader can take."""

from __future__ import annotations

from pathlib import Path

from attnbench.analysis.site.findings import Findings, run_files
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
