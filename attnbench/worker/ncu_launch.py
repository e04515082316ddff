"""One launch for Nsight Compute, with the traffic of the whole call in view: `python -m attnbench.worker.ncu_launch`.

Between cudaProfilerStart and Stop run a read of a buffer of four times L2, a marker (torch's spin kernel), the call,
the marker and the read again. So the call finds an L2 with nothing of its own and nothing to write back: the tool's own
start leaves some MiB there. What the call leaves unwritten reaches memory during the last read, and is counted; ncu.py
tells the parts apart.
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
from attnbench.worker import inputs

MIN_READ = 2**28  # bytes
WARMUPS = 3


def main(request: Mapping[str, Any]) -> None:
    """`request` has name, spec, case and device."""
    import torch

    torch.set_float32_matmul_precision("highest")
    case, device = from_json(Case, request["case"]), from_json(Device, request["device"])
    torch.cuda.set_device(device.index)
    backend = backends.load(request["name"], request["spec"])
    prepared = backend.prepare(case, inputs.make(case, str(device), Policy().seed))
    buffer = torch.zeros(max(MIN_READ, 4 * (device.l2 or 0)) // 4, device=str(device))
    total = torch.empty((), device=str(device))
    for _ in range(WARMUPS):
        prepared.launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.sum(buffer, dim=0, out=total)
    torch.cuda._sleep(1)
    result = prepared.launch()
    torch.cuda._sleep(1)
    torch.sum(buffer, dim=0, out=total)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del result


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
