"""Short causal convolution whose past lies in a state row.

Legend: T tokens, R rows of the step, B blocks of the state group, C channels, W taps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import operator
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.state import LENGTHS, each_row, random_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.model import StateRows


def _cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for (name, lengths), channels, taps in zip(
        LENGTHS.items(), (5, 6, 32, 3, 8), (4, 4, 4, 2, 3), strict=True
    ):
        rows, query_start = random_rows(lengths, draw.random)
        weight = draw.floats(channels, taps)
        state = draw.wide(2 * len(lengths) + 1, channels, taps - 1)
        x = draw.beside(sum(lengths), channels)
        yield Case(name, (x, weight, state, rows, query_start))


@operator(
    "conv.causal_silu",
    cases=_cases,
    tokens=("x_TC",),
    placement="T C, C _, _ C _, -, - -> T C",
)
def causal_conv(
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    state_BCP: torch.Tensor,
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Convolve each channel over its row's inputs: silu(sum over w of weight[w] x[t - W + 1 + w]).

    Inputs before the step are the state's; after it the state holds the last P = W - 1 ones.

    Args:
        x_TC: (T, C) float, device.
        weight_CW: (C, W) same dtype, the newest input's weight last.
        state_BCP: (B, C, W - 1) float32, oldest first; block write_R of each row is written.
        rows: blocks that the rows of the step read and write.
        query_start: (R + 1,) int32 host; row r has the tokens [query_start[r], query_start[r + 1]).
    Returns:
        (T, C), dtype and device of x.
    Source: Mamba, Gu and Dao 2023, section 3.4 (the short convolution and its state).
    """
    import torch

    out = torch.empty_like(x_TC)
    num_past = state_BCP.shape[-1]
    for tokens, read, write in each_row(rows, query_start):
        past = state_BCP[read] if read >= 0 else torch.zeros_like(state_BCP[0])
        inputs = torch.cat([past.to(x_TC.dtype), x_TC[tokens].T], dim=-1)
        total = (inputs.unfold(-1, num_past + 1, 1) * weight_CW[:, None]).sum(-1).T
        out[tokens] = total / (1 + (-total).exp())
        state_BCP[write] = inputs[:, inputs.shape[-1] - num_past :].to(state_BCP.dtype)
    return out
