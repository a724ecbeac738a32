"""A kernel for tests of what compiles kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Copy BLOCK elements."""
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))
