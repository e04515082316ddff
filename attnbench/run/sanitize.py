"""What NVIDIA's compute-sanitizer finds in a few small cases of a backend, for `attnbench check --sanitize`.

Each of its tools runs worker/sanitized_launch.py once for all of these cases, because torch takes long to start under
it. Only where that run is not clean does each case have a run of its own, which tells the cases apart: a tool may write
its log later than the program goes on, and an access out of bounds ends the CUDA context.

Torch takes its memory from the driver tensor by tensor here (PYTORCH_NO_CUDA_MEMORY_CACHING), so that an access beyond
a tensor is one beyond an allocation; --padding keeps allocations apart. No kernels are filtered: initcheck must see
all that writes memory. Findings of the other tools than memcheck in torch's own kernels are left out instead.

The log is read as text, as NVIDIA's guide shows it (docs.nvidia.com/compute-sanitizer), because its XML is not
documented.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attnbench.core.case import DIRECTIONS
from attnbench.core.groups import grouped
from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.core.record import Record, Status
from attnbench.core.text import count, one_line, some
from attnbench.run.process import IN_WORKER, isolated_command
from attnbench.run.profile import ncu

NAME = "compute-sanitizer"
MISSING = (
    f"--sanitize: no {NAME} on PATH, in CUDA_HOME/bin or in /usr/local/cuda*/bin; it is part of the CUDA toolkit: "
    "set CUDA_HOME to that, or pip install nvidia-cuda-sanitizer-api"
)
NO_GPU = f"--sanitize: {NAME} looks at kernels on an NVIDIA GPU, and this device is a CPU; leave it out"


@dataclass(frozen=True)
class Tool:
    """A tool of compute-sanitizer: what to do about its findings, and its own options."""

    todo: str
    options: Sequence[str] = ()
    of_torch: bool = False  # whether findings in torch's own kernels count


TOOLS: Mapping[str, Tool] = {
    "memcheck": Tool(
        "mask loads and stores beyond the end of a tensor",
        ("--padding", "65536", "--report-api-errors", "no"),
        of_torch=True,
    ),
    "racecheck": Tool("put a barrier between the two, as __syncthreads() or tl.debug_barrier()"),
    "initcheck": Tool("write memory before a kernel reads it, or allocate it with zeros"),
    "synccheck": Tool("let all threads that the barrier counts reach it"),
}
COMMON = (
    *("--show-backtrace", "device", "--demangle", "simple", "--print-limit", "10000"),
    *("--target-processes", "application-only", "--launch-timeout", "0"),  # 0: importing torch may take long
)
VARIABLES = {
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    # With expandable segments compute-sanitizer reports accesses that are none.
    **dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:False"),
    IN_WORKER: "1",
}
DONE = "attnbench: all launches ended"  # the last line of the program
SLOWER = 10  # a tool may take this many times the time of one case
MOST = 3  # cases of a backend
TRIED: Sequence[Status] = ("ok", "wrong", "wrong-kernel", "failed")
BLOCK = 64  # a length that is no multiple of it ends within a block of most kernels
_TORCH = ("at::", "at_cuda_detail::", "c10::")

_LINE = re.compile(r"^={9} ?(.*)$")
_DETAIL = re.compile(r"\s|(at|by thread|and|Address|Access|Device Frame|Host Frame|Saved host)\b")
_SEVERITY = re.compile(r"(error|warning|info|fatal): ", re.IGNORECASE)
# "kernel(float *)+0x50 in mine.cu:41", and in versions before 2022 "0x50 in mine.cu:41:kernel(float*)"
_AT = re.compile(r"(?P<kernel>\S.*?)[+:]0x[0-9a-f]+(?: in (?P<place>\S.*:\d+))?$")
_AT_BEFORE = re.compile(r"0x[0-9a-f]+ in (?:(?P<place>\S+:\d+):)?(?P<kernel>\S.*)$")
_FRAME = re.compile(r"Device Frame: ?(.*)$")
_ACCESS = re.compile(r"(Read|Write|Atomic) access at (.*?)(?: \[([\d,]+) hazards?\])?$")
_INVALID = re.compile(r"(Potential invalid|Invalid) (?:__(\w+)__ )?(\w+).* of size ([\d,]+)")
_UNINITIALIZED = re.compile(r"Uninitialized (?:__(\w+)__ )?memory read of size ([\d,]+)")
_NO_FINDING = re.compile(r"COMPUTE-SANITIZER$|.*SUMMARY: |Program hit |Host API |Leaked |Unused ")
BARRIERS = {  # beginning of synccheck's sentence -> what the kernel does
    "divergent thread(s) in warp": "has a barrier that not all threads of a warp reach",
    "divergent thread(s) in block": "has a barrier that not all threads of a block reach",
    "invalid argument": "has a barrier with arguments that do not fit the threads that reach it",
}
# Kernels whose warps do different work have barriers that only some warps reach, on purpose.
DELIBERATE = BARRIERS["divergent thread(s) in block"]


@dataclass(frozen=True)
class Finding:
    """What a kernel does wrong, at one place."""

    kernel: str
    what: str
    place: str = ""  # file and line, where the kernel was compiled with them

    def text(self, times: int) -> str:
        """Return the finding, seen a number of times, in words."""
        at = f" at {self.place}" if self.place else ""
        return f"{self.kernel} {self.what}{at}, {count(times, 'time')}"


@dataclass(frozen=True)
class Log:
    """What a tool wrote: its findings with how often each was printed, and those that may be intended."""

    findings: Mapping[Finding, int]
    doubtful: Mapping[Finding, int]
    said: tuple[str, ...] = ()  # its other lines, on itself and on the program
    has_summary: bool = False  # its last line
    problem: str = ""  # why it gave no full answer; "" where it saw all launches to their end, or has findings
    hung: bool = False  # whether it did not end within the time allowed


def find() -> str | None:
    """Return the path of compute-sanitizer; None where it is in none of the places of MISSING.

    The package nvidia-cuda-sanitizer-api is looked for in this environment; only versions from 13.5 on are whole.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    toolkits = [Path(home) / "bin"] if home else []
    toolkits += sorted(Path("/usr/local").glob("cuda*/bin"))
    toolkits += sorted(Path(sysconfig.get_path("purelib")).glob(f"nvidia/cu*/{NAME}"))
    return shutil.which(NAME) or shutil.which(NAME, path=os.pathsep.join(map(str, toolkits)))


def chosen(records: Sequence[Record]) -> list[Record]:
    """Return the records of a backend whose cases are run: the smallest of each pass, and the smallest of decoding.

    Lengths that end within a block, and causal masks, come first.
    """

    def cost(record: Record) -> tuple[int, bool, int]:
        shape = record.case.shape
        aligned = (shape.seqlen_q % BLOCK == 0) + (shape.seqlen_k % BLOCK == 0)
        work = math.prod((shape.batch, shape.nheads, shape.seqlen_q, shape.seqlen_k, shape.headdim))
        return aligned, not record.case.causal, work

    tried = [record for record in records if record.status in TRIED]
    kinds = grouped(tried, lambda record: (record.case.shape.seqlen_q == 1, DIRECTIONS.index(record.case.direction)))
    return [min(kinds[kind], key=cost) for kind in sorted(kinds)][:MOST]


def results(
    program: str,
    records: Sequence[Record],
    device: Device,
    specs: Mapping[str, str],
    interpreters: Mapping[str, str],
    timeout: float,
    say: Callable[[str], object],
) -> Iterator[tuple[int, Record]]:
    """Yield the index and the new record of each case that compute-sanitizer, at `program`, has looked at.

    `specs` and `interpreters` are those of the backends, `timeout` is the time of one case in seconds without it.
    """
    index = {record.id: number for number, record in enumerate(records)}
    for name, of_backend in grouped(records, lambda record: record.backend).items():
        cases = chosen(of_backend)
        logs: dict[str, dict[str, Log]] = {record.id: {} for record in cases}
        request = {"name": name, "spec": specs[name], "device": to_json(device), "done": DONE}
        for tool in TOOLS if cases else ():
            say(f"{tool} of {NAME} on {name}")
            run = partial(_run, program, tool, interpreters.get(name), request, SLOWER * timeout)
            for record, log in _told_apart(run, cases):
                logs[record.id][tool] = log
        yield from ((index[record.id], judged(record, logs[record.id])) for record in cases)


def _told_apart(run: Callable[[Sequence[Record]], Log], cases: Sequence[Record]) -> list[tuple[Record, Log]]:
    """Return each case with the log of a tool: of one run of all, or of a run of its own where that is not clean."""
    together = run(cases)
    is_clean = not together.findings and not together.problem
    if is_clean or together.hung or len(cases) == 1:  # a case of its own might hang for as long
        return [(record, together) for record in cases]
    alone = [run([record]) for record in cases]
    if together.findings and not any(log.findings for log in alone):  # as a race may do
        alone = [replace(log, findings=together.findings) for log in alone]
    return list(zip(cases, alone, strict=True))


def judged(record: Record, logs: Mapping[str, Log]) -> Record:
    """Return a record with what the tools have found in its case: a finding makes a right result `wrong`."""
    found = [f"{NAME} {tool}: {_texts(log.findings)}; {TOOLS[tool].todo}" for tool, log in logs.items() if log.findings]
    notes = [
        f"{NAME} {tool}: {_texts(log.doubtful)}, which may be intended" for tool, log in logs.items() if log.doubtful
    ]
    return replace(
        record,
        status="wrong" if found and record.status == "ok" else record.status,
        reason="; ".join(filter(None, (record.reason, *found))) or None,
        notes=(*record.notes, *notes),
        sanitizer={tool: log.problem for tool, log in logs.items()},
    )


def _texts(found: Mapping[Finding, int]) -> str:
    return some(finding.text(times) for finding, times in found.items())


def _run(
    program: str,
    tool: str,
    python: str | None,
    request: Mapping[str, Any],
    timeout: float,
    cases: Sequence[Record],
) -> Log:
    """Return what a tool says of the launches of some cases of a backend, in the interpreter `python`."""
    asked = json.dumps({**request, "cases": [to_json(record.case) for record in cases]})
    launch = isolated_command("attnbench.worker.sanitized_launch", asked, python=python)
    with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
        path = Path(folder) / "log"
        command = [program, "--tool", tool, *COMMON, *TOOLS[tool].options, "--log-file", str(path), *launch]
        try:
            said = ncu.execute(command, timeout, VARIABLES)
        except ncu.NotCounted as error:
            return Log({}, {}, problem=f"{error}, {SLOWER} times --timeout", hung=True)
        except OSError as error:
            return Log({}, {}, problem=f"{program} cannot be started: {error.strerror}", hung=True)
        written = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    log = parse(tool, f"{written}\n{said}")
    return replace(log, problem=_problem(log, said))


def _problem(log: Log, said: str) -> str:
    """Return why the tool's answer is not full, by its log and the output of tool and program; "" where it is."""
    lines = [line for line in said.splitlines() if line.strip() and not _LINE.match(line)]
    if log.findings:  # one of memory or barriers ends the program
        return ""
    if DONE not in lines:
        why = one_line("; ".join(lines[-1:] or log.said)) or "and nothing was said"
        return f"the launches did not end: {why}"[:300]
    lost = [text for text in log.said if text.startswith("Internal Sanitizer Error")]
    if lost or not log.has_summary:
        return (one_line("; ".join(lost or log.said)) or "it wrote no summary")[:300]
    return ""


def parse(tool: str, text: str) -> Log:
    """Return the findings in the log of a tool."""
    findings: Counter[Finding] = Counter()
    doubtful: Counter[Finding] = Counter()
    said: list[str] = []
    for head, details in _entries(text):
        if _NO_FINDING.match(head):
            continue
        severity = _SEVERITY.match(head)
        rest = head[severity.end() :] if severity else head
        found = _race(rest, details) or _fault(rest, details)
        if found is None:
            said.append(rest)
            continue
        finding, times, names = found
        if TOOLS[tool].of_torch or not any(name.startswith(_TORCH) for name in names):
            is_doubtful = bool(severity and severity[1].lower() in ("warning", "info")) or finding.what == DELIBERATE
            (doubtful if is_doubtful else findings)[finding] += times
    return Log(findings, doubtful, tuple(dict.fromkeys(said)), " SUMMARY: " in text)


def _entries(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the first line of each entry of a log, and its further lines."""
    head, details = "", list[str]()
    for match in filter(None, map(_LINE.match, text.splitlines())):
        if not (line := match[1].rstrip()):
            continue
        if head and _DETAIL.match(line):
            details.append(line.strip())
            continue
        if head:
            yield head, details
        head, details = line.strip(), []
    if head:
        yield head, details


Found = tuple[Finding, int, Sequence[str]]  # a finding, how often, and the functions that it names


def _race(head: str, details: Sequence[str]) -> Found | None:
    """Return the race of an entry of racecheck, or None where the entry is of another kind."""
    start, between, rest = head.partition("Race reported between ")
    accesses = [*filter(None, map(_ACCESS.search, (rest, *details)))] if between and not start else []
    if not accesses:
        return None
    told, kernels, places, hazards = [], list[str](), list[str](), 0
    for access in accesses:
        kernel, place = _where(access[2])
        kernels += [kernel] if kernel else []
        places += [place] if place else []
        told.append(access[1].lower())
        hazards += int((access[3] or "0").replace(",", ""))
    kinds = Counter(told)
    words = " and ".join(f"{_NUMBERS.get(n, n)} {kind}{'s' if n > 1 else ''}" for kind, n in kinds.items())
    what = f"has a race in shared memory, {words} of one place without a barrier between them"
    finding = Finding(kernels[0] if kernels else "a kernel", what, " and ".join(dict.fromkeys(places)))
    return finding, max(hazards, 1), kernels


_NUMBERS = {1: "a", 2: "two", 3: "three", 4: "four"}


def _fault(head: str, details: Sequence[str]) -> Found | None:
    """Return the fault of an entry that names a kernel, or None where it names none."""
    at = next((line[3:] for line in details if line.startswith("at ")), "")
    frames = [frame[1] for line in details if (frame := _FRAME.match(line))]
    named = [found for found in map(_where, (at, *frames)) if found[0]]
    if not named:
        return None
    kernel, place = named[-1][0], next((place for _, place in named if place), "")
    return Finding(kernel, _words(head, " ".join(details)), place), 1, [name for name, _ in named]


def _where(text: str) -> tuple[str, str]:
    """Return the function and the file and line of "kernel(float *)+0x50 in mine.cu:41"; "" for what it lacks."""
    found = _AT_BEFORE.match(text) or _AT.match(text)
    if found is None:
        return "", ""
    name = re.sub(r"[(<].*", "", found["kernel"].removeprefix("void ")).strip()
    return name or found["kernel"], found["place"] or ""


def _words(head: str, details: str) -> str:
    """Return what a kernel does, by the first line of an entry and its details."""
    if invalid := _INVALID.match(head):
        certainty, memory, access, size = invalid.groups()
        does = {"read": "reads", "write": "writes"}.get(access, "changes")
        where = "at a misaligned address of" if "misaligned" in details else "out of bounds of"
        if certainty.startswith("Potential"):
            return f"{does} {size} bytes of {memory or 'shared'} memory of a block that may have ended or not begun"
        return f"{does} {size} bytes {where} {memory or 'global'} memory"
    if unwritten := _UNINITIALIZED.match(head):
        return f"reads {unwritten[2]} bytes of {unwritten[1] or 'global'} memory that nothing has written"
    kind = head.removeprefix("Barrier error detected. ").lower()
    known = [words for beginning, words in BARRIERS.items() if kind.startswith(beginning)]
    return known[0] if known else f"ends with: {one_line(head).rstrip('.')}"
