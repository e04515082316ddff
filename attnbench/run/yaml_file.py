"""Reading of the YAML files that people write: suites, workloads, margins."""

from __future__ import annotations

import itertools
import re
import reprlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError

from attnbench.core.errors import UserError, did_you_mean
from attnbench.core.files import is_text

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
LARGEST = 256 * 2**10  # bytes; PyYAML reads them in a second
MOST_NODES = 200_000  # values of a file, with the values of its aliases (*name)
WEIGHS = 64  # so many characters of a text count as one more value
WANTED = {  # beginning of the type of pydantic's mistake -> the wanted value
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "list": "a list",
    "dict": "a mapping (name: value)",
    "model": "a mapping (name: value)",
}


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UserError where it is too large, not YAML, or has a key twice."""
    try:
        if path.is_char_device():  # /dev/zero has no end
            raise UserError(f"{path}: not readable as YAML: it is a device")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST // 2**10} KiB; write lists and ranges, not single cases")
        return yaml.load(content.decode("utf-8-sig"), _Loader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not readable as YAML: it is not text") from None
    except RecursionError:
        raise UserError(f"{path}: not readable as YAML: it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise UserError(f"{where}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None


def first_mistake(
    error: ValidationError, models: Mapping[str, type[BaseModel]], plain: Mapping[str, Collection[str]] | None = None
) -> str:
    """Return the first mistake in a file with its place: "axes.seqln: unknown key; did you mean "seqlen"?".

    `models`: the name of a key that holds a mapping -> the pydantic model of that mapping; "" -> the model of all
    others. `plain`: the same for mappings without a model -> their keys, only used to say where a misplaced key
    belongs.
    """
    first, *others = error.errors()
    place = _place(first["loc"])
    if first["type"] == "extra_forbidden":  # the key itself may be called as a type
        place = ".".join(filter(None, (_place(first["loc"][:-1]), str(first["loc"][-1]))))
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "literal_error":
        return f"{place}: {reprlib.repr(first['input'])} is not {first['ctx']['expected']}"
    if first["type"] != "extra_forbidden":
        alike = (first, *(other for other in others if _place(other["loc"]) == place))  # one per allowed type
        wanted = [WANTED[kind] for found in alike if (kind := found["type"].partition("_")[0]) in WANTED]
        told = f"{reprlib.repr(first['input'])} is not"
        if first["type"].partition("_")[0] in WANTED:
            is_plain = {*wanted} == {"text"} and not isinstance(first["input"], list | dict)  # a date, or no
            told += f" {' or '.join(dict.fromkeys(wanted))}" + "; put it in quotes" * is_plain
        else:
            told = first["msg"].removeprefix("Value error, ").replace("Input should be", told)
        return f"{place}: {told}" if place else told
    *_, within = ("", *(part for part in first["loc"][:-1] if isinstance(part, str)))
    keys = {key: keys_of(model) for key, model in models.items()}
    own, word = keys.get(within, keys[""]), str(first["loc"][-1])
    if there := stands(word, own, {**keys, **(plain or {})}):
        return f"{place}: not a key here; it stands {there}"
    return f"{place}: unknown key{did_you_mean(word, sorted(own))}"


def stands(word: str, own: Collection[str], keys: Mapping[str, Collection[str]]) -> str:
    """Return where in the file a key belongs that is not among the `own` keys; "" if nowhere, or if it is among them.

    `keys` is the key of a mapping in the file -> its keys, "" for the file itself. A dash counts as an underscore.
    """
    word = word.replace("-", "_")
    for key, known in keys.items():
        if word in known and word not in own:
            return f"under {key}, as in {key}: {{{word}: ...}}" if key else "at the top of the file"
    return ""


def keys_of(model: type[BaseModel]) -> set[str]:
    """Return the keys of a mapping in a file, as people write them."""
    return {of.alias or name for name, of in model.model_fields.items()}


def _place(loc: tuple[int | str, ...]) -> str:
    """Return the place of a mistake as keys with dots, without the types that pydantic tried."""
    return ".".join(str(part) for part in loc if part not in WANTED and part != "str" and "[" not in str(part))


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with the numbers of YAML 1.2, so that 12:30 is not 750 and 010 is not 8.

    libyaml's loader is faster, but ends the process where a file is nested deeply.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Refuse aliases that repeat each other, by which a few lines could fill the memory."""
        if node := super().get_single_node():
            _count(node, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a key that is there twice. YAML forbids it, but PyYAML would silently keep the last."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ConstructorError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_scalar(self, node: Any) -> Any:
        """Construct text. Raise ConstructorError for an escaped character that no text file can have."""
        text = super().construct_scalar(node)
        if isinstance(text, str) and not is_text(text):
            raise ConstructorError(problem=f"{text!r} has a character that no text has", problem_mark=node.start_mark)
        return text

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value. Raise ConstructorError for a value that its tag cannot have, where PyYAML itself fails."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError):
            what = f"{reprlib.repr(node.value)} is no {node.tag.rpartition(':')[2]}"
            raise ConstructorError(problem=what, problem_mark=node.start_mark) from None


def _count(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Return the number of values that a node stands for. Raises ConstructorError for more than MOST_NODES."""
    if isinstance(node, yaml.ScalarNode):
        return 1 + len(node.value) // WEIGHS
    if node not in known:
        known[node] = MOST_NODES  # until it is counted, in case it contains itself
        inner = node.value if isinstance(node, yaml.SequenceNode) else itertools.chain.from_iterable(node.value)
        known[node] = 1 + sum(_count(of, known) for of in inner)
    if known[node] > MOST_NODES:
        raise ConstructorError(problem="its aliases stand for too many values", problem_mark=node.start_mark)
    return known[node]


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (INT, FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_EXPONENT = r"[eE][-+]?[0-9]+"
_POINT = r"(\.[0-9]+|[0-9]+\.[0-9]*)"
_Loader.add_implicit_resolver(INT, re.compile(r"[-+]?(0|[1-9][0-9]*)$"), [*"-+0123456789"])
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(rf"[-+]?({_POINT}({_EXPONENT})?|[0-9]+{_EXPONENT}|\.(inf|Inf|INF))$|\.(nan|NaN|NAN)$"),
    [*"-+.0123456789"],
)
