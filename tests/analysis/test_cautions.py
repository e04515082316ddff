"""Rules: a caution for each place where one holds, in the order of the rules."""

from __future__ import annotations

from attnbench.analysis.cautions import Rule, furthest, in_cells, stated, when
from attnbench.render.document import Caution

RULES = (
    Rule[list[int]](lambda found: ({"n": n} for n in found if n < 0), "{n} is below 0.", todo="Leave {n} out."),
    Rule[list[int]](lambda found: when(len(found) > 2, number=len(found)), "{number} numbers.", "Too many."),
)


def test_a_caution_for_each_place_in_the_order_of_the_rules() -> None:
    assert stated(RULES, [-1, 2, -3]) == (
        Caution("-1 is below 0.", "", "Leave -1 out."),
        Caution("-3 is below 0.", "", "Leave -3 out."),
        Caution("3 numbers.", "Too many."),
    )
    assert stated(RULES, [1, 2]) == ()


def test_values_may_hold_braces() -> None:
    rule = Rule[str](lambda name: when(name, name=name), "No {name}.")
    assert stated([rule], "{x}") == (Caution("No {x}."),)


def test_no_cells_are_no_place() -> None:
    assert list(in_cells([])) == list(furthest([])) == []
