"""The document of a plan before it is run."""

from __future__ import annotations

import json
from dataclasses import replace

from attnbench.analysis.report.planned import document
from attnbench.core.record import Forecast, Job
from attnbench.render import json_and_csv, markdown, terminal
from builders import case, job, run


def planned(*jobs: Job) -> str:
    return terminal.text(document(run([], plan=jobs)))


def test_a_line_a_backend_and_the_reasons_of_the_skips() -> None:
    jobs = [
        replace(job(case(), "eager"), forecast=Forecast(90.0, 2.5, 3 * 2**30)),
        replace(job(case(2048), "eager"), forecast=Forecast(30.0, 5e-3, 2**30)),
        replace(job(case(4096), "eager"), skip="needs 137 GiB of scores"),
        replace(job(case(), "triton"), forecast=Forecast(0.5, 1.234e-3, 2**20)),
        *(replace(job(case(n), "fa3"), skip="needs a CUDA GPU") for n in (1024, 2048)),
    ]
    lines = [line.split() for line in planned(*jobs).splitlines()]
    assert lines[:4] == [
        ["backend", "to", "measure", "skipped", "forecast", "longest", "call", "peak", "memory"],
        ["eager", "2", "1", "2m00s", "2.5s", "3.0", "GiB"],
        ["triton", "1", "0", "0.5s", "1.23", "ms", "1.0", "MiB"],
        [],
    ]
    text = planned(*jobs)
    assert "skip  eager 4k d128 full fwd: needs 137 GiB of scores\n" in text
    assert "skip  fa3 (all): needs a CUDA GPU\n" in text
    assert text.endswith("Nothing was measured or written. Job by job: --dry-run --json\n")


def test_the_jobs_for_programs() -> None:
    jobs = [job(case(), "eager"), replace(job(case(2048), "eager"), skip="too large")]
    found = json.loads(json_and_csv.json_text(document(run([], plan=jobs))))
    assert [(one["backend"], one.get("skip")) for one in found] == [("eager", None), ("eager", "too large")]
    assert found[0]["forecast"] == {"seconds": 1.0, "call": 1e-3, "nbytes": 2**30}


def test_an_empty_plan_and_markdown() -> None:
    assert planned().startswith("backend  to measure  skipped")
    text = markdown.render(document(run([], plan=[job(case(), "eager")])))
    assert "| eager | 1 | 0 | 1.0s | 1 ms | 1.0 GiB |" in text
