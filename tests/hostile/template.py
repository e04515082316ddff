"""Files from which inputs are made: a suite, a workload, margins, a kernel, and run files, some from GPUs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from hostile.call import call
from hostile.sandbox import sandbox

RESULTS = Path(__file__).parents[2] / "results"
SMALL = ("--device", "fake", "-b", "fake", "--headdim", "64", "--full", "--pass", "fwd")
OWN = """
from attnbench.backends.fake import Fake

class Mine(Fake):
    pass

number = 5
"""
WORKLOAD = """
name: chat
weights: time
parts:
  - {name: prefill, weight: 70%, seqlen: 1k, pass: fwd, headdim: 64}
  - {name: rest, weight: 30%, seqlen: 512, backend: "fa*"}
"""
MARGINS = """
latency: 4%
memory_peak: 0.02
cells:
  "fake 1k *": {latency: 6%, relative_error: 20%}
  "*": {first_call: 100%}
"""
SUITE = """
axes: {seqlen: [512, 1k], headdim: 64, causal: true, pass: [fwd, bwd]}
policy: {max_seconds: 0.1}
backends: [fake]
"""


def make_template(folder: Path) -> Path:
    """Fill a new folder with the files from which inputs are made, and return it."""
    folder.mkdir(parents=True)
    texts = {"own.py": OWN, "mine.yaml": SUITE, "workload.yaml": WORKLOAD, "margins.yaml": MARGINS, "text.txt": "hi\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "empty.jsonl").touch()
    (folder / "folder").mkdir()
    for source in ("*-sustained-*", "*-first-call-*", "*-fp8-*", "ci-experiment/alike-00*"):
        path = next(p for p in RESULTS.glob(source) if ".jsonl" in p.name)
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        head, *records = content.splitlines(keepends=True)
        plan = json.loads(head)
        plan["plan"] = plan["plan"][:40]
        name = f"{source.split('/')[0].strip('*-')}.jsonl"
        (folder / name).write_bytes(b"".join([json.dumps(plan).encode() + b"\n", *records[:8]]))
    with sandbox(folder):
        for name, more in {"run.jsonl": [], "rounds.jsonl": ["--rounds", "5"], "ünï 🙂.jsonl": ["--sink"]}.items():
            ended = call(["run", *SMALL, *more, "--seqlen", "512,1k", "--out", name])
            assert ended.code == 0, ended
        assert call(["baseline", "save", "rounds.jsonl"]).code == 0
    return folder
