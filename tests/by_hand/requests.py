"""What `attnbench compare --workload "chat: 4k in, 300 out, llama-3.1-8b, batch 64"` prints, or a file of calls.

A prefill is that of one sequence, a decode of the whole batch with the keys of a sequence when half of it is generated.
A time t is linear in the work x of a call between measured cases of one backend: FLOPs of a prefill, bytes of a decode.
A dollar and a TFLOP/s are of the device-seconds of the calls, a speed and the tokens a second of their seconds
(docs/compare.md).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import work
from .audit import Audit, printed
from .comparison import Offer, Scenario, ends, in_order, money, offers, tried_by_all
from .machines import Machine, machines, shared_cells
from .ratios import Ratio, speed_ratio
from .raw import DEFAULTS, Case, Key

FAR, EXTRA = 8.0, 1.25  # how far a case may be from its neighbours, and beyond all
DOUBT = 0.04  # half the 95 % interval of an interpolated time, for each doubling


@dataclass(frozen=True)
class Asked:
    """Requests to a model whose layers are alike: heads, keys' heads and head dimension of each."""

    text: str
    given: int
    generated: int
    batch: int
    layers: int
    heads: tuple[int, int, int]

    parameters: int

    @property
    def halfway(self) -> int:
        return self.given + self.generated // 2

    @property
    def nbytes(self) -> int:
        """The bytes in 16 bits of the weights, and of keys and values of all tokens."""
        _, heads, headdim = self.heads
        return 2 * (self.parameters + self.batch * (self.given + self.generated) * self.layers * heads * 2 * headdim)


@dataclass(frozen=True)
class Part:
    """A phase: how often it is called, a call as a sum of measured times, and on each machine the cells that run it."""

    phase: str
    calls: float
    case: Case  # that was asked for
    doublings: float
    cells: Sequence[Mapping[Key, float]]

    def seconds(self, found: Sequence[Machine], i: int) -> float:
        return self.calls * sum(n * found[i].figures["latency"][key].value for key, n in self.cells[i].items())

    def device_seconds(self, found: Sequence[Machine], i: int) -> float:
        return self.seconds(found, i) * int(self.case.ranks)


@dataclass(frozen=True)
class Calls:
    """A workload file by calls: of each part how often it is called, and the axes that fit one measured case."""

    name: str
    parts: tuple[tuple[float, Mapping[str, Any]], ...]

    def write(self, path: Path) -> None:
        parts = [{"weight": calls, "pass": "fwd", "causal": True, **axes} for calls, axes in self.parts]
        path.write_text(f"weights: calls\nparts: {json.dumps(parts)}\n")


def check_calls(audit: Audit, scenario: Scenario, calls: Calls, paths: Sequence[Path]) -> None:
    """Compare the figures of a workload by calls with the backends that all machines have, in bursts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls.yaml"
        calls.write(file)
        said = printed("compare", *paths, *scenario.options, "--workload", str(file))
    found = in_order(said, machines(paths))
    costs, common, parts = offers(scenario, found, None), shared_cells(found), []
    fastest = [machine.fastest("latency", common) for machine in found]
    for n, axes in calls.parts:
        (case,) = (
            cell.case
            for key, cell in found[0].cells.items()
            if key == fastest[0].get(key[0]) and _has(cell.case, {"direction": "fwd", "causal": True, **axes})
        )
        parts.append(Part("", n, case, 0.0, [{of[case.key]: 1.0} for of in fastest]))
    tokens = sum(part.calls * part.case.batch * part.case.seqlen_q for part in parts)
    (shown,) = (figures for figures in said["figures"] if figures["shared_backends"])
    for i, row in enumerate(shown["machines"]):
        for name, value in figures(found, parts, tokens, i, costs).items():
            audit.same(f"compare {calls.name!r}, {row['name']}", name, row[name], value)


def _has(case: Case, axes: Mapping[str, Any]) -> bool:
    sizes = {**axes, "seqlen_q": axes["seqlen"], "seqlen_k": axes["seqlen"]}
    return all(getattr(case, name) == value for name, value in sizes.items() if name != "seqlen")


def check(audit: Audit, scenario: Scenario, asked: Asked, paths: Sequence[Path]) -> None:
    """Compare the figures of requests in words, in bursts."""
    said = printed("compare", *paths, *scenario.options, "--workload", asked.text)
    found = in_order(said, machines(paths))
    costs = offers(scenario, found, None)
    holds = [asked.nbytes <= machine.files[0].device["memory"] for machine in found]
    for shown in said["figures"]:
        parts = phases(found, asked, holds, shown["shared_backends"])
        where = f"compare {asked.text!r}, {'shared' if shown['shared_backends'] else 'own'}"
        for i, row in enumerate(shown["machines"]):
            for name, value in figures(found, parts, asked.batch * asked.generated, i, costs).items():
                audit.same(f"{where}, {row['name']}", name, row[name], value if holds[i] else None)
    own, of_both = ([part.cells for part in phases(found, asked, holds, shared)] for shared in (False, True))
    able = [i for i, fits in enumerate(holds) if fits]
    cells = {key for part in own for i in able for key in part[i]}
    told = all(tried_by_all([found[i] for i in able], "latency", key) for key in cells)
    told &= any(ours[i] != theirs[i] for ours, theirs in zip(own, of_both, strict=True) for i in able)
    shown_own = any(not shown["shared_backends"] for shown in said["figures"])
    audit.same(f"compare {asked.text!r}", "own fastest", shown_own, told)
    parts = phases(found, asked, holds, said["figures"][0]["shared_backends"])
    total = sum(part.seconds(found, 0) for part in parts)
    for part, shown in zip(parts, said["workload"]["parts"], strict=True):
        where = f"compare {asked.text!r}, {part.phase}"
        audit.same(where, "share of a part", shown["share"], part.seconds(found, 0) / total)
        audit.same(where, "interpolation", shown["interpolation"], DOUBT * part.doublings)
        for i, row in enumerate(shown["machines"].values()):
            for name, value in ends("ratio", ratio(found, [part], i)).items():
                audit.same(where, f"{name} of a part", row[name], value if holds[i] else None)


def figures(
    found: Sequence[Machine], parts: Sequence[Part], tokens: float, i: int, costs: Sequence[Offer | None]
) -> dict[str, Any]:
    """Return the figures of a machine, by the names that the JSON has for them."""
    seconds = sum(part.seconds(found, i) for part in parts)
    flops = sum(part.calls * work.flops(part.case) for part in parts)
    of_devices = sum(part.device_seconds(found, i) for part in parts)
    hour, tflops = costs[i].hour if costs[i] else None, flops / of_devices / 1e12
    return {
        "tflops": tflops,
        "bought": tflops * 3.6 / hour if hour else None,
        "tokens_a_second": tokens / seconds,
        "million_tokens": hour / 3600 * of_devices / tokens * 1e6 if hour else None,
        **ends("ratio", ratio(found, parts, i)),
        **money(ratio(found, parts, i, of_devices=True), i, costs),
    }


def ratio(found: Sequence[Machine], parts: Sequence[Part], i: int, of_devices: bool = False) -> Ratio:
    """Return the ratio of the times of some parts, or of their device-seconds.

    A cell weighs as much as its share in the time of its machine.
    """
    if of_devices:  # a part on several devices counts as if it were called as often as it has devices
        parts = [replace(part, calls=part.calls * part.case.ranks) for part in parts]
    totals = [sum(part.seconds(found, j) for part in parts) for j in (0, i)]
    weights = [_shares(found, parts, j, total) for j, total in zip((0, i), totals, strict=True)]
    doubts = [
        DOUBT * part.doublings * part.seconds(found, j) / total
        for j, total in zip((0, i), totals, strict=True)
        for part in parts
    ]
    value = totals[0] / totals[1]
    return speed_ratio(found[0], weights[0], found[i], weights[1], "latency", value, math.hypot(*doubts))


def _shares(found: Sequence[Machine], parts: Sequence[Part], j: int, total: float) -> dict[Key, float]:
    weights: dict[Key, float] = defaultdict(float)
    for part in parts:
        for key, n in part.cells[j].items():
            weights[key] += part.calls * n * found[j].figures["latency"][key].value / total
    return weights


def phases(found: Sequence[Machine], asked: Asked, holds: Sequence[bool], shared: bool) -> list[Part]:
    """Return prefill and decode as all machines measured them that hold the tokens; `shared`: with backends of all."""
    able = [machine for machine, fits in zip(found, holds, strict=True) if fits]
    best = [machine.fastest("latency", machine.figures["latency"]) for machine in able]
    known = set.intersection(*({*of} for of in best))
    cases = {key[0]: cell.case for key, cell in found[0].cells.items() if key[0] in known}
    common = shared_cells(able)
    made = []
    for phase, is_of, steps in (("prefill", _is_prefill, asked.batch), ("decode", _is_decode, asked.generated)):
        families: dict[str, list[Case]] = defaultdict(list)  # that differ in batch and length alone
        for case in cases.values():
            if is_of(case) and _is_of_layer(case, asked):
                families[sized(case, 1, 1).key].append(case)
        sums = [one for family in families.values() if (one := _interpolated(asked, phase, family))]
        ranked = []
        for case, times, doublings in sums:
            cells = [_fastest(machine, times, common if shared else None) for machine in found]
            if all(of for of, fits in zip(cells, holds, strict=True) if fits):
                pages = phase == "decode" and not case.page_size, abs(math.log((case.page_size or 1) / 16))
                part = Part(phase, asked.layers * steps, case, doublings, cells)
                ranked.append(((round(doublings, 6), *pages, case.key), part))
        made.append(min(ranked, key=lambda pair: pair[0])[1])
    return made


def sized(case: Case, batch: int, length: int) -> Case:
    """Return a case of another batch and length."""
    queries = 1 if _is_decode(case) else length
    return Case({**case.line, "shape": {**case.line["shape"], "batch": batch, "seqlen_q": queries, "seqlen_k": length}})


def _is_prefill(case: Case) -> bool:
    return bool(case.direction == "fwd" and case.seqlen_q == case.seqlen_k)


def _is_decode(case: Case) -> bool:
    return bool(case.direction == "fwd" and case.seqlen_q == 1)


def _is_of_layer(case: Case, asked: Asked) -> bool:
    """Whether a case is causal attention of a layer in bf16, with nothing but pages beside."""
    plain = all(case.fields[name] == usual for name, usual in DEFAULTS.items() if name not in ("causal", "page_size"))
    heads = (case.nheads, case.nheads_k, case.headdim) == asked.heads and case.headdim_v == case.headdim
    return bool(plain and heads and case.causal and case.dtype == "bf16")


Sum = tuple[Case, dict[str, float], float]  # the case, measured case -> how often its time counts, doublings


def _interpolated(asked: Asked, phase: str, family: Sequence[Case]) -> Sum | None:
    if phase == "prefill":
        nearest: dict[int, Case] = {}  # length -> the case whose batch is nearest
        for case in sorted(family, key=lambda one: (abs(math.log(one.batch / asked.batch)), one.batch)):
            nearest.setdefault(case.seqlen_k, case)
        found = _between(asked.given, nearest, lambda n: work.flops(sized(family[0], 1, n)))
        if not found:
            return None
        times = {nearest[n].key: of / nearest[n].batch for n, of in found[0].items()}
        return sized(family[0], 1, asked.given), times, found[1]
    batches: dict[int, dict[int, Case]] = defaultdict(dict)
    for case in family:
        batches[case.batch][case.seqlen_k] = case
    rows = {}
    for batch, of in batches.items():
        if row := _between(asked.halfway, of, lambda n, b=batch: work.ideal_bytes(sized(family[0], b, n))):
            rows[batch] = row
    across = _between(asked.batch, rows, lambda b: work.ideal_bytes(sized(family[0], b, asked.halfway)))
    if not across:
        return None
    times = {batches[b][n].key: of_b * of_n for b, of_b in across[0].items() for n, of_n in rows[b][0].items()}
    doublings = across[1] + max(rows[b][1] for b in across[0])
    return sized(family[0], asked.batch, asked.halfway), times, doublings


def _between(
    place: int, measured: Collection[int], size: Callable[[int], float]
) -> tuple[dict[int, float], float] | None:
    """Return measured place -> how often its time counts, and the doublings to the nearer; None where it is too far."""
    if place in measured:
        return {place: 1.0}, 0.0
    x, below, above = size(place), [p for p in measured if p < place], [p for p in measured if p > place]
    if below and above:
        low, high = max(below), min(above)
        x_1, x_2 = size(low), size(high)
        if x <= FAR * x_1 and x_2 <= FAR * x:
            part = (x - x_1) / (x_2 - x_1)
            return {low: 1 - part, high: part}, math.log2(min(x / x_1, x_2 / x))
    near = [p for p in measured if 1 / EXTRA <= place / p <= EXTRA]
    if not near:
        return None
    one = min(near, key=lambda p: abs(math.log(place / p)))
    return {one: x / size(one)}, abs(math.log2(x / size(one)))


def _fastest(machine: Machine, times: Mapping[str, float], among: Collection[Key] | None) -> dict[Key, float]:
    """Return the cells of the backend whose sum of times is least; none where it decides nothing."""
    known, sums = machine.figures["latency"], []
    for backend in {backend for _, backend in known} - machine.approximate:
        cells = {(case, backend): n for case, n in times.items()}
        if all(key in known and (among is None or key in among) for key in cells):
            sums.append((sum(n * known[key].value for key, n in cells.items()), cells))
    best = min(sums, key=lambda pair: pair[0], default=(0.0, {}))[1]
    return {} if any(machine.decides_nothing("latency", key) for key in best) else best
