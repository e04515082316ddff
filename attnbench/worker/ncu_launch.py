"""The program that runs under Nsight Compute: one call, prepared so that all its memory traffic is counted.

    ncu ... python -m attnbench.worker.ncu_launch '{"name": ..., "spec": ..., "case": {...}, "device": {...}}'

Between cudaProfilerStart and cudaProfilerStop it runs: a read of a buffer of four times L2, a marker (torch's spin
kernel), the call, the marker, and the read again. The first read evicts the content of L2, also the MiB that the start
of ncu leaves there, so that the call finds none of its operands in L2 and nothing to write back. The last read evicts
data that the call wrote only into L2, so that these bytes are counted too. run/profile/ncu.py separates the parts at
the markers.
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

MIN_READ = 2**28  # least bytes of a read
WARMUPS = 3


def main(request: Mapping[str, Any]) -> None:
    """Run one call of a backend; `request` holds its name and spec, the case and the device."""
    import torch

    torch.set_float32_matmul_precision("highest")
    case, device = from_json(Case, request["case"]), from_json(Device, request["device"])
    torch.cuda.set_device(device.index)
    backend = backends.load(request["name"], request["spec"])
    backend.probe()  # some backends set variables in it that their library reads at import
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
