"""Reports for NVIDIA's own tools: all figures of ncu for each kernel (ncu-rep), and host beside GPU (nsys-rep).

Both record worker/ncu_launch.py, which starts and stops the tools by CUDA's profiler calls. The kernels of the call are
between two of torch's spin kernels. The options of nsys follow its user guide
(docs.nvidia.com/nsight-systems/UserGuide), long ones with an equal sign; they are not tested with nsys itself.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.run.process import isolated_command
from attnbench.run.profile import ncu


@dataclass(frozen=True)
class Report:
    """A tool, and the options by which it writes its report to a file."""

    suffix: str
    what: str
    missing: str  # why there is no report without the tool on PATH
    opened: str  # the program that shows the report
    options: Sequence[str]


REPORTS: Mapping[str, Report] = {
    "ncu": Report(
        "ncu-rep",
        "Nsight Compute's report",
        ncu.MISSING,
        "ncu-ui",
        (
            *("--set", "full", "--profile-from-start", "off", "--target-processes", "all", "--force-overwrite"),
            *("--cache-control", "none", "--clock-control", "none"),  # as in ncu.py
            *("--export", "{file}"),
        ),
    ),
    "nsys": Report(
        "nsys-rep",
        "Nsight Systems' report",
        "no nsys on PATH; it comes with NVIDIA Nsight Systems",
        "nsys-ui",
        (
            *("profile", "--trace=cuda,nvtx,osrt", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"),
            *("--force-overwrite=true", "--output={file}"),
        ),
    ),
}


def write(tool: str, file: Path, python: str | None, request: Mapping[str, Any]) -> None:
    """Have the tool of this name in REPORTS write its report of one call. Raises ncu.NotCounted where it fails.

    `request` is for worker/ncu_launch.py, which runs in the interpreter `python`.
    """
    program = shutil.which(tool)
    if program is None:
        raise ncu.NotCounted(REPORTS[tool].missing)
    launch = isolated_command("attnbench.worker.ncu_launch", json.dumps(request), python=python)
    said = ncu.execute([program, *(option.format(file=file) for option in REPORTS[tool].options), *launch])
    if not file.exists():
        raise ncu.NotCounted(ncu.why_no_figures(said.splitlines(), tool))
