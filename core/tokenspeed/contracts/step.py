"""What the control plane hands to the execution plane for one step, and what comes back.

`StepPlan` is implemented in C++ (`tokenspeed._core.StepPlan`): read-only zero-copy arrays owned by
the plan. R rows, T query tokens. Rows [0, num_decode_rows) are decodes, the rest are prefill
chunks. Everything is a delta against the executor's persistent tables, so a step costs what
changed in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.contracts.sampler import TokenLogprobs

TOKEN_FROM_DEVICE = -1
"""In `token_ids`: the token that the previous, uncommitted step samples for this row's slot."""

SENTINEL_BLOCK = 0
"""Block id that padded rows and unused block-table entries point to."""

STORE, LOAD = 0, 1
"""Directions in `transfers`: device block to tier slot, tier slot to device block."""

PUT, GET = 0, 1
"""Directions in `store_moves`: tier slot to the KV store, KV store to tier slot."""


class StepPlan(Protocol):
    """One step's work, as flat arrays."""

    @property
    def step_id(self) -> int:
        """Number of the step, for `commit`."""

    @property
    def num_rows(self) -> int:
        """R: requests that take part."""

    @property
    def num_decode_rows(self) -> int:
        """Rows that decode; they come first."""

    @property
    def num_tokens(self) -> int:
        """T: query tokens of all rows."""

    @property
    def request_ids(self) -> NDArray[np.int64]:
        """(R,) engine request ids."""

    @property
    def slots(self) -> NDArray[np.int32]:
        """(R,) persistent slot of each row's request, in [0, max_running)."""

    @property
    def query_start(self) -> NDArray[np.int32]:
        """(R + 1,) row r owns query tokens [query_start[r], query_start[r + 1])."""

    @property
    def context_tokens(self) -> NDArray[np.int32]:
        """(R,) tokens of the request already in the cache: its first query position."""

    @property
    def output_index(self) -> NDArray[np.int32]:
        """(R,) index of the output token that this row samples; -1: none (more prefill)."""

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """(T,) query tokens; TOKEN_FROM_DEVICE where the value is still on the device."""

    @property
    def admitted(self) -> NDArray[np.int32]:
        """(A, 2) (row, slot) of requests whose slot starts with this step: reset the slot first."""

    @property
    def block_updates(self) -> NDArray[np.int32]:
        """(U, 4) (slot, group, index, block_id): block-table writes, applied before the step."""

    @property
    def copies(self) -> NDArray[np.int32]:
        """(C, 4) (group, source block, target block, num_tokens): before the step's writes."""

    @property
    def state_rows(self) -> NDArray[np.int32]:
        """(R, S, 1 + W) [read, writes] block ids of each row in each state group, in group order.

        Read -1: zeros (a fresh sequence). (R, 0, 2) where the model has no state group. The first
        write is the state before the row's drafts. A group with rows per position gets one more
        for each draft, -1 where the row has fewer than W - 1; one that replays has W = 1, and the
        next row reads the accepted drafts again: its query starts earlier.
        """

    @property
    def num_drafts(self) -> NDArray[np.int32]:
        """(R,) how many of the row's query tokens, the last ones, are drafts."""

    @property
    def transfers(self) -> NDArray[np.int32]:
        """(X, 6) (transfer id, STORE or LOAD, group, device block, tier slot, layer range).

        Layer range -1 is all layers. Stores run first, in stream order before the step's writes;
        loads run beside the step. Each is acknowledged by `notify`. A plan may have no rows and
        only these.
        """

    @property
    def store_moves(self) -> NDArray[np.int32]:
        """(Y, 4) (transfer id, PUT or GET, group, tier slot): acknowledged by `notify`."""

    @property
    def store_keys(self) -> NDArray[np.uint8]:
        """(Y, 16) key of each store move's record."""

    @property
    def store_tokens(self) -> NDArray[np.int32]:
        """(Y, block_tokens) tokens of each record's block, -1 behind the last; its tag."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one executed step produced, row for row with its plan.

    Args:
        step_id: of the plan.
        tokens: (R,) int32 host; sampled token, -1 for rows that sampled none. In a step with drafts
            (R, W): the first accepted[r] + 1 of a row are its new tokens, what follows is -1.
        accepted: (R,) int32 host; how many of the row's drafts were right. None: no row had any.
        failed: (R,) bool host or None; rows whose logits were NaN or Inf. They fail alone.
        logprobs: one entry per new token of rows that asked, None for other rows.
        prompt_logprobs: (row, logprobs of the prompt tokens this chunk scored) for rows that asked.
        reasons: of failed rows that failed for another reason: row -> text for the client.
        embeddings: (row, (D,) float32 host) for rows that asked: the hidden state after the final
            norm, of the last token of their prompt.
    """

    step_id: int
    tokens: NDArray[np.int32]
    accepted: NDArray[np.int32] | None = None
    failed: NDArray[np.bool_] | None = None
    logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None = None
    prompt_logprobs: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...] = ()
    reasons: Mapping[int, str] | None = None
    embeddings: tuple[tuple[int, NDArray[np.float32]], ...] = ()
