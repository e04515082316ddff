"""Fresh caches: the environment variables under which a worker finds no kernel that was compiled before.

So a first call is the cold one. Each folder is empty, its own, and gone afterwards. What was downloaded is no compiled
kernel and stays: FlashInfer's binaries are linked in. Names as read in Triton 3.9, torch 2.13, FlashInfer (commit
fb28d72), flash-attn-4 4.0.0b36, nvidia-cutlass-dsl 4.8.1 (without the variable it uses TMPDIR, as older ones do),
quack-kernels 0.6.5, apache-tvm-ffi 0.1.15 and CUDA's guide. What is shipped compiled (cuDNN) is no cache.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

VARIABLES: Mapping[str, str] = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "fa4",
    "CUTE_DSL_CACHE_DIR": "cute",
    "QUACK_CACHE_DIR": "quack",
    "TVM_FFI_CACHE_DIR": "tvm",
    "CUDA_CACHE_PATH": "cuda",
    "ATTNBENCH_CACHE_DIR": "attnbench",  # block sizes that backends/triton/tuned_blocks.py found
    "TMPDIR": "tmp",
}
DOWNLOADS = ".cache/flashinfer/cubins"  # under FLASHINFER_WORKSPACE_BASE


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """The variables, for as long as their folders live."""
    with tempfile.TemporaryDirectory(prefix="attnbench-", ignore_cleanup_errors=True) as folder:
        found = {}
        for name, below in VARIABLES.items():
            (Path(folder) / below).mkdir()
            found[name] = f"{folder}/{below}"
        usual = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home(), DOWNLOADS)
        if usual.is_dir():
            link = Path(found["FLASHINFER_WORKSPACE_BASE"], DOWNLOADS)
            link.parent.mkdir(parents=True)
            link.symlink_to(usual)
        yield found
