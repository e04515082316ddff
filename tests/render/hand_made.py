"""Handwritten documents for the tests of every format."""

from __future__ import annotations

from attnbench.render.document import (
    Caution,
    Column,
    Document,
    Ending,
    Figure,
    Grid,
    Grids,
    Machine,
    Pairs,
    Paragraphs,
    Reason,
    Span,
    Table,
    Verdict,
)


def line(text: str) -> tuple[Span, ...]:
    return (Span(text),)


def everywhere(name: str) -> Document:
    """Return a document with a given name in each of its texts."""
    return Document(
        "test",
        name,
        answer=(name,),
        machines=(Machine(name, name, name),),
        lead=(Paragraphs((line(name), line(name)), name, indent=2),),
        blocks=(
            Table(
                name,
                (Column(name), Column(name)),
                ((name, Span(name, "bad")), ((Span(name),), name)),
                name,
                name,
                (name,),
            ),
            Grids(
                name,
                (Grid(name, name, name, (name,), ((name, (Figure("1", "2%", best=True),)), (name, (Ending(name),)))),),
                more=name,
            ),
            Pairs(((name, name, name),), name),
        ),
        reasons=(Reason(name, name, name),),
        cautions=(Caution(name, name, name),),
        facts=(Caution(name),),
        notes=(line(name),),
        verdict=Verdict(name, "bad"),
    )
