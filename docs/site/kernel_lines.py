"""Count the lines of attention kernels' sources: python docs/site/kernel_lines.py FLASH_ATTENTION, a clone with git.

The sources of a kernel are a file and the files of its folders that it includes or imports, directly or not, without
kernels for other GPUs than Hopper. Blank XX
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

KEPT = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[2]
KERNELS = {  # backend -> (language, the first file of its forward, of its backward; "" without one)
    "triton": ("Triton", "attnbench/backends/triton/forward.py", "attnbench/backends/triton/backward.py"),
    "gluon": ("Gluon", "attnbench/backends/gluon/forward.py", "attnbench/backends/gluon/backward.py"),
    "tilelang": ("TileLang", "attnbench/backends/tilelang/attention.py", ""),
    "helion": ("Helion", "attnbench/backends/helion/attention.py", ""),
    "fa4": ("CuTe DSL", "flash_attn/cute/flash_fwd_sm90.py", "flash_attn/cute/flash_bwd_sm90.py"),
    "fa3": ("CUDA C++", "hopper/flash_fwd_launch_template.h", "hopper/flash_bwd_launch_template.h"),
    "fa2": (
        "CUDA C++",
        "csrc/flash_attn/src/flash_fwd_launch_template.h",
        "csrc/flash_attn/src/flash_bwd_launch_template.h",
    ),
}


def count_lines(path: str, text: str) -> int:
    """Return the number of lines with code."""
    if not path.endswith(".py"):
        bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        return sum(bool(line.strip()) for line in bare.splitlines())
    with_code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        for line in range(token.start[0], token.end[0] + 1)
        if token.type != tokenize.ENDMARKER
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            with_code -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(with_code)


def used_by(path: str, text: str) -> Iterator[str]:
    """Yield the paths of the files that a source includes or imports, as far as its folders may have them."""
    folder = PurePosixPath(path).parent
    if not path.endswith(".py"):
        yield from (str(folder / name) for name in re.findall(r'#include "([^"]+)"', text))
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = node.module.replace(".", "/")
            yield from (f"{module}.py", *(f"{module}/{of.name}.py" for of in node.names))


def sources(first: str, read: Callable[[str], str | None]) -> dict[str, str]:
    """Return path -> text of a kernel's sources, without the base of attnbench's backends."""
    found: dict[str, str] = {}
    left = [first]
    while left:
        path = left.pop()
        known = re.match(r"attnbench/backends/(gluon|helion|tilelang|triton)/|flash_attn/cute/|hopper/|csrc/", path)
        if path in found or not known or re.search(r"sm80|sm100|sm120", path):
            continue
        text = read(path)
        if text is not None:
            found[path] = text
            left += used_by(path, text)
    return found


def count(name: str, read: Callable[[str], str | None]) -> list[int]:
    """Return the lines of a kernel's forward and of its backward."""
    return [sum(count_lines(*of) for of in sources(first, read).items()) for first in KERNELS[name][1:] if first]


def read_own(path: str) -> str | None:
    """Return the text of a file of attnbench; None where there is none."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else None


def rows() -> dict[str, tuple[str, str, str]]:
    """Return kernel -> its language, and the lines of its forward and backward: attnbench's own as they are now."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["lines"]
    lines = {name: kept.get(name) or count(name, read_own) for name in KERNELS}
    forwards = {name: f"{of[0]:,}" for name, of in lines.items()}
    backwards = {name: f"{of[1]:,}" if len(of) > 1 else "-" for name, of in lines.items()}
    return {name: (KERNELS[name][0], forwards[name], backwards[name]) for name in KERNELS}


def main(clone: Path) -> None:
    """Count and keep the lines of flash-attn's kernels."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", *words], cwd=clone, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    lines = {name: count(name, lambda path: git("show", f"HEAD:{path}")) for name in ("fa4", "fa3", "fa2")}
    commit = (git("log", "-1", "--format=%h") or "").strip()
    KEPT.write_text(json.dumps({"commit": commit, "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
