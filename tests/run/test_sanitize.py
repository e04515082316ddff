"""What compute-sanitizer's logs say, in the forms that NVIDIA's guide shows, and which cases run under it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attnbench.core.record import Record
from attnbench.run import sanitize
from attnbench.run.sanitize import Finding, Log, parse
from builders import case, ended

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0xb0 in memcheck_demo.cu:39
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x87654320 is out of bounds
=========     and is 137,179,965,340,896 bytes before the nearest allocation at 0x7cc43a800000 of size 1,024 bytes
=========         Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_function()+0xb0 in memcheck_demo.cu:39
=========     by thread (1,0,0) in block (0,0,0)
=========     Access to 0x87654324 is out of bounds
=========         Device Frame: out_of_bounds_kernel()+0x30 in memcheck_demo.cu:44
=========
========= Invalid __shared__ read of size 16 bytes
=========     at _gemm_kernel+0x3440 in gemm.py:42
=========     by thread (32,0,0) in block (453,0,0)
=========     Access to 0x41 is misaligned
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to x.
========= ERROR SUMMARY: 4 errors
"""
BEFORE_2022 = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8
=========     at 0x00000250 in /home/me/vector.cu:9:void scaled<int>(int*)
=========     by thread (264,0,0) in block (0,0,0)
=========     Address 0x7f350c000420 is out of bounds
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in block_error.cu:41
=========     and Read access at sumKernel(int *, int *)+0x100 in block_error.cu:51 [508 hazards]
=========
========= Error: Race reported between Write access at p10_race+0x140
=========     and Write access at p10_race+0x140 [4 hazards]
=========     and Read access at p10_race+0xe0 [1,005 hazards]
=========
========= Warning: Race reported between Write access at warp_sum+0x550 in warp.cu:44
=========     and Read access at warp_sum+0x580 in warp.cu:56 [16 hazards]
=========
========= Error: Race reported between Write access at at::native::reduce_kernel+0x550
=========     and Read access at at::native::reduce_kernel+0x580 [16 hazards]
=========
========= RACECHECK SUMMARY: 4 hazards displayed (3 errors, 1 warning)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *)+0x70 in memset_error.cu:41
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<(int)4, float>(int)+0x70
=========     by thread (31,0,0) in block (1,0,0)
=========     Address 0x7f3c7ec000fc
=========
========= Host API uninitialized memory access at 0x7f3c7ec00000 of size 64 bytes
=========     on access by cudaMemcpy source
=========
========= ERROR SUMMARY: 3 errors
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at illegal_sync_kernel(int *)+0xa0 in sync.cu:61
=========     by thread (19,0,0) in block (0,0,0)
=========
========= Barrier error detected. Divergent thread(s) in block.
=========     at warp_specialized+0x15520
=========     by thread (128,0,0) in block (0,0,0)
=========
========= Barrier error detected. Barrier overflow
=========     at counted+0x20
=========     by thread (128,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 3 errors
"""
NOTHING = "========= COMPUTE-SANITIZER\nof the program\n========= ERROR SUMMARY: 0 errors\n"
NO_START = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
=========     The application may have hit an error when dereferencing Unified Memory from the host.
========= Error: Target application terminated before first instrumented API call
========= Tracking kernels launched by child processes requires the --target-processes all option.
"""
NOT_TRACKED = """\
========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching x and didn't track the launch.
========= ERROR SUMMARY: 0 errors
"""


@pytest.mark.parametrize(
    ("tool", "text", "found", "doubtful"),
    [
        (
            "memcheck",
            MEMCHECK,
            [
                "out_of_bounds_kernel writes 4 bytes out of bounds of global memory at memcheck_demo.cu:39, 2 times",
                "_gemm_kernel reads 16 bytes at a misaligned address of shared memory at gemm.py:42, 1 time",
            ],
            [],
        ),
        (
            "memcheck",
            BEFORE_2022,
            ["scaled reads 8 bytes out of bounds of global memory at /home/me/vector.cu:9, 1 time"],
            [],
        ),
        (
            "racecheck",
            RACECHECK,
            [
                "sumKernel has a race in shared memory, a write and a read of one place without a barrier between them "
                "at block_error.cu:41 and block_error.cu:51, 508 times",
                "p10_race has a race in shared memory, two writes and a read of one place without a barrier between "
                "them, 1009 times",
            ],
            [
                "warp_sum has a race in shared memory, a write and a read of one place without a barrier between them "
                "at warp.cu:44 and warp.cu:56, 16 times"
            ],
        ),
        (
            "initcheck",
            INITCHECK,
            ["vectorAdd reads 4 bytes of global memory that nothing has written at memset_error.cu:41, 1 time"],
            [],
        ),
        (
            "synccheck",
            SYNCCHECK,
            [
                "illegal_sync_kernel has a barrier that not all threads of a warp reach at sync.cu:61, 1 time",
                "counted ends with: Barrier error detected. Barrier overflow, 1 time",
            ],
            ["warp_specialized has a barrier that not all threads of a block reach, 1 time"],
        ),
        ("memcheck", NOTHING, [], []),
        ("memcheck", NO_START, [], []),
        ("memcheck", "", [], []),
    ],
)
def test_findings_are_read_from_the_log(tool: str, text: str, found: list[str], doubtful: list[str]) -> None:
    log = parse(tool, text)
    assert [finding.text(times) for finding, times in log.findings.items()] == found
    assert [finding.text(times) for finding, times in log.doubtful.items()] == doubtful
    assert log.has_summary is ("SUMMARY" in text)


@pytest.mark.parametrize(
    ("text", "said", "problem"),
    [
        (NOTHING, f"{sanitize.DONE}\n", ""),
        (NOTHING, "Traceback:\nRuntimeError: no kernel\n", "the launches did not end: RuntimeError: no kernel"),
        (NO_START, "", "the launches did not end: process didn't terminate successfully; Target application termin"),
        (NOT_TRACKED, f"{sanitize.DONE}\n", "Internal Sanitizer Error: The Sanitizer encountered an error while"),
        ("", f"{sanitize.DONE}\n", "it wrote no summary"),
        (SYNCCHECK, "RuntimeError: CUDA error: unspecified launch failure\n", ""),
    ],
)
def test_an_answer_that_is_not_full_is_said(text: str, said: str, problem: str) -> None:
    found = sanitize._problem(parse("synccheck", text), said)
    assert found.startswith(problem) if problem else found == ""


def test_the_smallest_cases_are_chosen() -> None:
    of = {
        "long": case(4096),
        "blocks": case(256, causal=True),
        "odd": case(203),
        "causal": case(203, causal=True),
        "decoding": case(203, seqlen_q=1, causal=True),
        "skipped": case(33, causal=True),
        "bwd": case(256, direction="bwd"),
        "both": case(256, direction="fwd_bwd"),
    }
    records = [ended(one, "triton", "ok", None) for name, one in of.items() if name != "skipped"]
    records.append(ended(of["skipped"], "triton", "skipped", "no"))
    assert [record.case for record in sanitize.chosen(records)] == [of["causal"], of["bwd"], of["both"]]
    records = [record for record in records if record.case is not of["both"]]
    assert sanitize.chosen(records)[-1].case == of["decoding"]


FAULT = Finding("k", "has a race")


@pytest.mark.parametrize(
    ("together", "alone", "runs", "found"),
    [
        (Log({}, {}), {}, 1, [False, False, False]),
        (Log({FAULT: 1}, {}), {203: Log({FAULT: 1}, {})}, 4, [False, True, False]),
        (Log({FAULT: 1}, {}), {}, 4, [True, True, True]),  # a race that a case alone did not show
        (Log({}, {}, problem="it hung", hung=True), {}, 1, [False, False, False]),
        (Log({}, {}, problem="the launches did not end"), {100: Log({FAULT: 1}, {})}, 4, [True, False, False]),
    ],
)
def test_a_finding_belongs_to_its_case(together: Log, alone: dict[int, Log], runs: int, found: list[bool]) -> None:
    asked: list[Sequence[Record]] = []

    def run(cases: Sequence[Record]) -> Log:
        asked.append(cases)
        return together if len(cases) > 1 else alone.get(cases[0].case.shape.seqlen_q, Log({}, {}))

    records = [ended(case(n), "triton", "ok", None) for n in (100, 203, 300)]
    told = sanitize._told_apart(run, records)
    assert [bool(log.findings) for _, log in told] == found
    assert len(asked) == runs


def test_a_finding_makes_a_right_result_wrong() -> None:
    log = Log({FAULT: 3}, {Finding("k", "warns"): 1})
    logs = {"racecheck": log, "memcheck": Log({}, {}, problem="hung")}
    record = sanitize.judged(ended(case(), "triton", "ok", None), logs)
    assert record.status == "wrong"
    assert (record.reason or "").startswith("compute-sanitizer racecheck: k has a race, 3 times; put a barrier")
    assert record.notes[-1] == "compute-sanitizer racecheck: k warns, 1 time, which may be intended"
    assert record.sanitizer == {"racecheck": "", "memcheck": "hung"}
    failed = sanitize.judged(ended(case(), "triton", "failed", "it raised"), {"racecheck": log})
    assert failed.status == "failed"
    assert (failed.reason or "").startswith("it raised; compute-sanitizer racecheck: k has a race")
