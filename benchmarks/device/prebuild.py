"""Builds FlashInfer's attention of chunks for sm_90a on a machine without a GPU, to be carried.

    python -m benchmarks.device.prebuild DEST [--head-dims 64,128]

Needs flashinfer-python, nvcc (CUDA_HOME), headers of cuRAND and a libcuda.so to link with; see
docs/plugins/nvidia.md. DEST becomes a copy of the library with its modules in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ARCH = "9.0a"
NOT_CARRIED = shutil.ignore_patterns("cutlass", "cccl", "__pycache__")
"""Sources that only a compilation reads."""


def main(arguments: list[str] | None = None) -> int:
    """Build the modules and copy the library beside them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.prebuild")
    parser.add_argument("dest", type=Path, help="folder to put on the path where the GPU is")
    parser.add_argument("--head-dims", default="128", help="head dims to build for")
    given = parser.parse_args(arguments)
    spec = find_spec("flashinfer")
    if spec is None or spec.origin is None:
        print("flashinfer is not installed: pip install flashinfer-python", file=sys.stderr)
        return 1
    package = Path(spec.origin).parent
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = ARCH  # read when the library is imported
    carried = given.dest / package.name
    shutil.copytree(package, carried, ignore=NOT_CARRIED, dirs_exist_ok=True)
    for head_dim in map(int, given.head_dims.split(",")):
        started = time.monotonic()
        module = chunks_module(head_dim)
        module.build(verbose=False)
        built = Path(module.get_library_paths()[0])
        folder = carried / "data" / "aot" / module.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, folder / f"{module.name}.so")
        print(f"built {module.name}  {time.monotonic() - started:.0f} s", flush=True)
    return 0


def chunks_module(head_dim: int) -> Any:
    """Return FlashInfer's description of paged bfloat16 attention for chunks."""
    import torch

    modules = import_module("flashinfer.jit.attention.modules")
    half = torch.bfloat16
    return modules.gen_batch_prefill_module(
        "fa3", half, half, half, torch.int32, head_dim, head_dim, 0, False, False, False
    )


if __name__ == "__main__":
    sys.exit(main())
