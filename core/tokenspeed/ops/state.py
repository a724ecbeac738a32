"""What operators over state rows share: walking the rows of a step, and drawing them for cases.

Layers call such an operator through `in_stages`, so that no kernel has to know of drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch

    from tokenspeed.contracts.model import StateRows


def each_row(rows: StateRows, query_start: Any) -> Iterator[tuple[slice, int, int]]:
    """Yield (query tokens, block read or -1, block written) of each row."""
    for row, (read, write) in enumerate(
        zip(rows.read_R.tolist(), rows.write_R.tolist(), strict=True)
    ):
        yield slice(int(query_start[row]), int(query_start[row + 1])), read, write


def in_stages(
    apply: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Call `apply(*inputs, rows, query_start)`: once, or for the pieces of one stage after another.

    Args:
        inputs: tensors whose first axis is the step's query tokens.
        rows: of the step; its stages, if it has any, say how rows with drafts are cut.
        query_start: of the step's rows.
    Returns:
        What `apply` returns, by query token of the step.
    """
    if not rows.stages:
        return apply(*inputs, rows, query_start)
    first, *later = (
        apply(*(x[stage.tokens_P] for x in inputs), stage.rows, stage.query_start)
        for stage in rows.stages
    )
    out = first.new_empty((inputs[0].shape[0], *first.shape[1:]))
    for stage, part in zip(rows.stages, (first, *later), strict=True):
        out[stage.tokens_P] = part
    return out


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
