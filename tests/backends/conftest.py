"""Import Triton for its interpreter where there is no GPU, before a test file here imports it otherwise.

Otherwise test_backend_compiled.py would import it first, through torch's compiler, and the tests of the kernels would
be skipped.
"""

from __future__ import annotations

import interpreted_triton  # noqa: F401
