"""Selects the cells of run files that a person asks for: by shapes, by models and their phase, and by backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnbench.analysis.models.findings import is_of
from attnbench.core.axes import parse_names
from attnbench.core.case import Case
from attnbench.core.errors import UserError
from attnbench.core.models import Phase, find
from attnbench.core.text import fits
from attnbench.results.bits import VERDICTS
from attnbench.results.case_names import backend_rank
from attnbench.results.cells import Cell
from attnbench.run.axes import matching
from attnbench.run.model_axes import check_not_both, parse_phases
from attnbench.run.suite import Settings, check_has_model


def asked_for(cells: Sequence[Cell], settings: Settings) -> list[Cell]:
    """Return the cells whose cases have the axes that were asked for, and are of the models in their phase.

    Raises UserError where no cell is left, and for models and axes that do not go together.
    """
    matches, of_models = matching(settings.axes), _of_models(settings)
    found = [cell for cell in cells if matches(cell.case) and of_models(cell.case)]
    if cells and not found:
        raise UserError(
            "no case of these run files has the shapes that were asked for; attnbench report shows the measured shapes"
        )
    return found


def _of_models(settings: Settings) -> Callable[[Case], bool]:
    """Return whether a case is of a layer of the models, in their phases if some are named; True without models."""
    if not settings.models:
        check_has_model(settings)
        return lambda _: True
    check_not_both(settings.axes)
    models, tp = [*map(find, settings.models)], settings.tp or 1
    for model in models:
        model.heads(tp)
    phases = parse_phases(settings.phase) if settings.phase else [None]
    layers = [(of, model) for model in models for of in model.layers]
    return lambda case: (
        any(_in_phase(case, phase) for phase in phases) and any(is_of(of, model, tp, case) for of, model in layers)
    )


def _in_phase(case: Case, phase: Phase | None) -> bool:
    if phase == "decode" or phase == "mixed":
        return case.is_decode if phase == "decode" else case.is_ragged
    plain = not case.is_decode and not case.is_ragged
    return phase is None or (plain and (phase == "train" or case.direction == "fwd"))


def competing(patterns: Sequence[str] | None, cells: Sequence[Cell] | None = None) -> Callable[[str], bool]:
    """Return whether a backend is one of --backend: names, patterns, and names with "!" to leave out.

    Raises UserError where cells are given and none of them is of such a backend.
    """
    words = [word.strip() for text in patterns or () for word in text.split(",") if word.strip()]
    left_out = [word[1:] for word in words if word.startswith("!")]
    kept = [word for word in words if not word.startswith("!")] or ["*"]

    def competes(backend: str) -> bool:
        return _fits(backend, kept) and not _fits(backend, left_out)

    names = sorted({cell.backend for cell in cells or ()}, key=backend_rank)
    if names and not any(map(competes, names)):
        raise UserError(f"--backend: these run files have no such backend for these shapes, only {', '.join(names)}")
    return competes


def parse_bits(text: str | None) -> tuple[str, ...]:
    """Return the properties of bits, as results/bits.py names them, of a comma-separated text.

    Raises UserError for an unknown one.
    """
    known = [name.replace("_", "-") for name in VERDICTS]
    return tuple(name.replace("-", "_") for name in parse_names(text, "bits", known)) if text else ()


def _fits(backend: str, patterns: Sequence[str]) -> bool:
    return any(fits(backend, pattern) for pattern in patterns)
