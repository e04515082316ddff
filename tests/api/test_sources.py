"""The source of a function of a script, as a module of its own."""

from __future__ import annotations

import linecache
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnbench.api.definitions import NotSource
from attnbench.api.sources import module_source
from attnbench.api.subjects import subjects
from attnbench.core.errors import UserError

Script = Callable[[str], dict[str, Any]]
TWICE = """
import functools
def twice(g):
    @functools.wraps(g)
    def inner(x): return 2 * g(x)
    return inner
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Return a function that runs a text as the script of this process, and returns its names."""

    def ran(text: str) -> dict[str, Any]:
        file = tmp_path / "script.py"
        file.write_text(text)
        linecache.checkcache()
        scope: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**scope))
        exec(compile(text, file, "exec"), scope)
        return scope

    return ran


HOLD = """
class Hold:
    def __call__(self, x): return x
class Hold2(Hold): pass
"""


def loaded(source: str, name: str) -> Any:
    scope: dict[str, Any] = {"__name__": "other"}
    exec(source, scope)
    return scope[name]


@pytest.mark.parametrize(
    ("text", "name", "argument", "result"),
    [
        ("print(1)\nN, WORDS = 3, ['a', None]\ndef g(x): return x * N\ndef f(x): return g(x) + len(WORDS)", "f", 2, 8),
        ("import math as m\nfrom os.path import join\ndef f(x): return join('a', str(m.floor(x)))", "f", 2.5, "a/2"),
        ("def make(n):\n    def inner(x):\n        return x + n\n    return inner\nf = make(4)", "f", 1, 5),
        ("t = 3\nf = lambda x: x ** t", "f", 2, 8),
        (
            "import functools\ndef g(a, b, c=0): return (a, b, c)\nf = functools.partial(g, 1, c='x')",
            "f",
            2,
            (1, 2, "x"),
        ),
        ("class A:\n    k = 2\n    def __call__(self, x): return self.k * x\nf = A()", "f", 4, 8),
        (f"{TWICE}@twice\ndef f(x): return x + 1", "f", 1, 4),
        (f"{TWICE}def h(x): return x + 1\nf = twice(h)", "f", 1, 4),
        ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)", "odd", 5, True),
        ("f = (\n    lambda x: x\n    * 2\n)", "f", 4, 8),
        ("S = 2\ndef f(x, s=S): return s * x\nS = 1", "f", 3, 6),
        ("def f(x, *, s=1): return s * x\nf.__kwdefaults__ = {'s': 2}", "f", 3, 6),
        ("class A: k = 1\nA.k = 2\ndef f(x): return A.k * x", "f", 3, 6),
        ("def g(x): return 2 * x\nold = g\ndef g(x): return x\ndef f(x): return g(x) + old(x)", "f", 1, 3),
        (
            "def make():\n    def f(x):\n        return '''a\n        b'''\n    return f\nf = make()",
            "f",
            1,
            "a\n        b",
        ),
        ("def fact(n): return n and n * fact(n - 1) or 1\nf = fact", "f", 3, 6),
        (
            "n = 3\ndef f(x):\n    g = lambda n: n + 1\n    return g(x) * n",
            "f",
            1,
            6,
        ),  # an argument hides the name, in g only
        ("from __future__ import annotations\ndef f(x: Nowhere) -> Nothing: return x", "f", 1, 1),
        (
            "G = 1\nfor _ in range(32): G = {0: [G]} if _ % 2 else (G, {-1 << 1999})\ndef f(x): return G == G",
            "f",
            1,
            True,
        ),
        ("limit = float('inf')\ndef f(x, y=limit):\n    import os\n    return min(x, y) if os.sep else 0", "f", 3, 3),
    ],
)
def test_it_computes_the_same(script: Script, text: str, name: str, argument: Any, result: Any) -> None:
    scope = script(text)
    assert scope[name](argument) == result
    source = module_source(scope[name], name, scope)
    assert loaded(source, name)(argument) == result
    assert "print" not in source


def test_attributes_of_a_function_are_kept(script: Script) -> None:
    scope = script("def f(x): return x\nf.order = 'bhsd'\nf.kernels = ('a', 'b')")
    found = loaded(module_source(scope["f"], "f", scope), "f")
    assert (found.order, found.kernels) == ("bhsd", ("a", "b"))


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("import io\nstate = [io.StringIO()]\ndef f(x): return state", "f", "state is a list"),
        ("G = [1]\nG.append(G)\ndef f(x): return G", "f", "G is too large"),
        ("G = []\nfor _ in range(3000): G = [G]\ndef f(x): return G", "f", "G is too large"),
        ("G = ()\nfor _ in range(45): G = (G, G)\ndef f(x): return G", "f", "G is too large"),
        ("G = 10**5000\ndef f(x): return G", "f", "G is too large"),
        ("def f(x): return nothing_like_it", "f", "f needs nothing_like_it, which is not defined"),
        (
            "n = 1\ndef g(x): return n\ndef make(n):\n    return lambda x: (n, g(x))\nf = make(2)",
            "f",
            "n stands for two",
        ),
        ("f, g = (lambda x: 1), (lambda x: 2)", "f", "several lambdas stand in one line"),
        ("class A:\n    def __call__(self, x): return x\nf = A()\nf.n = 2", "f", "with state"),
        (f"{HOLD}f = Hold(); f = Hold2()", "f", "no single statement"),
        (f"{HOLD}f = Hold()\nif f: f = Hold2()", "f", "no single statement"),
        (f"{HOLD}K = Hold\nf = K()\nK = Hold2", "f", "K, which is bound several times"),
        (f"{TWICE}@twice\ndef f(x): return x\nf = twice(f)", "f", "no single statement"),
        (
            "class A:\n    def __call__(self, x): return 1\nf = A()\nclass A: pass",
            "f",
            "A, which is bound several times",
        ),
        ("import io\nS = io.StringIO()\ndef f(x, s=S): return s", "f", "a default of f is a StringIO"),
        ("def make():\n n = 0\n def f(x):\n  nonlocal n\n  n += 1\n return f\nf = make()", "f", "f changes a variable"),
        ("import io\nclass A: k = io.StringIO()\ndef f(x): return A.k", "f", "A.k is a StringIO"),
    ],
)
def test_what_has_no_source_is_named(script: Script, text: str, name: str, said: str) -> None:
    scope = script(text)
    with pytest.raises(NotSource, match=said):
        module_source(scope[name], name, scope)
    found = subjects(scope[name], scope)
    assert found.patterns == (f"attnbench_in_process:{name}",)
    assert said in found.why[name]
    with pytest.raises(UserError, match=f"no other process can have it: .*{said}"):
        subjects(scope[name], scope, in_process=False)


def test_a_file_that_was_edited_since_is_no_source(script: Script) -> None:
    scope = script("def f(x): return x + 1\ng = lambda x: x + 1")
    Path(scope["__file__"]).write_text("def f(x): return x + 2\ng = lambda x: x + 2")
    linecache.checkcache()
    for name in ("f", "g"):
        with pytest.raises(NotSource, match="was changed since it was run"):
            module_source(scope[name], name, scope)


def test_a_local_object_is_not_one_of_the_module(script: Script) -> None:
    scope = script(f"{HOLD}g = Hold()")
    local = scope["Hold2"]()
    with pytest.raises(NotSource, match="no single statement"):
        module_source(local, "g", ChainMap({"g": local}, scope))


def test_what_a_module_has_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels_of_mine.py").write_text(
        "def f(q, k, v): return q\nclass A:\n    def __call__(self): ...\na = A()"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import kernels_of_mine  # type: ignore[import-not-found]

    scope = {"kernels_of_mine": kernels_of_mine, "renamed": kernels_of_mine.f}
    file = tmp_path / "kernels_of_mine.py"
    assert subjects([kernels_of_mine.f, "eager", "sdpa-*"], scope).patterns == (f"{file}:f", "eager", "sdpa-*")
    assert subjects(kernels_of_mine.a, vars(kernels_of_mine)).patterns == (f"{file}:a",)
    for odd in (3, None, [3]):
        with pytest.raises(UserError, match="is neither a backend's name nor a function"):
            subjects(odd, scope)  # type: ignore[arg-type]


class Odd:
    """An object of a person whose text, module and missing attributes raise errors when they are read."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)

    def __repr__(self) -> str:
        raise ValueError("no text")

    @property
    def __module__(self) -> Any:  # type: ignore[override]
        raise ValueError("no module")


class OddKernel(Odd):
    def __call__(self, q: Any) -> Any:
        return q


class Unnamed(OddKernel):
    __name__ = None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (OddKernel, "OddKernel"),
        (Unnamed, "Unnamed"),
        (type("1 a", (OddKernel,), {}), "_1_a"),
        (type("class", (OddKernel,), {}), "_class"),
        (type("A" * 300, (OddKernel,), {}), "A" * 100),
    ],
)
def test_an_object_that_tells_nothing_is_named_by_its_type(kind: Any, name: str) -> None:
    kernel = kind()
    assert subjects(kernel, {}, in_process=True).patterns == (f"attnbench_in_process:{name}",)
    assert subjects(kernel, {}).why


def test_a_name_longer_than_that_of_a_file_is_cut(script: Script) -> None:
    name = "ä" * 200
    scope = script(f"def {name}(x): return x")
    (spec,) = subjects(scope[name], scope).patterns
    assert Path(spec.rpartition(":")[0]).is_file()
    assert spec.endswith(f":{'ä' * 50}")


def test_what_cannot_be_read_is_refused_in_one_line() -> None:
    def raises() -> Any:
        yield "eager"
        raise ValueError("no more")

    class Closed(OddKernel):
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise ValueError("not\nyours")

    with pytest.raises(UserError, match=r"^Closed: reading it raises ValueError: not yours; in_process=True measures"):
        subjects(Closed(), {})
    with pytest.raises(UserError, match=r"^an object of type Odd is neither a backend's name"):
        subjects([Odd()], {})  # type: ignore[list-item]
    with pytest.raises(UserError, match=r"^iterating over the generator raises ValueError: no more; give a list$"):
        subjects(raises(), {})
