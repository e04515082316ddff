"""The fences of worker/fence.py that hold on this machine, tried by a process of their own."""

from __future__ import annotations

import json
import subprocess

from attnbench.run.process import child_environment, isolated_command

TIMEOUT = 30.0  # seconds


def held() -> dict[str, str]:
    """Return the name of each fence -> "" where it holds, else why not; {} where they cannot be tried."""
    command = isolated_command("attnbench.worker.fence")
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, env=child_environment(), check=True)
        return {str(name): str(reason) for name, reason in json.loads(done.stdout).items()}
    except (OSError, subprocess.SubprocessError, ValueError, AttributeError):
        return {}
