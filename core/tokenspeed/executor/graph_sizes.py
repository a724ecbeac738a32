"""For how many rows a decode step is captured; one of other rows is padded to the next size.

    1, 2, 4, 8 | by 8 up to 128 | by 16 up to 256 | by 32 beyond

A padded row reads one token and costs next to nothing in attention; products cost by tiles of 8
rows and more. A size costs some hundred ms at start-up and a little memory.
"""

from __future__ import annotations

STEPS = ((8, 128), (16, 256), (32, 1 << 30))
"""(step, up to)."""
LARGEST = 512
"""Rows of the largest size, unless the settings say otherwise: beyond, launches are hidden."""


def sizes_up_to(most: int) -> tuple[int, ...]:
    """Return the sizes, smallest first; the last one is `most`."""
    sizes = [size for size in (1, 2, 4) if size < most]
    size = 8
    while size < most:
        sizes.append(size)
        size += next(step for step, last in STEPS if size < last)
    return (*sizes, most)
