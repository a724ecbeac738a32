# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The product of two tiles, exact in float32, in the units for matrices in half precisions."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Kernels run in the interpreter, which holds bfloat16 as integers: it multiplies in float32."""


@triton.jit
def dot(a_MK, b_KN, sum_MN):
    """Return a b + sum in float32; both tiles have one dtype."""
    if INTERPRETED:
        a_MK = a_MK.to(tl.float32)
        b_KN = b_KN.to(tl.float32)
    return tl.dot(a_MK, b_KN, sum_MN, input_precision="ieee")
