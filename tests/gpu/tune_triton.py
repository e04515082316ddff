"""Find block sizes for a row of backends/triton/block_sizes.py: compile, check and time candidates on a GPU.

Run it from the repository's root:

    python tests/gpu/tune_triton.py                               all rows; a minute on an H200 with 16 cores
    python tests/gpu/tune_triton.py --only d128 bwd --out f.json  rows whose name has both words; all figures to a file
    python tests/gpu/tune_triton.py --dry --only d64 fwd          tiny, in Triton's interpreter, to try this script

A candidate is written BLOCK_MxBLOCK_NxWARPSxSTAGES with options (see `Blocks`): t for tensor maps, r for resident, a
for ahead; p for a headdim padded in one tile (block_sizes.column_parts), for dk/dv and dq together if either has it; s8
for query heads split into 8 parts for dk and dv; without it block_sizes.query_splits chooses the number. Each candidate
goes through these steps (tune_candidate.py):

1. One of --jobs processes compiles it and runs it on lengths that fill no block, with grouped heads. After a crash or a
   hang the candidate has failed, and a new process continues with the next. Compiled kernels stay in Triton's cache.
2. A process that has the GPU alone runs it on the row: bf16, 16k tokens in all, nheads x headdim = 2048; "d192" has 16
   heads and a headdim_v of 128, "d64-mqa" 32 query heads on one, "d128-gqa" 16 on 2.
3. In both steps all results are compared with float32, so that a wrong block is found wherever it is. Results start as
   NaN, which shows unwritten elements. A backward gets out and log-sum-exp from float32 too.
4. A right candidate is timed as by attnbench: CUDA events, L2 cold, bursts with pauses, the median.

dk/dv and dq are timed separately, each with the FLOPs of its own matmuls (4 and 3, although both together count as 5;
see tune_candidate.share), and then the best of both together. "table" marks the present row of block_sizes.py.
Candidates are chosen for Hopper, from registers and spills (`python tests/backends/triton_registers.py`); they may fail
on another GPU.

Exit code 1 means that a row has no figure, or that the candidate in block_sizes.py is wrong or failed; 2 that there is
no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())  # finds attnbench without an installation

from attnbench.run.process import WorkerDied, WorkerHung, WorkerProcess

ROWS = {  # headdim, tokens in a sequence, mask, pass; the TFLOP/s to reach on an H200
    "d64 16k full fwd": 440,
    "d64 16k causal bwd": 370,
    "d128 4k causal fwd": 480,
    "d128 16k full fwd": 560,
    "d128 16k full bwd": 420,
    "d128 16k causal bwd": 380,
    "d256 16k causal fwd": 480,
    "d256 16k causal bwd": 260,
    "d192 4k causal fwd": 537,  # cuDNN's, as the next two; padded to 256 these had 341, 205 and, not split, 187
    "d192 4k causal bwd": 419,
    "d64-mqa 2k causal bwd": 316,
    "d128-gqa 4k causal bwd": 380,
}
CANDIDATES = {  # by kernel and headdim; the first candidate has no tensor maps
    "fwd d64": """128x64x4x3 64x128x4x3-tr 64x128x4x3-tra 64x128x4x3-t 64x128x4x4-tr 64x64x4x4-tra 64x64x4x4-tr
        128x64x4x3-tr 128x128x8x3-tra""",
    "fwd d128": """128x64x8x3 64x64x4x3-tra 64x64x4x3-tr 64x64x4x4-tra 64x32x4x4-tra 128x64x8x3-tra 128x64x8x4-tra
        128x128x8x2-tra 64x128x4x2-tr""",
    "fwd d256": """128x64x8x2 64x32x4x3-tra 64x32x4x3-tr 64x32x4x4-tra 64x16x4x4-tra 64x64x4x2-tra 128x32x8x3-tra
        128x32x8x4-tra 128x64x8x2-t""",
    "fwd d192": """64x32x4x3-trap 64x64x4x2-tr 64x64x4x3-tr 64x32x4x3-tr 64x32x4x4-tr 128x64x8x2-tr 128x64x8x3-tr
        128x128x8x2-tr 128x64x8x2-t""",
    "dkdv d192": """64x64x8x2-tap 64x64x8x2-ta 64x64x8x2-t 64x64x8x3-ta 32x64x4x2-t 32x64x4x2-ta 32x64x8x3-ta
        64x128x8x2-t""",
    "dq d192": """128x32x8x3-tap 128x32x8x3-ta 64x32x4x3-tra 64x32x4x4-tra 64x32x4x3-ta 64x64x4x2-ta 128x64x8x2-ta
        64x64x8x2-ta""",
    "dkdv d64-mqa": "64x64x4x3-ts1 64x64x4x3-ts2 64x64x4x3-ts4 64x64x4x3-ts8 64x64x4x3-ts16 64x64x4x3-ts32 64x64x4x3-t",
    "dq d64-mqa": "128x64x4x3-ta",
    "dkdv d128-gqa": "64x128x8x3-s1 64x128x8x3-s2 64x128x8x3-s4 64x128x8x3-s8 64x128x8x3",
    "dq d128-gqa": "64x64x4x3-tra",
    "dkdv d64": """64x64x4x4 64x64x4x3-t 64x64x4x2-t 64x64x4x3-ta 64x128x8x3 64x128x8x3-ta
        128x64x4x2-t 32x64x4x4-t 64x64x4x3""",
    "dkdv d128": """64x128x8x3 64x128x8x3-a 64x128x8x3-ta 64x128x8x4 64x128x8x4-ta 64x64x4x2-ta 64x64x4x2-t 32x64x4x4-ta
        32x128x8x3-ta 128x128x8x2-ta""",
    "dkdv d256": "32x64x8x3 64x64x8x2-ta 64x64x8x2-t 64x64x8x2-a 32x64x8x3-a 32x64x8x4-t 64x32x8x3-ta",
    "dq d64": """128x64x8x3 128x64x4x3-ta 128x64x4x3-t 128x64x4x4-t 64x128x4x3-tra 64x128x4x3-tr 64x64x4x4-tra
        64x64x4x3-tr 128x128x8x3-tr""",
    "dq d128": """128x64x8x3 64x64x4x3-tra 64x64x4x3-tr 64x64x4x4-tra 64x64x4x2-t 64x32x4x4-tra 128x64x8x3-tra
        128x64x8x4-tr""",
    "dq d256": "128x32x8x2 128x32x8x3-ta 128x32x8x3-t 128x32x8x3-a 128x16x8x4-ta 64x32x4x4-t 64x32x4x3-tr 64x64x8x2-ta",
}
KERNELS = {"fwd": ("fwd",), "bwd": ("dkdv", "dq")}  # option --kernel -> kernels
ANSWER_LIMIT = 150.0  # seconds after which a process without an answer is killed
PROGRESS_EVERY = 10.0  # seconds between two lines of progress

Found = dict[str, Any]  # a candidate, or two together, with the answer of tune_candidate.py


class CandidateProcess:
    """A child process that runs candidates. After a crash or a timeout the next question goes to a new process."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self._program = (str(Path(__file__).with_name("tune_candidate.py")), *(["--dry"] if dry else []))
        self._variables = {"TRITON_INTERPRET": str(int(dry)), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> CandidateProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def ask(self, question: dict[str, Any], limit: float) -> Found:
        """Return the answer to a question. A crash or a timeout is an answer with "failed"."""
        worker = self._worker = self._worker or WorkerProcess(variables=self._variables, program=self._program)
        try:
            answer = worker.ask(question, limit)
        except WorkerHung:
            answer = {"failed": f"no answer within {limit:g} s", "ends": True}
        except WorkerDied as died:
            last_line = (worker.stderr_tail() or "").splitlines()[-1:]
            answer = {"failed": ": ".join([str(died), *last_line])[:160], "ends": True}
        if answer.pop("ends", False):
            self.__exit__()
        return answer


def ask_all(questions: list[dict[str, Any]], jobs: int, dry: bool) -> Iterator[Found]:
    """Yield the answers in the order of the questions, from `jobs` processes."""
    idle: queue.SimpleQueue[CandidateProcess] = queue.SimpleQueue()

    def one(question: dict[str, Any]) -> Found:
        asker = idle.get()
        try:
            return asker.ask(question, ANSWER_LIMIT)
        finally:
            idle.put(asker)

    jobs = max(1, min(jobs, len(questions)))
    with ThreadPoolExecutor(jobs) as pool, ExitStack() as stack:
        for _ in range(jobs):
            idle.put(stack.enter_context(CandidateProcess(dry)))
        # At Ctrl-C this runs before the processes are killed.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        yield from pool.map(one, questions)


def check(found: list[Found], jobs: int, dry: bool) -> None:
    """Add to each candidate the result of its check on odd lengths."""
    began = last_progress = time.monotonic()
    questions = [{"row": f["row"], "blocks": f["blocks"], "check": True} for f in found]
    for n, (f, answer) in enumerate(zip(found, ask_all(questions, jobs, dry), strict=True), 1):
        f |= answer
        if time.monotonic() - last_progress > PROGRESS_EVERY:
            last_progress = time.monotonic()
            print(f"compiled and checked {n} of {len(found)}, {last_progress - began:.0f} s", flush=True)


def measure(found: list[Found], asker: CandidateProcess) -> None:
    """Time each right candidate of a row, then the best dk/dv and the best dq together, and add the figures."""

    def add(f: Found) -> None:
        if right(f):
            f |= asker.ask({"row": f["row"], "blocks": f["blocks"], "check": False}, ANSWER_LIMIT)

    for f in found:
        add(f)
    dkdv, dq = (fastest(found, kernel) for kernel in KERNELS["bwd"])
    if dkdv and dq:
        found.append({**dkdv, "blocks": dkdv["blocks"] | dq["blocks"], "table": dkdv["table"] and dq["table"]})
        add(found[-1])


def tune(
    rows: list[str], kinds: list[str], table: dict[str, str | None], jobs: int, asker: CandidateProcess
) -> list[Found]:
    """Return every candidate of these rows with its figures, timed by `asker`, and print a table for each row."""
    found: list[Found] = [
        {"row": row, "blocks": {kernel: text}, "table": table.get(f"{key} {row.split()[2]}") == text}
        for row in rows
        for kind in kinds
        if (kind == "fwd") == row.endswith("fwd")
        for kernel in KERNELS[kind]
        for key in [f"{kernel} {row.split()[0]}"]
        for text in CANDIDATES.get(key, "").split()
    ]
    check(found, jobs, asker.dry)
    measured = []
    for row in rows:
        if mine := [f for f in found if f["row"] == row]:
            print(f"{row}: {ROWS[row]} TFLOP/s to reach; {len(mine)} candidates", flush=True)
            measure(mine, asker)
            print(*lines_of(mine), sep="\n", flush=True)
            measured += mine
    return measured


def right(f: Found) -> bool:
    return "failed" not in f and "wrong" not in f


def fastest(found: list[Found], *kernels: str) -> Found | None:
    """Return the fastest right candidate for exactly these kernels; None where there is none."""
    return min((f for f in found if right(f) and tuple(f["blocks"]) == kernels), key=seconds, default=None)


def seconds(f: Found) -> float:
    """Return the time of a candidate as a key to sort by; candidates without a time come last."""
    return float(f["seconds"]) if right(f) else float("inf")


def names(f: Found) -> str:
    return ", ".join(f"{kernel} {text}" for kernel, text in f["blocks"].items())


def lines_of(found: list[Found]) -> list[str]:
    """Return the table of a row: candidates by kernel, the fastest first, wrong and failed ones last."""
    lines = []
    for kernels in dict.fromkeys(tuple(f["blocks"]) for f in found):
        for f in sorted((f for f in found if tuple(f["blocks"]) == kernels), key=seconds):
            outcome = f"WRONG: {f['wrong']}" if "wrong" in f else f"FAILED: {f['failed']}" if "failed" in f else ""
            outcome = outcome or f"{f['seconds'] * 1e3:8.3f} ms {f['rate'] / 1e12:6.0f} TFLOP/s"
            lines.append(f"   {names(f):28} {outcome}{'  table' if f['table'] else ''}")
    return lines


def summary(rows: list[str], kinds: list[str], found: list[Found]) -> tuple[list[str], bool]:
    """Return a line for each row and kind, and whether all rows have a figure and the table's candidates are right."""
    lines, well = [], all(right(f) for f in found if f["table"])
    for row, kind in ((row, kind) for row in rows for kind in kinds):
        mine = [f for f in found if f["row"] == row and set(f["blocks"]) <= set(KERNELS[kind])]
        best = fastest(mine, *KERNELS[kind])
        if best is not None:
            rate, target = best["rate"] / 1e12, ROWS[row]
            reached = "reached" if rate >= target else f"{rate / target - 1:.0%}"
            lines.append(f"{row:20} {kind:5} {rate:4.0f} of {target} {reached:8} {names(best)}")
        elif mine:
            lines.append(f"{row:20} {kind:5} no figure")
            well = False
    return lines, well


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="rows whose name has all of these (a,b: a or b)"
    )
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS), help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile; default: cores")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all figures as JSON, in seconds and FLOP/s")
    parser.add_argument("--dry", action="store_true", help="tiny, on a CPU; its speeds mean nothing")
    options = parser.parse_args(arguments)
    began, dry = time.monotonic(), options.dry
    rows = [row for row in ROWS if all(set(word.split(",")) & set(row.split()) for word in options.only)]
    if not rows:
        parser.error(f"no row has all of {', '.join(options.only)}; rows are: {', '.join(ROWS)}")
    kinds = [kind for kind in KERNELS if kind in options.kernel]
    with CandidateProcess(dry) as asker:
        machine = asker.ask({"candidates": {key: texts.split() for key, texts in CANDIDATES.items()}}, ANSWER_LIMIT)
        if "failed" in machine:
            print(f"cannot start: {machine['failed']}; --dry tries this script on a CPU", file=sys.stderr)
            return 2
        print(f"{machine['device']}, torch {machine['torch']}, Triton {machine['triton']}", flush=True)
        found = tune(rows, kinds, machine["table"], options.jobs, asker)
    if options.out:
        figures = {**machine, "dry": dry, "targets": ROWS, "found": found}
        options.out.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    lines, well = summary(rows, kinds, found)
    print(f"summary, after {time.monotonic() - began:.0f} s", *lines, sep="\n")
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
