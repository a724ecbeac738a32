"""What operators over state rows share: walking the rows of a step, and drawing them for cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from tokenspeed.contracts.model import StateRows


def each_row(rows: StateRows, query_start: Any) -> Iterator[tuple[slice, int, int]]:
    """Yield (query tokens, block read or -1, block written) of each row."""
    for row, (read, write) in enumerate(
        zip(rows.read_R.tolist(), rows.write_R.tolist(), strict=True)
    ):
        yield slice(int(query_start[row]), int(query_start[row + 1])), read, write


LENGTHS: Mapping[str, tuple[int, ...]] = {
    "no rows": (),
    "steps of one token": (1, 1, 1),
    "steps, short and longer rows": (1, 2, 3, 70),
    "a chunk and one more, a step, a chunk": (129, 1, 64),
    "one row": (40,),
}
"""Query tokens of the rows of a step, for case generators."""


def random_rows(lengths: Sequence[int], random: torch.Generator) -> tuple[StateRows, Any]:
    """Return rows of these query lengths over 2 R blocks, and query_start.

    The first row is fresh, and the last one of several is updated in place.
    """
    import numpy as np
    import torch

    from tokenspeed.contracts.model import StateRows

    blocks = torch.randperm(2 * len(lengths), generator=random)
    read, write = blocks.view(2, -1)
    read = read.clone()
    read[:1] = -1
    read[1:][-1:] = write[1:][-1:]
    return StateRows(read, write.clone()), np.cumsum([0, *lengths], dtype=np.int32)
