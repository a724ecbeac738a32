"""What operators over state rows share: walking the rows of a step, and drawing them for cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from tokenspeed.contracts.model import StateRows


def each_row(rows: StateRows, query_start: Any) -> Iterator[tuple[slice, int, int]]:
    """Yield (query tokens, block read or -1, block written) of each row."""
    for row, (read, write) in enumerate(
        zip(rows.read_R.tolist(), rows.write_R.tolist(), strict=True)
    ):
        yield slice(int(query_start[row]), int(query_start[row + 1])), read, write


def random_rows(lengths: Sequence[int], random: torch.Generator) -> tuple[StateRows, Any]:
    """Return rows of these query lengths over 2 R blocks, the first one fresh, and query_start."""
    import numpy as np
    import torch

    from tokenspeed.contracts.model import StateRows

    blocks = torch.randperm(2 * len(lengths), generator=random)
    read, write = blocks.view(2, -1)
    read = read.clone()
    read[0] = -1
    return StateRows(read, write.clone()), np.cumsum([0, *lengths], dtype=np.int32)
