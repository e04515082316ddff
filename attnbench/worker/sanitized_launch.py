"""The program that runs under NVIDIA's compute-sanitizer: a few small cases of a backend, two launches of each.

    compute-sanitizer ... python -m attnbench.worker.sanitized_launch '{"name": ..., "spec": ..., "cases": [...],
    "device": {...}, "done": ...}'

It reads no result: initcheck would report a copy of memory that a kernel has not written as a finding of its own. The
last line of its output is `done` where all launches ended without an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from attnbench import backends
from attnbench.core.case import Case
from attnbench.core.json import from_json
from attnbench.core.machine import Device
from attnbench.core.policy import Policy
from attnbench.judge import inputs

LAUNCHES = 2  # the second one finds what the first one left


def main(request: Mapping[str, Any]) -> None:
    """Launch the cases of a backend; `request` holds its name and spec, the cases, the device and the last line."""
    device = from_json(Device, request["device"])
    if device.kind == "cuda":
        import torch

        torch.set_float32_matmul_precision("highest")
        torch.cuda.set_device(device.index)
    backend = backends.load(request["name"], request["spec"])
    backend.probe()  # some backends set variables in it that their library reads at import
    for case in (from_json(Case, fields) for fields in request["cases"]):
        given: Any = None if device.kind == "fake" else inputs.make(case, str(device), Policy().seed)
        prepared = backend.prepare(case, given)
        for _ in range(LAUNCHES):
            result = prepared.launch()
        if device.kind == "cuda":
            torch.cuda.synchronize()
        del prepared, result
    print(request["done"], flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
