"""Kernels for tests of what compiles and watches kernels, and of functions inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.sampling.draw import uniform


@triton.jit
def copy(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Copy BLOCK elements."""
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places))


@triton.jit
def philox_numbers(seeds_ptr, places_ptr, numbers_ptr):
    """Write the number of one seed and position."""
    row = tl.program_id(0)
    number = uniform(tl.load(seeds_ptr + row), tl.load(places_ptr + row))
    tl.store(numbers_ptr + row, number)


@triton.jit
def add_unwidened(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Add in the dtype that was loaded: wrong in the interpreter, where that is bfloat16."""
    places = tl.arange(0, BLOCK)
    tl.store(y_ptr + places, tl.load(x_ptr + places) + tl.load(x_ptr + places))
