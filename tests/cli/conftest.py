from __future__ import annotations

from pathlib import Path

import pytest
from tool import Tool


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)
