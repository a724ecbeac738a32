"""Which prebuilt modules of FlashInfer are installed; found without importing it.

A module that is absent is not compiled when the engine starts: that takes minutes and a compiler.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LIBRARY = "flashinfer"
_DTYPES = {"bf16": "bfloat16", "f16": "float16"}
_CHUNKS = re.compile(
    r"batch_prefill_with_kv_cache_dtype_q_(?P<dtype>bf16|f16)_dtype_kv_(?P=dtype)"
    r"_dtype_o_(?P=dtype)_dtype_idx_i32_head_dim_qk_(?P<dim>\d+)_head_dim_vo_(?P=dim)"
    r"_posenc_0_use_swa_False_use_logits_cap_False_f16qk_False_sm90"
)
"""FlashInfer's name of paged attention for sm_90a: no window, no softcap, one dtype throughout."""


def prebuilt_modules() -> Path | None:
    """Return the folder of prebuilt modules; None: the library is not installed."""
    spec = find_spec(LIBRARY)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "data" / "aot"


def head_dims_of_chunks(modules: Path) -> Mapping[str, tuple[int, ...]]:
    """Return the dtypes that attention of chunks is built for, and the head dims of each.

    Args:
        modules: folder with NAME/NAME.so of each module; need not exist.
    """
    found: dict[str, set[int]] = {}
    for library in modules.glob("*/*.so"):
        match = _CHUNKS.fullmatch(library.stem)
        if match and library.parent.name == library.stem:
            found.setdefault(_DTYPES[match["dtype"]], set()).add(int(match["dim"]))
    return {dtype: tuple(sorted(dims)) for dtype, dims in sorted(found.items())}
