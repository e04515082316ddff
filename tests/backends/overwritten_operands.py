"""Find wrong code for Hopper: a left operand of a matmul that a loop overwrites although its next round needs it.

ptxas 12.8 and 12.9 generate it from right PTX where the operand is loaded to registers before a loop with a branch
(example: tests/gpu/wrong_code.py; consequences: docs/dev/triton-kernel.md).
"""

from __future__ import annotations

import re

INSTRUCTION = re.compile(r"(?:@!?U?P\w+ )?([A-Z][\w.]*)\s+(.*?)\s*;")
COPIES = ("MOV", "IMAD.MOV", "LDL", "LDS", "R2UR")  # which may restore the operand


def overwritten_operands(sass: str) -> list[str]:
    """Return the operand registers of Hopper's matmuls that a loop overwrites, from the output of `nvdisasm -c`.

    A left operand that is loaded before a loop must stay in its registers, or be copied back to them.
    """
    sass = sass[: sass.rindex("EXIT")]  # behind it are waiting loops, which jump back into the code
    lines = [re.sub(r"/\*.*?\*/", "", line).strip() for line in sass.splitlines()]
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    spoiled = set()
    for end, line in enumerate(lines):
        target = re.search(r"BRA .*`\((\.L_x_\d+)\)", line)
        begin = labels.get(target[1], end) if target else end
        if begin >= end:
            continue
        writers: dict[int, str] = {}  # the last instruction that wrote a register in this round
        kept = set()  # registers of which a matmul reads the value from the start
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
    """Return the number of registers that an instruction writes."""
    if name.startswith("HGMMA"):
        return int(name.split("x")[1]) // 2  # fp32 sums of 64 rows over 128 threads
    return 4 if ".128" in name or name.endswith("M88.4") else 2 if ".64" in name or ".WIDE" in name else 1
