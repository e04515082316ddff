"""Names of own code: a file, a function, and values of its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.core import masks
from attnbench.core.errors import UserError
from attnbench.core.own_code import MOST_OF_SOURCE, load_file, parameters_of, sweep


@pytest.mark.parametrize("file", ["mine.py", "x[1]/k[2].py", "a=b.py"])
def test_brackets_of_a_file_name_no_parameters(file: str) -> None:
    assert sweep(f"{file}:f") == [f"{file}:f"]
    assert sweep(f"{file}:f[a=1,2]") == [f"{file}:f[a=1]", f"{file}:f[a=2]"]
    assert parameters_of(f"{file}:f[a=1]") == (f"{file}:f", {"a": 1})


def test_a_huge_file_of_python_is_not_read(tmp_path: Path) -> None:
    """A huge Python file is not read; a sparse one takes no room on the disk but all memory."""
    with (path := tmp_path / "huge.py").open("wb") as file:
        file.truncate(MOST_OF_SOURCE + 1)
    with pytest.raises(UserError, match=r"huge\.py has more than 16 MiB"):
        load_file(path)
    with pytest.raises(UserError, match=r"cannot read .*huge\.py: File too large"):
        masks.parse_masks(f"{path}:f")
