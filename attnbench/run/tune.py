"""The grid of `attnbench tune`: the sizes of each phase of a model, or of a person's own axes, before refinement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnbench.core.models import Phase, find
from attnbench.core.sizes import parse_sizes
from attnbench.run.axes import Axes, overlay
from attnbench.run.model_axes import check_not_both, model_axes, parse_phases
from attnbench.run.suite import Block, Settings, Suite, check_has_model

NAME = "tune"  # of the suite in run files
PHASES: Sequence[Phase] = ("prefill", "decode", "train")  # of a model where none is named
Sizes = Sequence[tuple[str, str]]  # batches and lengths

GRID: Mapping[Phase, Sizes] = {
    "prefill": (("1", "512,2k,8k,32k"), ("4", "512,2k,8k"), ("16", "512,2k")),
    "decode": (("1,16", "1k,4k,16k,64k"), ("128", "1k,4k,16k")),
    "mixed": (("32", "4k,16k"),),
    "train": (("1", "512,2k,8k,16k"), ("4", "512,2k,4k")),
}
ON_CPU: Mapping[Phase, Sizes] = {
    "prefill": (("1", "64-256"),),
    "decode": (("1,4", "128,512"),),
    "mixed": (("4", "3k"),),
    "train": (("1", "64,128"),),
}
BACKENDS = ("!hf-*", "!compile", "!eager", "!sdpa-math")  # what others compute too, or far slower
PAGES = "none,16"  # keys and values of decode lie in one tensor each, as in transformers, and in pages, as in servers


def tune_suite(given: Settings, kind: str, *, variants: bool = False) -> Suite:
    """Return the suite of the grid for a kind of device; the axes that are given replace its own.

    Lengths that are given are measured at the batches of the grid with which a call has no more tokens than the grid's.
    With `variants` training is measured with the deterministic variants of libraries too. A model of a fixed length has
    this length, its half and its quarter. Raises UserError for options that do not go together.
    """
    grid = ON_CPU if kind == "cpu" else GRID
    usual = Axes(dtype="fp32" if kind == "cpu" else "bf16")
    if not given.models:
        check_has_model(given)
        sizes = _sizes(grid["prefill"], given.axes)
        blocks = [overlay(usual, Axes(causal=True, batch=batch, seqlen=seqlen)) for batch, seqlen in sizes]
    else:
        check_not_both(given.axes)
        blocks = [block for name in given.models for block in _of_model(name, given, grid, usual)]
    sized = given.axes.model_copy(update={"seqlen": None})  # the blocks have these lengths
    blocks = [overlay(block, sized) for block in blocks]
    if variants:
        both = Axes(deterministic=[False, True])
        blocks = [overlay(both, block) if "bwd" in (block.direction or "") else block for block in blocks]
    whole = dict.fromkeys(map(_key, blocks))
    cases = [Block.model_validate(dict(key)) for key in whole]
    return Suite(name=NAME, cases=cases, backends=[*BACKENDS])


def without_model(given: Settings) -> Settings:
    """Return the settings that remain for a suite of `tune_suite`, which has the axes of the models."""
    return given.model_copy(update={"models": None, "tp": None, "phase": None, "axes": Axes()})


def _of_model(name: str, given: Settings, grid: Mapping[Phase, Sizes], usual: Axes) -> list[Axes]:
    model = find(name)
    phases = parse_phases(given.phase) if given.phase else [one for one in PHASES if not model.lacks(one)]
    pages = "none" if given.axes.deterministic else PAGES  # a deterministic variant has no pages
    found: list[Axes] = []
    for phase in phases:
        lengths = ",".join(str(model.seqlen // part) for part in (4, 2, 1)) if model.seqlen else ""
        of_phase = [("1", lengths)] if lengths and not given.axes.seqlen else _sizes(grid[phase], given.axes)
        for batch, seqlen in of_phase:
            sizes = Axes(batch=batch, seqlen=seqlen, **({"page_size": pages} if phase == "decode" else {}))
            below = overlay(usual, sizes)
            own = given.axes.model_copy(update={"seqlen": seqlen})
            found += model_axes([name], given.tp, phase, below, own)
    return found


def _sizes(grid: Sizes, given: Axes) -> Sizes:
    """Return batches and lengths: of the grid, or those that are given, as far as a call has no more tokens than there.

    Batches that are given have all lengths, and so has batch 1.
    """
    if not given.seqlen:
        return grid
    lengths = parse_sizes(given.seqlen, "seqlen")
    if given.batch:
        return [(given.batch, given.seqlen)]
    batches = [(batch, parse_sizes(own, "seqlen")) for text, own in grid for batch in parse_sizes(text, "batch")]
    most = max(batch * max(own) for batch, own in batches)
    fitting = ((batch, [n for n in lengths if batch == 1 or batch * n <= most]) for batch, _ in batches)
    return [(str(batch), ",".join(map(str, own))) for batch, own in fitting if own]


def _key(axes: Axes) -> tuple[tuple[str, object], ...]:
    given = ((name, getattr(axes, name)) for name in Axes.model_fields)
    return tuple((name, tuple(of) if isinstance(of, list) else of) for name, of in given if of is not None)
