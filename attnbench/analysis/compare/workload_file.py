"""A workload file: what a machine is to be used for, as parts with weights.

    name: chat
    weights: time             # shares of the time on the reference machine (default), or of the work (FLOPs)
    parts:
      - {name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd, headdim: 128}
      - {name: training 4k, weight: 30%, seqlen: 4k, pass: [fwd, bwd], backend: "sdpa-*"}

A part has the axes of a suite. It is one call of each case that fits them: its time t is the sum of their times, its
work W the sum of their FLOPs. Each machine runs each case with its fastest backend, or with the fastest of those that
the part's `backend` names.

- **time**: the weight is the part's share s of the time that the workload takes on the reference machine. Another
  machine takes T = sum of s t / t_ref of that time for the same work, so it is 1 / T times as fast: the harmonic mean
  of the parts' ratios, weighted by s.
- **work**: the weight is the part's share f of all FLOPs. A machine takes T = sum of f t / W seconds a FLOP, and the
  ratio is that of two such times. It does not depend on the reference.

Either is a ratio of total times for one mix of work, which is what is waited and paid for; a geometric mean of ratios
is no ratio of times. Smith, "Characterizing Computer Performance with a Single Number", CACM 31(10), 1988.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from attnbench.core.case import Case, Shape
from attnbench.core.errors import UserError, did_you_mean
from attnbench.run import yaml_file
from attnbench.run.axes import Axes, matches
from attnbench.run.suite import Names

EXAMPLE = "parts: [{name: prefill 8k, weight: 70%, seqlen: 8k, causal: true, pass: fwd}, ...]"
_ANY_CASE = Case(Shape(1, 1, 1, 1, 1, 1, 1), "bf16", "fwd")


class Part(Axes):
    """A part of a workload: a name, a weight, the axes of its cases and the backends that may run them."""

    name: str = ""
    weight: float | str
    backend: Names | None = None

    @field_validator("weight")
    @classmethod
    def _positive(cls, weight: float | str) -> float | str:
        match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*%?", str(weight).strip())
        if not match or not 0 < float(match[1]) < math.inf:
            raise ValueError(f"{weight!r} is not a weight above 0; write 70% or 0.7")
        return weight

    @property
    def amount(self) -> float:
        """The number of the weight, in per cent or not."""
        return float(str(self.weight).strip().rstrip("% "))

    @property
    def percent(self) -> bool:
        return str(self.weight).strip().endswith("%")


class Workload(BaseModel):
    """A workload file, validated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    description: str = ""
    weights: Literal["time", "work"] = "time"
    parts: list[Part]

    @property
    def shares(self) -> list[float]:
        """The weights of the parts, as shares that add up to 1."""
        total = math.fsum(part.amount for part in self.parts)
        return [part.amount / total for part in self.parts]


def load(path: Path) -> Workload:
    """Return the workload of a file, named after the file unless it has a name. Raises UserError that says where it is
    wrong."""
    data = yaml_file.read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: a workload is a mapping with parts, as in {EXAMPLE}")
    return parse({"name": path.stem, **data}, str(path))


def parse(data: Mapping[str, Any], where: str) -> Workload:
    """Return the workload of a mapping. Raises UserError that begins with `where` and says what is wrong."""
    try:
        found = Workload.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error)}") from None
    if not found.parts:
        raise UserError(f"{where}: parts is empty; write {EXAMPLE}")
    percents = [part.percent for part in found.parts]
    total = math.fsum(part.amount for part in found.parts)
    if any(percents) and not all(percents):
        raise UserError(f"{where}: some weights are in % and some are not; write all the same way")
    if all(percents) and abs(total - 100) > 0.1:
        raise UserError(f"{where}: the weights add up to {total:g}%, not 100%")
    named = [
        part if part.name else part.model_copy(update={"name": f"part {i}"}) for i, part in enumerate(found.parts, 1)
    ]
    for part in named:
        try:
            matches(part, _ANY_CASE)  # parses every axis
        except UserError as error:
            raise UserError(f"{where}: {part.name}: {error}") from None
    if len({part.name for part in named}) < len(named):
        raise UserError(f"{where}: two parts have one name")
    return found.model_copy(update={"parts": named})


def _explain(error: ValidationError) -> str:
    """Return the first thing that is wrong, with its place."""
    first = error.errors()[0]
    place = ".".join(str(p) for p in first["loc"])
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = Part if "parts" in first["loc"] else Workload
        known = {f.alias or n for n, f in model.model_fields.items()}
        return f"{place}: unknown key{did_you_mean(str(first['loc'][-1]), sorted(known))}"
    if first["type"] == "missing":
        return f"{place} is missing; write {EXAMPLE}"
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"
