"""Reading of the YAML files that people write: suites, workloads, margins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from attnbench.core.errors import UserError


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UserError with the line if it is not YAML or has a key twice."""
    try:
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
