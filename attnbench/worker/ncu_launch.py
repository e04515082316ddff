"""The program that runs under Nsight Compute: one call of each backend, prepared so that all its traffic is counted.

    ncu ... python -m attnbench.worker.ncu_launch '{"backends": {NAME: SPEC}, "case": {...}, "device": {...}}'

Between cudaProfilerStart and cudaProfilerStop it runs: a read of a buffer of four times L2, a marker (torch's spin
kernel), the call, the marker, and the read again. The first read evicts what is in L2, also the MiB that the start of
ncu leaves there, so that the call finds none of its operands in L2 and nothing to write back. The last read evicts what
the call wrote into L2 only, so that these bytes are counted too. analysis/profile/ncu.py separates the parts at the
markers. A line of JSON for each backend says that it was called, or why not: {"backend": NAME, "failed": null}.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Mapping
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
    """Run one call of each backend; `request` holds their names and specs, the case and the device."""
    import torch

    torch.set_float32_matmul_precision("highest")
    case, device = from_json(Case, request["case"]), from_json(Device, request["device"])
    torch.cuda.set_device(device.index)
    buffer = torch.zeros(max(MIN_READ, 4 * (device.l2 or 0)) // 4, device=str(device))
    total = torch.empty((), device=str(device))
    for name, spec in request["backends"].items():
        try:
            _call(name, spec, case, device, lambda: torch.sum(buffer, dim=0, out=total))
            why = None
        except Exception as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(json.dumps({"backend": name, "failed": why}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def _call(name: str, spec: str, case: Case, device: Device, read: Callable[[], Any]) -> None:
    import torch

    backend = backends.load(name, spec)
    backend.probe()  # in which some set what their library reads at import
    prepared = backend.prepare(case, inputs.make(case, str(device), Policy().seed))
    for _ in range(WARMUPS):
        prepared.launch()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    read()
    torch.cuda._sleep(1)
    result = prepared.launch()
    torch.cuda._sleep(1)
    read()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    del result


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
