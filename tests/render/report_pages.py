"""A small run, and the page of its report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from attnbench.analysis.report.document import complete, document
from attnbench.core.flops import Convention
from attnbench.core.record import Run
from attnbench.render.html import html_page
from attnbench.results.cells import cells
from builders import case, ended, ok, run


def small() -> Run:
    """Return a run of two backends on two lengths and masks, with one skip and one cell whose clock was held down."""
    records = []
    for seqlen in (1024, 2048):
        for causal in (False, True):
            which = case(seqlen, causal=causal)
            more: dict[str, Any] = {"memory_peak": 2**20 * seqlen, "clock_held": 1.98e9, "power": 600.0}
            records.append(ok(which, "triton", 400, **more))
            if seqlen == 1024:
                records.append(ok(which, "eager", 40, **{**more, "clock_held": 1.5e9 if causal else 1.98e9}))
            else:
                records.append(ended(which, "eager", "skipped", "needs 512 GiB of <scores> & more"))
    return run(records, argv=("run", "--seqlen", "1k,2k"))


def page(*runs: Run, convention: Convention = "exact") -> str:
    """Return the page of a report of runs, with the files run0.jsonl, run1.jsonl and so on."""
    found = cells(runs, convention)
    files = [Path(f"/somewhere/run{i}.jsonl") for i in range(len(runs))]
    return html_page.render(complete(document(found, runs), {"html"}, found, runs, files))


def data(text: str) -> Any:
    """Return the data of a page for charts.js."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def field(name: str, found: Any) -> list[Any]:
    """Return a field of all rows."""
    if coded := found["coded"].get(name):
        return [coded["of"][place] for place in coded["at"]]
    values: list[Any] = found["fields"].get(name) or [found["alike"][name]] * found["number"]
    return values
