"""The request to worker/ncu_launch.py to run an own backend, which ignores its case, under Nsight Compute."""

from __future__ import annotations

from typing import Any

from attnbench.core.case import Case, Shape
from attnbench.core.json import to_json
from attnbench.core.machine import Device


def request(path: str, name: str) -> dict[str, Any]:
    """Return the request for the object `name` of a Python file, on the first GPU."""
    import torch

    properties: Any = torch.cuda.get_device_properties(0)
    device = Device("cuda", 0, properties.name, properties.total_memory, 2**30, l2=properties.L2_cache_size)
    case = Case(Shape(1, 16, 16, 1, 1, 16, 16), "bf16", "fwd")
    return {"name": name, "spec": f"{path}:{name}", "case": to_json(case), "device": to_json(device)}
