"""The verdict of a gate as JUnit XML, a test a cell and metric, whose names stay from gate to gate."""

from __future__ import annotations

from xml.etree import ElementTree

from attnbench.analysis.gate import write_rows
from attnbench.analysis.gate.findings import Finding, Kind
from attnbench.analysis.gate.gate import Judgement


def render(judgement: Judgement) -> str:
    """What fails the gate is a failure; what stays open without failing it is skipped."""

    def fails(kind: Kind) -> bool:
        return judgement.fails(kind) or judgement.unsettles(kind)

    root = ElementTree.Element("testsuites", name="attnbench gate")
    suites: dict[str, list[Finding]] = {}
    for finding in judgement.findings:
        suites.setdefault(finding.metric or "cell", []).append(finding)
    for name, findings in suites.items():
        failing = sum(fails(f.kind) for f in findings)
        skipped = sum(f.verdict in ("inconclusive", "missing") and not fails(f.kind) for f in findings)
        suite = _suite(root, name, len(findings), failing, skipped)
        for finding in findings:
            case = ElementTree.SubElement(suite, "testcase", classname=f"attnbench.{name}", name=finding.name)
            if fails(finding.kind):
                _said(case, "failure", write_rows.sentence(finding), finding.verdict)
            elif finding.verdict in ("inconclusive", "missing"):
                ElementTree.SubElement(case, "skipped", message=write_rows.sentence(finding))
    if judgement.refused:
        suite = _suite(root, "comparable", len(judgement.refused), len(judgement.refused), 0)
        for difference in judgement.refused:
            case = ElementTree.SubElement(suite, "testcase", classname="attnbench.comparable", name=difference.names[0])
            _said(case, "failure", f"{difference.what}; if that is what is under test: {difference.remedy}", "unlike")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, name: str, tests: int, failures: int, skipped: int) -> ElementTree.Element:
    counts = {"tests": tests, "failures": failures, "errors": 0, "skipped": skipped}
    return ElementTree.SubElement(root, "testsuite", name=name, attrib={k: str(v) for k, v in counts.items()})


def _said(case: ElementTree.Element, tag: str, text: str, kind: str) -> None:
    ElementTree.SubElement(case, tag, message=text, type=kind).text = text
