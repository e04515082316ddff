"""Names of own code: a file, a function, and values of its parameters."""

from __future__ import annotations

import pytest

from attnbench.core.own_code import parameters_of, sweep


@pytest.mark.parametrize("file", ["mine.py", "x[1]/k[2].py", "a=b.py"])
def test_brackets_of_a_file_name_no_parameters(file: str) -> None:
    assert sweep(f"{file}:f") == [f"{file}:f"]
    assert sweep(f"{file}:f[a=1,2]") == [f"{file}:f[a=1]", f"{file}:f[a=2]"]
    assert parameters_of(f"{file}:f[a=1]") == (f"{file}:f", {"a": 1})
