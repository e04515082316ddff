"""A workload in words: requests to a model that a server takes, as --workload may have in place of a file.

    chat: 2k in, 300 out, llama-3.1-8b, batch 32
    code: 16k in, 1k out, llama-3.1-70b, batch 64, tp 8

Each sequence of the batch is filled with the tokens that come in, and then generates those that go out, one a step,
in steps of the whole batch. A kind of layers takes part in each as often as the model has it. A part of the workload is
the measured case that is nearest: of a prefill in its length, then its batch; of decoding in length and batch, where
the length is that at half of the generation, and pages come before contiguous keys. It may be up to NEAR times as long
or as short, and a decode's batch as large or as small; another batch counts in proportion. Lengths are not scaled, and
the part's name says which case stands for it.

The time is that of attention alone, layer by layer. The tokens are those that are generated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.analysis.compare.common_cells import common
from attnbench.analysis.compare.machines import Machine
from attnbench.analysis.compare.workload import Part, Workload
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.models import Layers, Model, Phase, find
from attnbench.core.sizes import format_size, parse_size
from attnbench.core.text import count, listed
from attnbench.results import case_names
from attnbench.run.axes import AXES, matches
from attnbench.run.model_axes import layer_axes

EXAMPLE = "chat: 2k in, 300 out, llama-3.1-8b, batch 32"
NEAR = 2.0
USUAL_PAGE = 16  # tokens; of cases that are as near, one with such pages stands for a server
_WORDS = {"in": r"(\S+) in", "out": r"(\S+) out", "batch": r"batch (\S+)", "tp": r"tp (\S+)"}


@dataclass(frozen=True)
class Requests:
    """What a server is asked, as a person wrote it."""

    name: str
    seqlen_in: int  # tokens of each sequence that are given
    seqlen_out: int  # and generated
    model: Model
    batch: int
    tp: int = 1

    @property
    def seqlen_halfway(self) -> int:
        """The keys of a sequence when half of it is generated."""
        return self.seqlen_in + self.seqlen_out // 2


def is_in_words(text: str) -> bool:
    """Whether a text is a workload in words, and no file."""
    return re.search(r"(^|[:,])\s*(\S+ (in|out)|batch \S+)\s*($|,)", text) is not None


def parse(text: str) -> Requests:
    """Return the requests of a text. Raises UserError, with an example."""
    name, colon, rest = text.partition(":")
    found: dict[str, str] = {}
    for part in (rest if colon else text).split(","):
        word = next((word for word, form in _WORDS.items() if re.fullmatch(form, part.strip())), "model")
        if word in found:
            raise UserError(f"--workload: {part.strip()!r} says {word} a second time; write {EXAMPLE!r}")
        match = re.fullmatch(_WORDS.get(word, r"(.*)"), part.strip())
        found[word] = match[1] if match else ""
    if missing := [word for word in ("in", "out", "model", "batch") if not found.get(word)]:
        raise UserError(f"--workload: {text!r} does not say {listed(missing)}; write {EXAMPLE!r}")
    model, tp = find(found["model"]), parse_size(found.get("tp", "1"), "tp")
    model.heads(tp)
    if lacking := model.lacks("decode"):
        raise UserError(f"--workload: attnbench cannot measure the decoding of {model.name}: {'; '.join(lacking)}")
    given, generated, batch = (parse_size(found[word], f"--workload, {word}") for word in ("in", "out", "batch"))
    return Requests(name.strip() if colon else model.name, given, generated, model, batch, tp)


def workload(asked: Requests, machines: Sequence[Machine]) -> Workload:
    """Return the workload of requests, of cases that all machines have measured.

    Raises UserError where a kind of layers or a phase was not, with the command that measures it.
    """
    measured = common(machine.fastest for machine in machines)
    parts: list[Part] = []
    for layers in asked.model.layers:
        prefill = _nearest(measured, asked, layers, "prefill")
        decode = _nearest(measured, asked, layers, "decode")
        calls = layers.count * asked.batch / prefill.shape.batch
        parts.append(_part("prefill", layers, prefill, calls))
        calls = layers.count * asked.seqlen_out * asked.batch / decode.shape.batch
        parts.append(_part("decode", layers, decode, calls))
    return Workload(name=asked.name, weights="calls", tokens=asked.batch * asked.seqlen_out, parts=parts)


def _nearest(measured: Collection[Case], asked: Requests, layers: Layers, phase: Phase) -> Case:
    """Return the measured case that is nearest to a phase of a kind of layers."""
    axes = layer_axes(asked.model, layers, asked.tp, phase).model_copy(update={"seqlen_q": None})
    of_phase: Callable[[Case], bool] = _is_decode if phase == "decode" else _is_prefill
    fitting = [case for case in measured if _is_plain(case) and of_phase(case) and matches(axes, case)]
    fitting = [case for case in fitting if _is_near(case, asked, phase)]
    if not fitting:
        of_model = f"attnbench run --model {asked.model.name}" + (f" --tp {asked.tp}" if asked.tp > 1 else "")
        size = asked.seqlen_halfway if phase == "decode" else asked.seqlen_in
        more = f" --phase decode --page-size 16 --batch {asked.batch}" if phase == "decode" else ""
        window = f" with a window of {layers.window}" if layers.window else ""
        raise UserError(
            f"--workload: no figure on all machines of the {phase} of {count(layers.count, 'layer')}{window} of "
            f"{asked.model.name}; on each machine: {of_model}{more} --seqlen {format_size(_power_of_two(size))}"
        )

    def distance(case: Case) -> tuple[float, ...]:
        s = case.shape
        batch = abs(math.log(s.batch / asked.batch))
        if phase == "decode":
            page = abs(math.log((case.page_size or 1) / USUAL_PAGE))
            return abs(math.log(s.seqlen_k / asked.seqlen_halfway)) + batch, not case.is_paged, page
        return abs(math.log(s.seqlen_k / asked.seqlen_in)), batch

    return min(fitting, key=lambda case: (*distance(case), case.dtype != "bf16", case.key))


def _is_near(case: Case, asked: Requests, phase: Phase) -> bool:
    s, decodes = case.shape, phase == "decode"
    ratios = [s.seqlen_k / (asked.seqlen_halfway if decodes else asked.seqlen_in)]
    ratios += [s.batch / asked.batch] if decodes else []
    return all(1 / NEAR <= ratio <= NEAR for ratio in ratios)


def _is_plain(case: Case) -> bool:
    return not case.is_ragged and not case.dropout_p and case.data == "normal" and case.layout == "native"


def _is_decode(case: Case) -> bool:
    return case.is_decode and case.shape.seqlen_q == 1


def _is_prefill(case: Case) -> bool:
    return case.direction == "fwd" and case.shape.seqlen_q == case.shape.seqlen_k


def _part(phase: Phase, layers: Layers, case: Case, calls: float) -> Part:
    window = f", window {layers.window}" if layers.window else ""
    by = f"{case_names.lengths(case)} b{case.shape.batch} {case.dtype}"
    extras = [case_names.extra(case, name) for name in ("page_size", "cache_dtype")]
    name = " ".join(filter(None, (f"{phase}, {count(layers.count, 'layer')}{window}: {by}", *extras)))
    axes: dict[str, Any] = {axis: of.text(of.of(case)) for axis, of in AXES.items()}
    axes |= {axis: getattr(case, axis) for axis in ("causal", "append", "latent")}
    return Part(**axes, name=name, weight=f"{calls:.12g}")


def _power_of_two(size: int) -> int:
    return 1 << max(0, round(math.log2(size)))
