"""A judgement as JUnit XML: one test for each cell and metric, with names that stay the same from gate to gate.

The time of a test is the time to measure its cell in the current run; only the first test of a cell has it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from xml.etree import ElementTree

from attnbench.analysis.gate.document import sentence
from attnbench.analysis.gate.findings import Judgement
from attnbench.core.errors import EXIT_PASS
from attnbench.core.text import one_line
from attnbench.results.cells import Key
from attnbench.results.run_setup import seconds_started


def render(judgement: Judgement) -> str:
    """Return the XML. A finding that keeps the gate from passing is a failure; any other open finding is skipped."""
    suites: dict[str, list[ElementTree.Element]] = {}
    seconds: dict[Key, float] = {}
    for record in judgement.current.records:
        seconds[record.case, record.backend] = seconds.get((record.case, record.backend), 0.0) + (record.seconds or 0.0)
    for f in judgement.findings:
        test = _test(suites, f.metric or "cell", f.name, seconds.pop((f.case, f.backend), 0.0))
        if judgement.exit_code_of(f) != EXIT_PASS:
            _failure(test, sentence(f), f.verdict)
        elif judgement.let_pass(f):
            ElementTree.SubElement(test, "skipped", message=one_line(sentence(f)))
    for d in judgement.refused:
        text = f"{d.what}; measure the baseline again, or if it is meant: {d.remedy}"
        _failure(_test(suites, "comparable", d.names[0]), text, "unlike")
    root = ElementTree.Element("testsuites", name="attnbench gate")
    started = seconds_started(judgement.current)
    when = (
        {} if started is None else {"timestamp": f"{datetime.fromtimestamp(started, timezone.utc):%Y-%m-%dT%H:%M:%S}"}
    )
    for name, tests in suites.items():
        failures, skipped = (sum(test.find(tag) is not None for test in tests) for tag in ("failure", "skipped"))
        counts = {"tests": len(tests), "failures": failures, "errors": 0, "skipped": skipped}
        figures = {**{k: str(v) for k, v in counts.items()}, "time": _time(sum(float(t.attrib["time"]) for t in tests))}
        suite = ElementTree.SubElement(root, "testsuite", {"name": name, **figures, **when})
        suite.extend(tests)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _test(
    suites: dict[str, list[ElementTree.Element]], suite: str, name: str, seconds: float = 0.0
) -> ElementTree.Element:
    """Add a test to a suite, and return it."""
    test = ElementTree.Element("testcase", classname=f"attnbench.{suite}", name=one_line(name), time=_time(seconds))
    suites.setdefault(suite, []).append(test)
    return test


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _failure(test: ElementTree.Element, text: str, kind: str) -> None:
    shown = one_line(text)  # XML cannot hold most control characters
    ElementTree.SubElement(test, "failure", message=shown, type=kind).text = shown
