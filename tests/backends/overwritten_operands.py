"""Finds wrong code for Hopper: a left operand of a matmul that a loop overwrites although its next round needs it.

ptxas 12.8 and 12.9 make it of right PTX where the operand is loaded to registers before a loop that has a branch
(tests/gpu/wrong_code.py has an example, docs/dev/triton-kernel.md what follows from it).
"""

from __future__ import annotations

import re

INSTRUCTION = re.compile(r"(?:@!?U?P\w+ )?([A-Z][\w.]*)\s+(.*?)\s*;")
COPIES = ("MOV", "IMAD.MOV", "LDL", "LDS", "R2UR")  # which may bring back what was there


def overwritten_operands(sass: str) -> list[str]:
    """Return the registers of Hopper's matmuls that a loop reads and spoils for its next round, from `nvdisasm -c`.

    A left operand that is loaded before a loop must stay in its registers, or be copied back to them.
    """
    sass = sass[: sass.rindex("EXIT")]  # behind it are the rounds of waiting, which jump back into the code
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in sass.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    spoiled = set()
    for end, line in enumerate(lines):
        target = re.search(r"BRA .*`\((\.L_x_\d+)\)", line)
        begin = labels.get(target[1], end) if target else end
        if begin >= end:
            continue
        writers: dict[int, str] = {}  # the last instruction that wrote a register in this round
        kept = set()  # registers that a matmul reads as they were at the start
        for instruction in filter(None, map(INSTRUCTION.match, lines[begin:end])):
            name, operands = instruction.groups()
            if name.startswith("HGMMA") and (left := re.match(r"R\d+, R(\d+), gdesc", operands)):
                first = int(left[1])
                kept |= {n for n in range(first, first + 4) if n not in writers}
            if written := re.match(r"R(\d+)\b", operands):
                first = int(written[1])
                writers |= dict.fromkeys(range(first, first + _registers_written(name)), name)
        spoiled |= {n for n in kept if n in writers and not writers[n].startswith(COPIES)}
    return [f"R{n}" for n in sorted(spoiled)]


def _registers_written(name: str) -> int:
    """Return how many registers an instruction writes."""
    if name.startswith("HGMMA"):
        return int(name.split("x")[1]) // 2  # fp32 sums of 64 rows over 128 threads
    return 4 if ".128" in name or name.endswith("M88.4") else 2 if ".64" in name or ".WIDE" in name else 1
