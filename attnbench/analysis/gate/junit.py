"""A judgement as JUnit XML: one test for each cell and metric, with names that stay the same from gate to gate."""

from __future__ import annotations

from xml.etree import ElementTree

from attnbench.analysis.gate.document import sentence
from attnbench.analysis.gate.findings import Finding
from attnbench.analysis.gate.judge import Judgement


def render(judgement: Judgement) -> str:
    """Return the XML. What keeps the gate from passing is a failure; what else is open is skipped."""

    def fails(finding: Finding) -> bool:
        return judgement.fails(finding) or judgement.unsettles(finding)

    root = ElementTree.Element("testsuites", name="attnbench gate")
    suites: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        suites.setdefault(finding.metric or "cell", []).append(finding)
    for name, findings in suites.items():
        failing = sum(map(fails, findings))
        skipped = sum(f.verdict in ("inconclusive", "missing") and not fails(f) for f in findings)
        suite = _suite(root, name, len(findings), failing, skipped)
        for finding in findings:
            case = ElementTree.SubElement(suite, "testcase", classname=f"attnbench.{name}", name=finding.name)
            if fails(finding):
                _failure(case, sentence(finding), finding.verdict)
            elif finding.verdict in ("inconclusive", "missing"):
                ElementTree.SubElement(case, "skipped", message=sentence(finding))
    if judgement.refused:
        suite = _suite(root, "comparable", len(judgement.refused), len(judgement.refused), 0)
        for difference in judgement.refused:
            case = ElementTree.SubElement(suite, "testcase", classname="attnbench.comparable", name=difference.names[0])
            _failure(case, f"{difference.what}; if that is what is under test: {difference.remedy}", "unlike")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, tests: int, failures: int, skipped: int) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": 0, "skipped": skipped}
    return ElementTree.SubElement(root, "testsuite", name=name, attrib={k: str(v) for k, v in counts.items()})


def _failure(case: ElementTree.Element, text: str, kind: str) -> None:
    ElementTree.SubElement(case, "failure", message=text, type=kind).text = text
