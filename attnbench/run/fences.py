"""The fences of worker/fence.py that hold on this machine, tried by a process of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from attnbench.core.machine import Device
from attnbench.run.process import child_environment, isolated_command

TIMEOUT = 30.0  # seconds
# Device files of NVIDIA's driver that belong to no single GPU
OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps", "nvidia-modeset")


def held() -> dict[str, str]:
    """Return the name of each fence -> "" where it holds, else why not; {} where they cannot be tried."""
    command = isolated_command("attnbench.worker.fence")
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, env=child_environment(), check=True)
        return {str(name): str(reason) for name, reason in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return {}


def device_files(device: Device) -> tuple[str, ...]:
    """Return the device files that a process needs for a GPU; of all GPUs where Linux does not tell them apart."""
    if device.kind != "cuda":
        return ()
    found = [f"/dev/{path.name}" for path in Path("/dev").glob("nvidia[0-9]*")]
    for facts in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        known = dict(line.split(":", 1) for line in facts.read_text(errors="replace").splitlines() if ":" in line)
        if device.uuid and known.get("GPU UUID", "").strip().removeprefix("GPU-") == device.uuid.removeprefix("GPU-"):
            found = [f"/dev/nvidia{known.get('Device Minor', '').strip()}"]
    return (*found, *(path for name in OF_ALL if Path(path := f"/dev/{name}").exists()))
