"""Portable kernels run in triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
from pathlib import Path

HAS_GPU = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated

    from tests.support.interpreter import replace_once

    replace_once()
