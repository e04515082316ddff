"""Its place puts tests/ on the path, where tests of backends find their stand-ins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A developer's own, which `attnbench env create` made, are none of the tests' (and go to no child)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield
