"""The state of a function: equal if loaded from one source, unequal after a change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnbench.core.errors import OtherStateError
from attnbench.core.live_state import UNTOLD, differing, digest, live_state
from attnbench.run.select import choose
from attnbench.run.session import Session

HELPERS = "def twice(x):\n    return 2 * x\n"
SOURCE = """
import functools
import helpers
from dataclasses import dataclass

STEPS, UNUSED, TABLE = 1, 1, {"a": [1, 2]}

@functools.singledispatch
def run(x):
    return x

@functools.lru_cache
def cached():
    return STEPS

class Tile:
    size = 64
    def rows(self):
        return self.size

@dataclass
class Settings:
    depth: int = 1

settings = Settings()

def made(scale):
    def inner(x):
        return scale * x
    return inner

scaled = made(2.0)

def attention(q, k, v, *, causal, softmax_scale=None, order="bshd"):
    return run(q) * STEPS + cached() + Tile().rows() + settings.depth + scaled(q) + helpers.twice(q) + len(TABLE["a"])

def hidden(q, k, v, *, causal, softmax_scale):
    return q * globals()["STEPS"]
"""


def loaded(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(source, vars(module))
    return module


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ModuleType]:
    """Return a function that loads the source again, as another process does."""

    def again() -> ModuleType:
        loaded("helpers", HELPERS, monkeypatch)
        return loaded("mine", SOURCE, monkeypatch)

    return again


def change_helper(of: ModuleType) -> None:
    exec("def twice(x):\n    return 3 * x\n", vars(of.helpers))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda of: setattr(of, "STEPS", 4), "STEPS"),
        (lambda of: of.TABLE["a"].append(3), "TABLE[a][2]"),
        (lambda of: of.run.register(float)(lambda x: 2 * x), "registry[builtins.float]"),
        (lambda of: of.cached(), "cached"),
        (lambda of: setattr(of.Tile, "size", 128), "Tile.size"),
        (lambda of: setattr(of.Tile, "rows", lambda self: 1), "Tile.rows"),
        (lambda of: setattr(of.settings, "depth", 2), "settings.depth"),
        (lambda of: setattr(of, "scaled", of.made(3.0)), "scale"),
        (lambda of: setattr(of.attention, "__kwdefaults__", {"softmax_scale": None, "order": "bhsd"}), "[order]"),
        (lambda of: setattr(of.attention, "order", "bhsd"), ".order"),
        (change_helper, "helpers.twice"),
    ],
)
def test_what_was_changed_is_found(load: Callable[[], ModuleType], change: Any, name: str) -> None:
    first, second = load(), load()
    before = live_state(first.attention)
    assert before == live_state(second.attention), "of one source"
    change(second)
    after = live_state(second.attention)
    assert differing(before, after).replace("'", "").endswith(name)
    assert digest(before) != digest(after)


OBJECTS = """
import argparse, collections, contextvars, threading, types
from dataclasses import dataclass
import torch

class Base:
    def rows(self): return 1
class Rows(Base): pass
class Tiles(list): pass
@dataclass
class Slotted:
    __slots__ = ("depth",)
    depth: int
class Group: pass

space, parsed, queue = types.SimpleNamespace(a=1), argparse.Namespace(a=1), collections.deque([1])
variable, event, tensor = contextvars.ContextVar("v"), threading.Event(), torch.ones(2)
tiles, slotted = Tiles(), Slotted(1)
many, nested, FLAG = list(range(6000)), (), False
for _ in range(45):
    nested = (nested, nested)

def attention(q, k, v, **_):
    import objects
    return space, parsed, queue, variable, event, tensor, tiles, slotted, many, nested, Rows, getattr(objects, "FLAG")
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda of: setattr(of.space, "a", 2),
        lambda of: setattr(of.parsed, "a", 2),
        lambda of: of.queue.append(2),
        lambda of: of.variable.set(2),
        lambda of: of.event.set(),
        lambda of: of.tensor.fill_(2),
        lambda of: setattr(of.tiles, "width", 2),
        lambda of: setattr(of.slotted, "depth", 2),
        lambda of: of.many.append(2),
        lambda of: setattr(of.Base, "rows", lambda self: 2),
        lambda of: setattr(of, "FLAG", True),
    ],
)
def test_a_change_within_objects_of_libraries_is_found(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    before = live_state(loaded("objects", OBJECTS, monkeypatch).attention)
    second = loaded("objects", OBJECTS, monkeypatch)
    assert differing(before, live_state(second.attention)) == ""
    change(second)
    assert differing(before, live_state(second.attention))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("(a): return g(h(a))", "(a): return g(h)(a)"),
        ("(a): return g(x=a)", "(a): return g(y=a)"),
        ("(a): return (g, h())", "(a): return (g(), h)"),
        ("(*a): return a", "(**a): return a"),
        ("(a, /): return a", "(a): return a"),
        ("(a):\n if a:\n  g()\n  h()", "(a):\n if a:\n  g()\n h()"),
        ("(a):\n try:\n  g()\n  h()\n except E: pass", "(a):\n g()\n try:\n  h()\n except E: pass"),
    ],
)
def test_unlike_code_differs(one: str, other: str) -> None:
    states = []
    for text in (one, other, one.replace("return", "return \\\n").replace("g(", "g(\n")):
        names: dict[str, Any] = {"__name__": "mine_of_tests"}
        exec(f"def f{text}", names)
        states.append(live_state(names["f"]))
    assert differing(states[0], states[1])
    assert not differing(states[0], states[2]), "only lines are broken elsewhere"


def test_a_state_with_too_many_values_is_not_known() -> None:
    many = [[object()] for _ in range(6000)]

    def attention() -> Any:
        return many

    assert any(text.startswith(UNTOLD) for text in live_state(attention).values())


def test_what_a_function_does_not_use_is_no_state_of_it(load: Callable[[], ModuleType]) -> None:
    first, second = load(), load()
    second.UNUSED = 2
    assert not differing(live_state(first.attention), live_state(second.attention))


def test_what_is_looked_up_by_name_while_it_runs_is_not_told(load: Callable[[], ModuleType]) -> None:
    assert any(text.startswith(UNTOLD) for text in live_state(load().hidden).values())


def test_a_worker_refuses_a_function_that_is_something_else_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("SCALE = 1.0\ndef attention(q, k, v, *, causal, softmax_scale):\n    return q * SCALE\n")
    mine = loaded("mine", file.read_text(), monkeypatch)
    spec = f"{file}:attention"

    def load_as(state: dict[str, str]) -> None:
        with Session(None, choose([spec]), live={spec: state}) as session:
            session.load()

    load_as(live_state(mine.attention))
    mine.SCALE = 2.0
    with pytest.raises(OtherStateError, match="SCALE would differ there"):
        load_as(live_state(mine.attention))


def test_how_lines_are_broken_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks change no state, although Python calls a method differently if its arguments are on other lines."""
    of = "def f(q, k):\n    return q.view({0}1, 2{0}).transpose({0}k.shape[-2] - q.shape[-2],{0} 1) if k else q\n"
    first, second = (loaded("mine", of.format(between), monkeypatch) for between in ("", "\n\n        "))
    assert live_state(first.f) == live_state(second.f)


def test_an_object_that_cannot_be_looked_at_is_said_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Odd:\n    @property\n    def __dict__(self): raise ValueError\nodd = Odd()\ndef f(q): return odd\n"
    assert live_state(loaded("mine", text, monkeypatch).f) == {"": f"{UNTOLD}: ValueError"}


def test_a_class_is_a_backend_and_has_no_state_that_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from attnbench.backends.fake import Fake\n\n\nclass Mine(Fake):\n    pass\n")
    with Session(None, choose([f"{file}:Mine"]), live={f"{file}:Mine": {"": "what it is here"}}) as session:
        assert session.load()["Mine"].usable
