"""Suites, workloads, margins and run files after some mutations, and command lines that read them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import yaml

from attnbench.run.suite import shipped_suites
from hostile.mutations import mutate_bytes, mutate_tree
from hostile.template import MARGINS, SUITE, WORKLOAD

YAML_TOKENS = (
    *(b"!!python/object/apply:os.system [true]", b"!!binary x", b"!!timestamp 1", b"!!int x", b"!!set {a, b}", b"!x "),
    *(b"!!omap [a: 1]", b"!!pairs [a: 1]", b"&a ", b"*a", b"&a [*a]", b"&a {a: *a}", b"<<: *a", b"{[a]: b}"),
    *b"--- ... 12:30 0x1F 0b1 1e999 .nan -.inf ~ 2001-01-01 2001-99-99 1_000 1k-128m:1 yes ' [ { ] } #".split(b" "),
    *(b"\xff", b"\x85", b"\x00", b"\xef\xbb\xbf", b"? ", b": ", b"- ", b"|\n", b">\n", b"\t", b"\r", b"\n", b'"\\x"'),
    *(b"%YAML 9\n", b"[" * 300, b"{a: " * 300, b"- " * 300, b"9" * 5000),
)


def suite(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield the command line for a shipped suite, a workload or margins after one to four mutations."""
    suites = {path.stem: path.read_text() for path in shipped_suites().values()} | {"mine": SUITE}
    name = rng.choice([*[*suites] * 2, "workload", "margins"])
    text = {**suites, "workload": WORKLOAD, "margins": MARGINS}[name]
    file = Path("mutated.yaml")
    if rng.random() < 0.6:
        tree = yaml.safe_load(text)
        for _ in range(rng.choice((1, 1, 2, 4))):
            tree = mutate_tree(rng, tree)
        style = rng.choice((True, False, None))
        try:
            text = yaml.dump(tree, allow_unicode=rng.random() < 0.5, default_flow_style=style)
        except RecursionError:  # too deep for yaml.dump; JSON is YAML
            text = json.dumps(tree)
    content = text.encode("utf-8", "surrogatepass")
    for _ in range(rng.choice((0, 1, 2)) if rng.random() < 0.6 else 0):
        content = mutate_bytes(rng, content, YAML_TOKENS)
    (folder / file).write_bytes(content)
    if name == "workload":
        yield ["compare", "run.jsonl", "rounds.jsonl", "--name", "run.jsonl=A", "--workload", str(file)]
    elif name == "margins":
        yield ["gate", "rounds.jsonl", "rounds.jsonl", "--margins", str(file)]
    else:
        device = rng.choice((["--device", "fake"], ["--device", "fake", "-b", "fake"], ["--device", "cpu"], []))
        yield ["run", "--suite", str(file), *device, "--dry-run"]


JSON_TOKENS = (
    *b'NaN Infinity -Infinity 1e999 -0 1E400 null true {} [] "" , : " \\ \\ud800 \\u0000 \x00 \xff'.split(b" "),
    *(b"\n", b"\x1f\x8b", b"\xef\xbb\xbf", b"[" * 500, b'{"a":' * 500, b"9" * 5000, b'{"type":"record"}\n'),
    *(b'{"type":"run","schema":2}\n', b'"type":"run",', b'"schema":1e400,'),
)


def run_file(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield command lines that read a run file after one to four mutations."""
    names = ["run.jsonl", "rounds.jsonl", "sustained.jsonl", "first-call.jsonl", "fp8.jsonl", "ci-experiment.jsonl"]
    name = rng.choice(names)
    file = "mutated.jsonl"
    content = (folder / name).read_bytes()
    if rng.random() < 0.85:
        lines = [json.loads(line) for line in content.splitlines()]
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = 0 if rng.random() < 0.3 else rng.randrange(len(lines))
            lines[at] = mutate_tree(rng, lines[at])
        if rng.random() < 0.3:  # the same in each record, as from another version of attnbench
            again = rng.random()
            lines[1:] = [mutate_tree(random.Random(again), line) for line in lines[1:] if line]
        content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    for _ in range(rng.choice((1, 2, 3)) if rng.random() < 0.25 else 0):
        content = mutate_bytes(rng, content, JSON_TOKENS)
    (folder / file).write_bytes(content)
    reports = [
        ["report", file, "-f", form] for form in ("table", "md", "csv", "json", "html", "bmf", "pytest-benchmark")
    ]
    others = [
        ["report", file, name, "-f", rng.choice(("table", "html")), "-f", "parquet=new.parquet"],
        ["report", file, "--all", "-m", "latency,memory_peak,error,joules,clock_held", "--by", "seqlen"],
        ["gate", file, name],
        ["gate", name, file, "-f", rng.choice(("table", "md", "html", "json", "junit", "github"))],
        [
            "compare",
            file,
            name,
            "--name",
            f"{file}=A",
            "--name",
            f"{name}=B",
            "-f",
            rng.choice(("table", "html", "csv")),
        ],
        ["compare", name, file, "--price", "h200=3.40/h", "--all"],
        [
            "compare",
            name,
            file,
            "--name",
            f"{file}=A",
            "--price",
            "h200=40000/4y",
            "--energy-price",
            "0.2",
            "-f",
            "json",
        ],
        ["recommend", file, name, "-f", rng.choice(("table", "md", "html", "csv", "json"))],
        ["recommend", file, "--pass", "fwd", "-b", "!triton"],
        ["run", "--resume", file, "--dry-run"],
    ]
    yield rng.choice(reports)
    yield rng.choice(others)
    if rng.random() < 0.3:
        yield ["baseline", "save", file, "--dir", "kept"]
        yield ["baseline", "show", "--dir", "kept"]
