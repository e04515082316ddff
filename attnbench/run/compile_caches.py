"""Empty compile caches (--fresh-caches), so that a worker finds no compiled kernel and its first call is cold.

Each cache is a new empty folder, which an environment variable names and which is deleted afterwards. Downloads are not
compiled kernels and stay: FlashInfer's binaries are linked into its folder. Libraries that are shipped compiled (cuDNN)
have no cache.

The variables are from the sources of Triton 3.9, torch 2.13, FlashInfer (commit fb28d72), flash-attn-4 4.0.0b36,
nvidia-cutlass-dsl 4.8.1 (without its variable it uses TMPDIR, as older versions do), quack-kernels 0.6.5,
apache-tvm-ffi 0.1.15, TileLang 0.1.15 and Helion 1.5.1, and from CUDA's guide.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attnbench.core.files import below_home
from attnbench.run.process import forget, if_killed

VARIABLES: Mapping[str, str] = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "fa4",
    "CUTE_DSL_CACHE_DIR": "cute",
    "QUACK_CACHE_DIR": "quack",
    "TVM_FFI_CACHE_DIR": "tvm",
    "TILELANG_CACHE_DIR": "tilelang",
    "HELION_CACHE_DIR": "helion",
    "CUDA_CACHE_PATH": "cuda",
    "ATTNBENCH_CACHE_DIR": "attnbench",  # block sizes of backends/triton/tuned_blocks.py
    "TMPDIR": "tmp",
}
DOWNLOADS = ".cache/flashinfer/cubins"  # under FLASHINFER_WORKSPACE_BASE


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Give the environment variables of new empty caches, whose folders are deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="attnbench-", ignore_cleanup_errors=True) as folder, ExitStack() as at_end:
        at_end.callback(forget, if_killed("rm", "-rf", "--", folder))
        variables = {}
        for name, below in VARIABLES.items():
            (Path(folder) / below).mkdir()
            variables[name] = f"{folder}/{below}"
        base = os.environ.get("FLASHINFER_WORKSPACE_BASE")
        downloads = Path(base, DOWNLOADS) if base else below_home(DOWNLOADS)
        if downloads and downloads.is_dir():
            link = Path(variables["FLASHINFER_WORKSPACE_BASE"], DOWNLOADS)
            link.parent.mkdir(parents=True)
            link.symlink_to(downloads)
        yield variables
