"""Short causal convolution whose past lies in a state row.

Legend: T tokens, R rows of the step, B blocks of the state group, C channels, W taps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.model import StateRows


def _cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    from tokenspeed.ops.state import random_rows

    random = torch.Generator().manual_seed(seed)
    for lengths, channels, taps in (((1, 1, 1), 6, 4), ((1, 2, 3, 40), 32, 4), ((5, 1), 3, 2)):
        rows, query_start = random_rows(lengths, random)
        x = torch.randn(sum(lengths), channels, generator=random)
        weight = torch.randn(channels, taps, generator=random)
        state = torch.randn(2 * len(lengths), channels, taps - 1, generator=random)
        yield (x, weight, state, rows, query_start), {}


@operator("conv.causal_silu", cases=_cases)
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
        state_BCP: (B, C, W - 1) float, oldest first; block write_R of each row is written.
        rows: blocks that the rows of the step read and write.
        query_start: (R + 1,) int32 host; row r has the tokens [query_start[r], query_start[r + 1]).
    Returns:
        (T, C), dtype and device of x.
    """
    import torch

    from tokenspeed.ops.state import each_row

    out = torch.empty_like(x_TC)
    num_past = state_BCP.shape[-1]
    for tokens, read, write in each_row(rows, query_start):
        past = state_BCP[read] if read >= 0 else torch.zeros_like(state_BCP[0])
        inputs = torch.cat([past.to(x_TC.dtype), x_TC[tokens].T], dim=-1)
        total = (inputs.unfold(-1, num_past + 1, 1) * weight_CW[:, None]).sum(-1).T
        out[tokens] = total / (1 + (-total).exp())
        state_BCP[write] = inputs[:, inputs.shape[-1] - num_past :].to(state_BCP.dtype)
    return out
