"""The verdict of a gate for other programs: one JSON object. Figures keep their metric's unit; ratios are relative."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attnbench.analysis.gate import write_rows
from attnbench.analysis.gate.comparable import Difference
from attnbench.analysis.gate.findings import VERDICTS, Finding
from attnbench.analysis.gate.gate import Judgement
from attnbench.core.record import Run


def json_text(judgement: Judgement) -> str:
    said = {
        "verdict": write_rows.WORDS[judgement.exit_code].lower(),
        "exit_code": judgement.exit_code,
        "counts": {verdict: judgement.count(verdict) for verdict in VERDICTS},
        "heading": list(judgement.heading),
        "baseline": _run(judgement.baseline),
        "current": _run(judgement.current),
        "expected": _differences(judgement.meant),
        "refused": _differences(judgement.refused),
        "notes": list(judgement.notes),
        "findings": [_finding(f) for f in judgement.findings],
    }
    return json.dumps(said, indent=1, allow_nan=False) + "\n"


def _run(run: Run) -> dict[str, Any]:
    here = run.environment
    return {
        "started": run.started,
        "suite": run.suite,
        "device": here.device.name,
        "torch": here.torch,
        "git": here.git,
    }


def _differences(found: Sequence[Difference]) -> list[dict[str, Any]]:
    return [{"names": list(d.names), "what": d.what} for d in found]


def _finding(f: Finding) -> dict[str, Any]:
    d = f.decision
    return {
        "case": f.case.key,
        "backend": f.backend,
        "cell": f.name,
        "metric": f.metric,
        "verdict": f.verdict,
        "baseline": f.baseline,
        "current": f.current,
        "rounds": list(f.rounds),
        "margin": f.margin,
        "change": d.change if d else None,
        "low": d.low if d else None,
        "high": d.high if d else None,
        "noise": d.noise if d else None,
        "more_rounds": d.more if d else None,
        "held_down": f.held_down,
        "reason": f.reason,
    }
