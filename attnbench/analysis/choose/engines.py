"""The settings that engines load, from the problems of one machine, and what they cost at worst.

No engine takes a table by shape: it takes one name, a name for each phase, or a name for each kind of layer. So many
problems get one backend (`regions.single`), of those that have a name in the engine (`BackendBase.engine_names`).
Checked against torch 2.13.0, transformers 5.24.0, vllm 0.33.0, sglang 0.5.23 and diffusers 0.42.1.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from attnbench.analysis.choose import regions
from attnbench.analysis.choose.regions import TRAINS, Single, failed_somewhere, single
from attnbench.analysis.recommend import problem_names
from attnbench.analysis.recommend.findings import Problem
from attnbench.core.case import MOST_DECODED, Case
from attnbench.core.formats import times
from attnbench.core.groups import grouped
from attnbench.core.record import WRONG
from attnbench.core.text import count, listed
from attnbench.render.document import Block, Code, Column, Paragraphs, Span, Table
from attnbench.results.case_names import AXES, NOTHING, headdim
from attnbench.run.shipped_backends import engine_name, named_in

PREFILL, DECODE, MIXED, TRAINING, FORWARD = "prefill", "decode", "mixed", "training", "forward"  # phases
FEATURES = ("cache_dtype", "softcap", "dropout", "sink")  # axes for whose values there are settings apart
VERSION, TRTLLM = "flash_attn_version", "use_trtllm_attention"  # keys of vLLM's AttentionConfig
HUB = "without the library of its name, transformers loads another build of these kernels from its Hub"
CHECKS = "with DIFFUSERS_ATTN_CHECKS=1 an argument that the backend lacks is an error; else it is dropped"


@dataclass(frozen=True)
class Setting:
    """Text that makes an engine use a measured choice; or, in `notes`, the reason why there is none."""

    engine: str
    text: str  # to paste; "" where there is none
    use: tuple[str, ...] = ()  # the measured backends that stand behind the text
    of: tuple[tuple[str, str], ...] = ()  # what it is for: (phase, dtype and other properties)
    loss: float | None = None  # times as long as the fastest measured backend, at worst; None if it chooses by shape
    where: Problem | None = None  # the problem of that loss
    default: float | None = None  # as `loss`, for PyTorch's default, which the engine takes without the text
    notes: tuple[str, ...] = ()

    @property
    def purpose(self) -> str:
        """What it is for: "prefill and decode in bf16"."""
        phases = {kind: tuple(p for p, _ in own) for kind, own in grouped(self.of, lambda pair: pair[1]).items()}
        kinds = grouped(phases, lambda kind: phases[kind])
        return "; ".join(" in ".join(filter(None, (listed(p), listed(own)))) for p, own in kinds.items())


@dataclass(frozen=True)
class _Choice:
    """One name in an engine for the problems that any backend with a name there solves."""

    name: str
    single: Single
    problems: tuple[Problem, ...]

    @property
    def weight(self) -> float:
        """The sum of the logarithms of its losses."""
        return len(self.problems) * math.log(self.single.mean)


@dataclass(frozen=True)
class _Engine:
    key: str  # in BackendBase.engine_names
    title: str
    takes: Callable[[Problem], bool]
    lines: Callable[[Sequence[Problem]], Iterator[Setting]]


def settings(problems: Sequence[Problem], module: str = "") -> list[Setting]:
    """Return the settings of each engine for the problems of one machine.

    With the name of the `module` that `attnbench tune` writes, they have its line for transformers too. Steps of whole
    models, fp8 queries, masks by name, ALiBi, other kinds of attention and several devices have no settings.
    """
    plain = [problem for problem in problems if _is_plain(problem)]
    found: list[Setting] = []
    for engine in _ENGINES:
        own = [problem for problem in plain if engine.takes(problem)]
        lines = [
            replace(line, engine=engine.title, of=tuple((phase, kind) for phase, _ in line.of))
            for kind, of_kind in _by_model(own).items()
            for line in engine.lines(of_kind)
        ]
        merged = [_or_default(line) if engine.key in ("sdpa", "diffusers") else line for line in _merged(lines)]
        found += merged or _reason(engine, own)
        if lines and module and engine.key == "transformers":
            text = f"import {module}\n\n{module}.register_transformers()"
            found.append(Setting(engine.title, text, of=(("each call, by its shape", ""),)))
    return found


def blocks(found: Sequence[Setting]) -> tuple[Block, ...]:
    """Return settings as parts of a document: a table, the texts to paste, notes; () without any setting."""
    lines = [one for one in found if one.text]
    shown: list[Block] = []
    if lines:
        headings = ("engine", "for", "measured as", "at worst", "default", "where")
        columns = tuple(Column(name, "right" if name in ("at worst", "default") else "left") for name in headings)
        rows = tuple(
            (
                Span(one.engine, "strong"),
                one.purpose,
                ", ".join(one.use) or NOTHING,
                times(one.loss) if one.loss else NOTHING,
                times(one.default) if one.default else NOTHING,
                problem_names.label(one.where, with_step=True) if one.where else NOTHING,
            )
            for one in lines
        )
        note = "At worst: times as long as the fastest measured backend takes, because the engine has one for all; "
        note += "default: the same for PyTorch's default, which the engine takes without the text."
        shown.append(Table("engines", columns, rows, title="What engines load", note=note))
        shown += [Code(one.text, f"{one.engine}: {one.purpose}") for one in lines]
    if notes := dict.fromkeys(f"{one.engine}: {note}." for one in found for note in one.notes):
        shown.append(Paragraphs(tuple((Span(note, "quiet"),) for note in notes)))
    return tuple(shown)


def data(found: Iterable[Setting]) -> list[dict[str, Any]]:
    """Return settings for other programs; `text` is None where an engine has none, and `notes` say why."""
    return [
        {
            "engine": one.engine,
            "for": one.purpose,
            "text": one.text or None,
            "use": [*one.use],
            "loss": one.loss,
            "where": problem_names.name(one.where) if one.where else None,
            "default_loss": one.default,
            "notes": [*one.notes],
        }
        for one in found
    ]


def _phase(problem: Problem) -> str:
    """Return the phase of a problem; a mixed batch has sequences in prefill and in decode."""
    case = problem.case
    if problem.step in TRAINS:
        return TRAINING
    if case.shape.seqlen_q <= MOST_DECODED < case.shape.seqlen_k:
        return DECODE
    return PREFILL if case.has_like_queries else MIXED


def _phase_of_any(problem: Problem) -> str:
    """Return the phase of a problem by the names for models of any kind: a forward is no prefill."""
    phase = _phase(problem)
    return FORWARD if phase in (PREFILL, MIXED) else phase


def _is_plain(problem: Problem) -> bool:
    case = problem.case
    one_call = not (problem.model or case.step) and case.ranks == 1
    has_dropout = bool(case.dropout_p) and problem.step not in TRAINS
    return one_call and case.is_softmax and case.dtype != "fp8" and not (case.mask or case.alibi or has_dropout)


def _is_causal(case: Case) -> bool:
    return case.causal or case.shape.seqlen_q == 1  # a single query sees all keys in both cases


def _is_mla(case: Case) -> bool:
    """Return whether a model with latent attention has such a case: latent rows, or its prefill, which has none."""
    return case.latent or case.shape.headdim != case.shape.headdim_v


def _is_dense(problem: Problem) -> bool:
    return not (problem.case.is_paged or problem.case.latent)


def _is_served(problem: Problem) -> bool:
    return problem.step == "fwd" and _is_causal(problem.case)


def _is_full(problem: Problem) -> bool:
    case = problem.case
    full = not case.causal and case.window_size == (None, None) and not case.is_ragged
    return full and problem.step == "fwd" and _phase(problem) == PREFILL and _is_dense(problem)


def _kind(problem: Problem) -> str:
    """Return the kind of layer of a problem, a value of vLLM's KVCacheSpecKind."""
    windowed = problem.case.window_size[0] is not None
    if problem.case.latent:
        return "sliding_window_mla" if windowed else "mla_attention"
    return "sliding_window" if windowed else "full_attention"


def _by_model(problems: Sequence[Problem]) -> dict[str, list[Problem]]:
    """Return problems that one model may have, by their dtype and other properties in words.

    Layers of one kind have one head dim in a model; layers of unlike kinds may have unlike ones.
    """

    def words(problem: Problem, width: str = "") -> str:
        case = problem.case
        options = (AXES[name].label(case) for name in FEATURES)
        full = "" if _is_causal(case) else "full mask"
        return " ".join(filter(None, (case.dtype, width, full, *options)))

    found: dict[str, list[Problem]] = {}
    for kind, own in grouped(problems, words).items():
        widths = {(_kind(problem), headdim(problem.case)) for problem in own}
        if len({kind for kind, _ in widths}) == len(widths):
            found[kind] = own
        else:
            found |= grouped(own, lambda p: words(p, f"d{headdim(p.case)}"))
    return found


def _names(engine: str, problem: Problem) -> dict[str, str]:
    """Return the right backends of a problem that may be used and have a name in an engine, with the name."""
    key = f"{engine} mla" if engine in ("vllm", "sglang") and _is_mla(problem.case) else engine
    usual = [one for one in problem.candidates if not one.is_variant]  # no setting asks for a deterministic variant
    named = {one.backend: engine_name(one.run, one.backend, key, problem.case) for one in usual}
    return {backend: name for backend, name in named.items() if name}


def _choose(
    engine: str, problems: Sequence[Problem], own: str = "", allowed: Callable[[str], bool] = bool
) -> _Choice | None:
    """Return one of the `allowed` names in an engine; None where no backend was right in all that any of them solves.

    Backends whose names begin with `own` are the engine's own builds: others of the same name count only where those
    were not right in all problems.
    """
    named = [(p, {b: name for b, name in _names(engine, p).items() if allowed(name)}) for p in problems]
    solved = [(problem, names) for problem, names in named if names]
    if not solved:
        return None
    known = {backend: name for _, names in solved for backend, name in names.items()}
    everywhere = set.intersection(*({*names} for _, names in solved)) - failed_somewhere(problems)
    built = {known[backend] for backend in everywhere if own and backend.startswith(own)}
    usable = {backend for backend in everywhere if known[backend] not in built or backend.startswith(own)}
    one = single([replace(problem, wanted=usable.__contains__) for problem, _ in solved])
    if not one:
        return None
    where = next(problem for problem, _ in solved if problem.key == one.where.key)
    return _Choice(known[one.use], replace(one, where=where), tuple(problem for problem, _ in solved))


def _setting(text: str, choices: Iterable[_Choice], phase: Callable[[Problem], str], *notes: str) -> Setting:
    choices = [*choices]
    worst = max((choice.single for choice in choices), key=lambda one: one.loss)
    use = tuple(dict.fromkeys(choice.single.use for choice in choices))
    problems = [problem for choice in choices for problem in choice.problems]
    of = tuple((one, "") for one in dict.fromkeys(map(phase, problems)))
    if alone := sum(len(problem.right) == 1 for problem in problems):
        notes = (*notes, f"in {alone} of {count(len(problems), 'case')} no other backend had a right figure")
    return Setting("", text, use, of, worst.loss, worst.where, notes=tuple(filter(None, notes)))


def _of_default(problems: Iterable[Problem]) -> float | None:
    """Return the loss of PyTorch's default at worst; None where it is not known for all of the problems."""
    worst = max((regions.loss(problem, problem.default) for problem in problems if problem.right), default=math.inf)
    return worst if worst < math.inf else None


def _merged(lines: Iterable[Setting]) -> list[Setting]:
    """Return settings with one of each text, for all that these are for, with the greatest loss."""
    found = []
    for same in grouped(lines, lambda one: one.text).values():
        worst = max(same, key=lambda one: one.loss or 0)
        use, of, notes = (
            tuple(dict.fromkeys(value for one in same for value in getattr(one, name)))
            for name in ("use", "of", "notes")
        )
        defaults = [one.default for one in same if one.default]
        default = max(defaults) if len(defaults) == len(same) else None
        found.append(replace(worst, use=use, of=of, default=default, notes=notes))
    return found


def _or_default(line: Setting) -> Setting:
    """Return a setting without text, and with the reason, where PyTorch's default costs less at worst."""
    if line.loss is None or line.default is None or line.default >= line.loss:
        return line
    why = (
        f"no setting for {line.purpose}: PyTorch's default takes at worst {times(line.default)} as long as the fastest"
    )
    return replace(line, text="", notes=(why,))


def _reason(engine: _Engine, problems: Sequence[Problem]) -> list[Setting]:
    """Return why an engine has no setting for its problems, where a person can change that: on a GPU."""
    if not problems or problems[0].tried[0][0][1].run.environment.device.kind == "cpu":
        return []
    if problems[0].bits and not any(problem.candidates for problem in problems):  # which the answer says
        return []
    if any(_names(engine.key, problem) for problem in problems):
        why = f"no backend with a name there was right in all of {count(len(problems), 'case')}; choose fewer cases"
    else:
        names = dict.fromkeys((*named_in(engine.key), *named_in(f"{engine.key} mla")))
        why = f"no backend that was right here has a name there; measure one that has: -b {','.join(names)}"
    return [Setting(engine.title, "", notes=(why,))]


# SDPA: an order of its backends, of which a call gets the first that takes it

_Losses = list[tuple[float, Problem]]
_Order = tuple[int, float, tuple[str, ...], _Losses]


def _sdpa(problems: Sequence[Problem]) -> Iterator[Setting]:
    """Yield the order with the least mean loss for each phase, of the backends that were never wrong in it."""
    for phase, own in grouped(problems, _phase_of_any).items():
        wrong = {cell.backend for problem in own for cell in problem.missing if cell.status in WRONG}
        named = {b: name for p in own for b, name in _names("sdpa", p).items() if b not in wrong}
        best = min(_orders(own, named), key=lambda order: order[:2], default=None)
        if not best:
            continue
        _, _, order, losses = best
        members, implementations = zip(*(named[backend].partition(" ")[::2] for backend in order), strict=True)
        text = "from torch.nn.attention import SDPBackend, sdpa_kernel\n\n"
        if implementation := "".join(implementations):
            text = f"from torch.nn.attention import activate_flash_attention_impl\n{text}"
            text += f'activate_flash_attention_impl("{implementation}")  # once in a process\n'
        in_order = ", ".join(f"SDPBackend.{name}" for name in members)
        text += f"with sdpa_kernel([{in_order}], set_priority=True):\n    ..."
        loss, where = max(losses, key=lambda pair: pair[0])
        notes = [] if "MATH" in members else ["a call that none of an order takes is an error; MATH takes all"]
        yield Setting("", text, order, ((phase, ""),), loss, where, _of_default(own), tuple(notes))


def _orders(problems: Sequence[Problem], named: dict[str, str]) -> Iterator[_Order]:
    """Yield each order of backends, with the number of problems that it leaves unsolved, its mean loss, its losses.

    A process has one implementation of the flash backend.
    """
    usable = [{one.backend: one for one in problem.candidates} for problem in problems]

    def mean(order: Sequence[str]) -> tuple[float, _Losses]:
        first = (next((of[backend] for backend in order if backend in of), None) for of in usable)
        losses = [(regions.loss(problem, one), problem) for problem, one in zip(problems, first, strict=True) if one]
        return sum(math.log(loss) for loss, _ in losses) / max(1, len(losses)), losses

    ranked = sorted(named, key=lambda backend: mean([backend])[0])  # where orders tie, the first is taken
    flash = [backend for backend in ranked if named[backend].startswith("FLASH_ATTENTION")]
    for kept in flash or [""]:
        for order in itertools.permutations(b for b in ranked if b == kept or b not in flash):
            loss, losses = mean(order)
            if losses:
                yield len(problems) - len(losses), loss, order, losses


# The other engines


def _transformers(problems: Sequence[Problem]) -> Iterator[Setting]:
    """Yield a name for training, and one for all else."""
    for own in grouped(problems, lambda problem: _phase(problem) == TRAINING).values():
        if choice := _choose("transformers", own, "hf-"):
            note = HUB if choice.name.startswith("flash") else ""
            line = _setting(f'attn_implementation="{choice.name}"', [choice], _phase_of_any, note)
            yield replace(line, default=_of_default(choice.problems))


def _vllm(problems: Sequence[Problem]) -> Iterator[Setting]:
    """Yield a backend for each kind of layer, all with one version of FlashAttention, for prefill and decode."""
    kinds = grouped(_paged_first("vllm", problems), _kind)
    needs = [_options(name) for problem in problems for name in _names("vllm", problem).values()]
    versions: list[int | None] = sorted({need[VERSION] for need in needs if VERSION in need}) or [None]
    tried = [
        {kind: one for kind, own in kinds.items() if (one := _choose("vllm", own, "vllm-", partial(_has, version)))}
        for version in versions
    ]
    best = min(tried, key=lambda chosen: (-len(chosen), sum(choice.weight for choice in chosen.values())))
    if not best:
        return
    by_kind = {kind: choice.name.partition(" ")[0] for kind, choice in best.items()}
    options: dict[str, Any] = {key: of for choice in best.values() for key, of in _options(choice.name).items()}
    left, name = [kind for kind in kinds if kind not in best], next(iter(by_kind.values()))
    if len({*by_kind.values()}) > 1 or left:
        options = {"backend_per_kind": by_kind, **options}
    elif options:
        options = {"backend": name, **options}
    text = f"--attention-config '{json.dumps(options)}'" if options else f"--attention-backend {name}"
    yield _setting(
        text,
        best.values(),
        _phase,
        f"no backend was right in all problems of {listed(left)}" if left else "",
        f"without {TRTLLM} it may run XQA or trtllm-gen, which were not measured" if TRTLLM in options else "",
        *_of_pages(best.values()),
    )


def _options(name: str) -> dict[str, Any]:
    """Return the keys of vLLM's AttentionConfig that a name needs beside the backend."""
    return {key: json.loads(value) for key, _, value in (option.partition("=") for option in name.split()[1:])}


def _has(version: int | None, name: str) -> bool:
    return _options(name).get(VERSION, version) == version


def _sglang(problems: Sequence[Problem]) -> Iterator[Setting]:
    """Yield a backend for prefill and mixed batches, and one for decode."""
    for is_mla, own in grouped(_paged_first("sglang", problems), lambda problem: _is_mla(problem.case)).items():
        # Only decode has latent rows: SGLang multiplies them out for a prefill.
        usable = [p for p in own if not is_mla or p.case.latent == (_phase(p) == DECODE)]
        flags = {
            flag: choice
            for flag, of in grouped(usable, lambda p: DECODE if _phase(p) == DECODE else PREFILL).items()
            if (choice := _choose("sglang", of, "sglang-"))
        }
        if flags:
            text = " ".join(f"--{flag}-attention-backend {flags[flag].name}" for flag in sorted(flags, reverse=True))
            yield _setting(text, flags.values(), _phase, *_of_pages(flags.values()))


def _paged_first(engine: str, problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that an engine's backends solve: over pages where these phases of a kind have any."""
    solved = [problem for problem in problems if _names(engine, problem)]
    found: list[Problem] = []
    for own in grouped(solved, lambda problem: (_kind(problem), _phase(problem))).values():
        found += [problem for problem in own if problem.case.is_paged] or own
    return found


def _of_pages(choices: Iterable[_Choice]) -> Iterator[str]:
    """Yield notes on the problems of an engine that keeps keys and values in pages: stand-ins, and what is missing."""
    problems = [problem for choice in choices for problem in choice.problems]
    if contiguous := dict.fromkeys(_phase(problem) for problem in problems if not problem.case.is_paged):
        yield f"contiguous keys and values were measured for {listed(contiguous)}, and stand in for the engine's pages"
    phases = {_phase(problem) for problem in problems}
    for what, of in ((PREFILL, {PREFILL, MIXED}), (DECODE, {DECODE})):
        if not phases & of:
            yield f"{what} was not measured"


def _diffusers(problems: Sequence[Problem]) -> Iterator[Setting]:
    if choice := _choose("diffusers", problems):
        text = f"export DIFFUSERS_ATTN_BACKEND={choice.name}\n"
        text += f'# or for one model: model.set_attention_backend("{choice.name}")'
        yield replace(_setting(text, [choice], _phase_of_any, CHECKS), default=_of_default(choice.problems))


_ENGINES = (
    _Engine("sdpa", "SDPA", lambda problem: _is_dense(problem) and not problem.case.is_ragged, _sdpa),
    _Engine("transformers", "transformers", _is_dense, _transformers),
    _Engine("vllm", "vLLM", lambda p: _is_served(p) and (p.case.latent or not _is_mla(p.case)), _vllm),
    _Engine("sglang", "SGLang", _is_served, _sglang),
    _Engine("diffusers", "diffusers", _is_full, _diffusers),
)
