"""Record what documents show: a session on the simulated device, and what `check` says of a wrong function.

The first is the picture docs/terminal.svg of the README, the second simulated/check.txt of docs/own-kernel.md.

python docs/site/record.py
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parents[1]
PICTURE, CHECKED = DOCS / "terminal.svg", DOCS / "site" / "simulated" / "check.txt"
COLUMNS = 92
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLORTERM": "", "COLUMNS": str(COLUMNS)}
RUN = "attnbench run --device fake -b fake --suite quick --rounds 5"
SESSION = (  # what is typed, and whether its output is shown
    (f"{RUN} --out main.jsonl", True),
    (f"ATTNBENCH_FAKE=speed=0.94 {RUN} --out slower.jsonl > /dev/null", False),
    ("attnbench gate main.jsonl slower.jsonl", True),
)
FONTS = re.compile(r"\s*@font-face \{.*?\}\n", re.S)  # which rich loads from another host
TIMES = ((r"20\d\d-\d\d-\d\d", "2026-01-01"), (r"(?<=T)\d\d:\d\d:\d\d", "12:00:00"))  # one, so that nothing changes


def session(folder: Path) -> str:
    """Return what a terminal shows of the session, with its colours; its files are in a folder."""
    shown = []
    for typed, is_shown in SESSION:
        words = [word for word in shlex.split(typed) if word not in (">", "/dev/null")]
        own = dict(word.split("=", 1) for word in words if word.startswith("ATTNBENCH_"))
        command = [sys.executable, "-m", *(word for word in words if not word.startswith("ATTNBENCH_"))]
        there = {**os.environ, **TERMINAL, **own}
        there.pop("NO_COLOR", None)
        done = subprocess.run(command, cwd=folder, env=there, capture_output=True)
        if done.returncode not in (0, 1):  # 1: a regression
            raise SystemExit(done.stderr.decode())
        shown.append(f"\033[1;32m$\033[0m {typed}")
        if is_shown:
            said = done.stdout.decode()
            for pattern, always in TIMES:
                said = re.sub(pattern, always, said)
            shown += ["", said.strip("\n"), ""]
    return "\n".join(shown)


def picture(text: str) -> str:
    """Return the text of a terminal as SVG that loads nothing."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, _environ={})
    console.print(Text.from_ansi(text), soft_wrap=False)
    return FONTS.sub("", console.export_svg(title="attnbench, on a simulated GPU", unique_id="attnbench"))


def checked(folder: Path) -> str:
    """Return what `attnbench check` says of the first function of own-kernel.md, from the table on."""
    code = (DOCS / "own-kernel.md").read_text(encoding="utf-8").split("```python\n")[1].partition("```")[0]
    (folder / "mine.py").write_text(code, encoding="utf-8")
    words = shlex.split("attnbench check ./mine.py:attention --device cpu --headdim 64 --pass fwd --dtype fp32")
    there = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=there, capture_output=True, text=True)
    if done.returncode != 5:  # 5: wrong
        raise SystemExit(done.stderr)
    said = re.sub(r"(?<=File \").*(?=site-packages/)", "", done.stdout).replace(f"{folder.resolve()}/", "")
    return said[said.index("case ") :].strip() + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(picture(session(Path(folder))) + "\n", encoding="utf-8")
        CHECKED.write_text(checked(Path(folder)), encoding="utf-8")
    print(PICTURE, CHECKED)
