"""Import Triton for its interpreter where there is no GPU, before a test file here imports it otherwise.

test_backend_compiled.py imports it through torch's compiler; without this file the tests of the kernels would then be
skipped.
"""

from __future__ import annotations

import interpreted_triton  # noqa: F401
