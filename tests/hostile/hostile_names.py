"""Run files with hostile names, reasons and versions, which viewers might execute, and command lines to show them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hostile import live

M = live.MARK
NAMED = (
    *(f"x\n::error title={M}::{M}", f"::error::{M}", f" ::set-output name=a::{M}", f"##[error]{M}", "\r\n::error::x"),
    *(f"a ##vso[task]{M}", f"@{M}", f"a @org/{M}", f"{M}@x.example", f"https://{M}.example", f"www.{M}.example", "#1"),
    *(f"<img src=x onerror={M}()>", f"</script><script>{M}()</script>", f"'\" onload={M}() x='", f"<{M}>", "<!--"),
    *(f"[{M}](https://{M}.example)", f"![a]({M})", f"a|b|{M}", "| - | - |", f"`{M}`", "```\n", "\n\n# h\n\n- l\n"),
    *(
        "> q",
        "GH-1",
        f"]]>{M}",
        "&amp;&#64;",
        "\\",
        "$x$",
        "*",
        "__a__",
        "~~~",
        "---",
        "===",
        "1. a",
        "- a",
        "%0A%s{0}",
    ),
    *("\x00", "a\x07b", f"\x1b[31m{M}", f"\x1b]8;;https://{M}.example\x07y", f"\x9b31m{M}", "\x85", "\u2028", "\ufffe"),
    *(f"\u202e{M}", f"\u2067{M}", "\u200b", "\ud800", "\udfff a", "🙂", "a" * 3000, "", " ", "=1+1", "- a"),
)
OPEN = ("versions", "specs", "interpreters", "packages", "kernels", "peak")  # mappings whose keys are names from data
FIXED = {"type", "unit", "dtype", "direction", "layout", "data", "status", "kind", "timer", "l2", "caches", "turns"}


def _strings(tree: Any, field: str = "") -> Iterator[str]:
    """Yield the texts in a tree that are not words of the format."""
    if isinstance(tree, dict):
        yield from tree if field in OPEN else ()
        for key, value in tree.items():
            yield from _strings(value, field if field in OPEN else key)
    elif isinstance(tree, list):
        for value in tree:
            yield from _strings(value, field)
    elif isinstance(tree, str) and field not in FIXED:
        yield tree


def _renamed(tree: Any, names: Mapping[str, str], field: str = "") -> Any:
    if isinstance(tree, dict):
        inner = {k: _renamed(v, names, field if field in OPEN else k) for k, v in tree.items()}
        return {names.get(k, k): v for k, v in inner.items()} if field in OPEN else inner
    if isinstance(tree, list):
        return [_renamed(value, names, field) for value in tree]
    return names.get(tree, tree) if isinstance(tree, str) and field not in FIXED else tree


def names(rng: random.Random, folder: Path) -> Iterator[list[str]]:
    """Yield command lines that show a run with hostile names, reasons and versions, and compare it with a plain one."""
    source = rng.choice(["run.jsonl", "rounds.jsonl", "sustained.jsonl", "fp8.jsonl", "ci-experiment.jsonl"])
    lines = [json.loads(line) for line in (folder / source).read_text().splitlines()]
    for record in lines[1:]:
        if rng.random() < 0.4:
            record |= {"status": rng.choice(("wrong", "wrong-kernel", "oom", "failed", "skipped")), "reason": "why"}
        record |= {"notes": ["a note"], "stderr": "an end"} if rng.random() < 0.3 else {}
    known = sorted({*_strings(lines)})
    new = {old: rng.choice(NAMED) for old in rng.sample(known, min(len(known), rng.choice((1, 3, 10))))}
    often = [record["backend"] for record in lines[1:]] + [lines[0]["environment"]["device"]["name"], "why"]
    new[rng.choice(often)] = " ".join(rng.choices(NAMED, k=2))
    file, other = rng.choice(("mutated.jsonl", f"{M} \n::error::x.jsonl", "@x <b>.jsonl")), "other.jsonl"
    for path, content in ((file, _renamed(lines, new)), (other, lines if rng.random() < 0.3 else _renamed(lines, new))):
        (folder / path).write_text("".join(f"{json.dumps(line)}\n" for line in content))
    pair = [other, file] if rng.random() < 0.7 else [file, other]
    for form in rng.sample(("table", "md", "html", "json", "junit", "github"), 3):
        yield ["gate", *pair, "-f", form, *rng.choice(([], ["--all"], ["--allow-wrong", "--all"]))]
    yield ["report", file, "-f", rng.choice(("table", "md", "html", "csv", "json", "bmf"))]
    yield ["recommend", *pair, "-f", rng.choice(("table", "md", "html", "csv", "json"))]
    yield ["compare", *pair, "--all", "-f", rng.choice(("table", "md", "html", "csv", "json"))]
    yield rng.choice((["run", "--resume", file, "--dry-run"], ["baseline", "save", file, "--dir", "kept"]))
    yield ["baseline", "show", "--dir", "kept", "-f", rng.choice(("table", "md", "html"))]
