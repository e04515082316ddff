"""The setup of a run (device, software, measuring method), the differences of two setups, and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from attnbench.core.formats import size
from attnbench.core.record import Run
from attnbench.core.text import shortened

# Parts of `setup` that must be equal in run files that a person gives as runs of one machine.
OF_ONE_MACHINE = ("device kind", "device name", "device memory", "power_limit_w", "timer", "l2", "method")
VARIABLE = "variable "  # prefix of the names of environment variables in a setup


def seconds_started(run: Run) -> float | None:
    """Return a run's start in seconds since 1970; None where it is unknown."""
    try:
        started = datetime.fromisoformat(run.started)
        started = started if started.tzinfo else started.replace(tzinfo=timezone.utc)
        return started.astimezone(timezone.utc).timestamp()  # raises for a year out of range
    except (ValueError, OverflowError):
        return None


def setup(run: Run) -> dict[str, Any]:
    """Return the parts that must be equal in runs that share a table, by name; None for an unknown part.

    Free memory, quick readings and the card (`uuid`) are left out. Memory is rounded, because a CPU's changes by some
    KiB at each boot. Each attention library is a part under its own name.
    """
    environment, device = run.environment, run.environment.device
    return {
        "device kind": device.kind,
        "device name": device.name,
        "device memory": size(device.memory) if device.memory else None,
        "device threads": device.threads,
        "device instructions": device.instructions,
        "power_limit_w": environment.power_limit_w,
        "attnbench": environment.attnbench or None,
        "torch": environment.torch,
        "cuda": environment.cuda,
        "driver": environment.driver,
        "cpu": environment.cpu,
        **environment.packages,
        **{f"{VARIABLE}{name}": value for name, value in environment.variables.items()},
        "timer": run.policy.timer,
        "l2": run.policy.l2,
        "method": run.method,
    }


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (our value, their value) for all differences; None for a part that one of them lacks."""
    pairs = {name: (ours.get(name), theirs.get(name)) for name in (*ours, *theirs)}
    return {name: (our, their) for name, (our, their) in pairs.items() if our != their}


def differences(one: Run, other: Run) -> list[str]:
    """Return the differences between the setups of two runs as phrases: "driver was 580.82 and is 590.10"."""
    return [phrase(name, *values) for name, values in differing(setup(one), setup(other)).items()]


def phrase(name: str, before: Any, after: Any) -> str:
    """Return a difference as a phrase for messages."""
    form = shortened if name.startswith(VARIABLE) else str
    was, now = ("not there" if value in (None, "") else form(value) for value in (before, after))
    return f"{name} was {was} and is {now}"


# The text of each part of the setup in a sentence or a label, the most important part first.
_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "power_limit_w": "{:g} W".format,
    "torch": "torch {}".format,
    "driver": "driver {}".format,
    "device threads": "{} threads".format,
    "device instructions": str,
    "variables": str,
    "device memory": str,
    "timer": "timer {}".format,
    "l2": "L2 {}".format,
    "attnbench": "attnbench {}".format,
    "method": "method {}".format,
}


def setup_texts(run: Run) -> dict[str, str]:
    """Return parts of the setup as text, such as "500 W" for power_limit_w; "" for an unknown part."""
    variables = (f"{name}={shortened(value)}" for name, value in run.environment.variables.items())
    found = {**setup(run), "variables": " ".join(variables)}
    return {name: text(found[name]) if found[name] else "" for name, text in _TEXTS.items()}


def unique_labels(names: Sequence[str], parts: Sequence[Sequence[str]], form: str = "{} {}") -> list[str]:
    """Return each name with the `parts` that distinguish it from equal names; labels that are still equal get numbers.

    `parts` has the same number of texts for each name, the most important first. `form` joins a label and a text.
    """
    labels = list(names)
    for name in dict.fromkeys(names):
        namesakes = [i for i, other in enumerate(names) if other == name]
        for texts in zip(*(parts[i] for i in namesakes), strict=True):
            if len({labels[i] for i in namesakes}) < len(namesakes) and len({*texts}) > 1:
                for i, text in zip(namesakes, texts, strict=True):
                    labels[i] = form.format(labels[i], text) if text else labels[i]
    for label in [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        for number, i in enumerate((i for i, other in enumerate(labels) if other == label), start=1):
            labels[i] = form.format(label, f"#{number}")
    return labels
