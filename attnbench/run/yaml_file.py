"""Reading of the YAML files that people write: suites, workloads, margins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError

from attnbench.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UserError with the line if it is not YAML or has a key twice."""
    try:
        if path.is_char_device():  # /dev/zero has no end
            raise UserError(f"{path}: not readable as YAML: it is a device")
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not readable as YAML: it is not text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise UserError(f"{where}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None


def first_mistake(error: ValidationError, models: Mapping[str, type[BaseModel]]) -> str:
    """Return the first mistake in a file with its place: "axes.seqln: unknown key; did you mean "seqlen"?".

    `models`: the key of a mapping in the file -> its model; "" for all other mappings.
    """
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] != "extra_forbidden":
        return f"{place}: {first['msg'].removeprefix('Value error, ')}"
    *_, within = ("", *(part for part in first["loc"][:-1] if isinstance(part, str)))
    fields = models.get(within, models[""]).model_fields
    known = sorted({field.alias or name for name, field in fields.items()})
    return f"{place}: unknown key{did_you_mean(str(first['loc'][-1]), known)}"


class _Loader(yaml.SafeLoader):
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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value. For an invalid date or number raise ConstructorError, where PyYAML raises ValueError."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise ConstructorError(problem=str(error), problem_mark=node.start_mark) from None
