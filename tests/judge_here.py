"""A judge in the process of the tests: requests of a worker go through JSON, and tensors through shared memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attnbench.core.json import to_json
from attnbench.core.machine import Device
from attnbench.worker.serve import Worker


def judge_here(device: Device) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the function by which a worker asks a judge of this device."""
    judge = Worker()

    def ask(request: Mapping[str, Any]) -> dict[str, Any]:
        if request["do"] == "refused":
            return {}
        sent = json.loads(json.dumps({"op": "judge", "device": to_json(device), **request}))
        answer: dict[str, Any] = json.loads(json.dumps(judge.answer(sent)))
        return answer

    return ask
