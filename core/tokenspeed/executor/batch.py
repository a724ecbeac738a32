"""From a step plan to the model's inputs: persistent block tables, patched by what changed.

Owns the host tables of every cache group that has them (`tables.py`); state groups have rows, which
come whole with each plan. Knows no request beyond its slot, and no sampling.
Legend: R rows, T query tokens, M blocks per row, S state groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.contracts.attention import AttentionBatch
from tokenspeed.contracts.model import ForwardContext
from tokenspeed.contracts.step import TOKEN_FROM_DEVICE
from tokenspeed.executor.attended import attended_rows, piece_of
from tokenspeed.executor.poison import poison_fresh
from tokenspeed.executor.stages import StatePieces
from tokenspeed.executor.tables import GroupTables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.model import StateRows
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.attended import AttendedRows
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.kv import Arena, GroupLayout


@dataclass(frozen=True, slots=True)
class TabledGroup:
    """A group of the plan that has block tables."""

    index: int
    layout: GroupLayout
    backend: AttentionBackend
    tables: GroupTables
    page_tokens: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model's forward takes: (T,) int64 ids on the device, and their context."""

    token_ids: torch.Tensor
    context: ForwardContext


class StepBatcher:
    """Turns each plan into inputs.

    Args:
        arena: of the cache; its views are made once.
        attention: cache group name -> backend of every group that is not of kind "state".
        vocab_size: token ids are clamped to [0, vocab_size).
        poison: fill what a step is about to write for the first time with NaN before it, so that
            reading a cell of a freed block shows in the answers; for tests.
        own_queries: of a step's number of query tokens, the [start, stop) that this rank attends
            for; None: all.
    """

    def __init__(
        self,
        arena: Arena,
        attention: Mapping[str, AttentionBackend],
        *,
        max_running: int,
        max_context_tokens: int,
        block_tokens: int,
        vocab_size: int,
        link: HostLink,
        poison: bool = False,
        own_queries: Callable[[int], tuple[int, int]] | None = None,
    ) -> None:
        self._arena = arena
        self._own_queries = own_queries
        views = arena.layer_views()  # a pipeline stage has some layers only
        self._views: list[Any] = [views.get(layer) for layer in range(1 + max(views))]
        self._poison = poison
        self.block_tokens = block_tokens
        self._max_token_id = vocab_size - 1
        self._link = link
        blocks_per_row = -(-max_context_tokens // block_tokens)
        self.tabled: list[TabledGroup] = []
        """The groups that have tables."""
        self._states = []
        for index, group in enumerate(arena.layout.groups):
            if group.kind == "state":
                self._states.append((group.layers, group.group.speculation))
                continue
            pages = arena.layout.page_ids(index)
            tables = GroupTables(max_running, blocks_per_row, pages)
            page_tokens = pages.page_tokens if pages else 0
            backend = attention[group.name]
            self.tabled.append(TabledGroup(index, group, backend, tables, page_tokens))

    @property
    def views(self) -> list[Any]:
        """What a ForwardContext says of the cache, by layer."""
        return self._views

    @property
    def state_layers(self) -> list[tuple[int, ...]]:
        """The layers of each state group, in the plan's order."""
        return [layers for layers, _ in self._states]

    @property
    def num_state_groups(self) -> int:
        """Cache groups whose rows come with each plan."""
        return len(self._states)

    def apply(self, plan: StepPlan) -> None:
        """Apply the plan's changes to tables and arena; one without rows has such changes too."""
        self._patch_tables(plan)
        if self._poison:
            poison_fresh(self._arena, plan)
        for group, source, target, num_tokens in plan.copies.tolist():
            self._arena.copy_tokens(group, source, target, num_tokens)

    def build(self, plan: StepPlan, last_tokens_S: torch.Tensor) -> StepInputs:
        """Return the inputs of a step whose plan was applied.

        Args:
            last_tokens_S: (max_running,) int64 device; last sampled token of each slot.
        """
        on_device = np.flatnonzero(plan.token_ids == TOKEN_FROM_DEVICE)
        rows_of_them = np.searchsorted(plan.query_start, on_device, side="right") - 1
        positions_T, token_ids_T, places, slots, rows_SWR = self._link.upload(
            _positions(plan),
            np.clip(plan.token_ids, 0, self._max_token_id).astype(np.int64),
            on_device,
            plan.slots[rows_of_them].astype(np.int64),
            plan.state_rows.transpose(1, 2, 0).astype(np.int64, order="C"),
        )
        if len(on_device):  # these never leave it
            token_ids_T.index_copy_(0, places, last_tokens_S.index_select(0, slots))
        rows = attended_rows(plan)
        context = ForwardContext(
            positions_T=positions_T,
            kv=self._views,
            attention_metadata=self._plan_attention(rows, positions_T),
            output_index_R=plan.output_index,
            num_drafts_R=plan.num_drafts,
            query_start=plan.query_start,
            state_rows=self._state_rows(plan, rows_SWR),
            query_metadata=self._plan_queries(rows, positions_T),
        )
        return StepInputs(token_ids_T, context)

    def _patch_tables(self, plan: StepPlan) -> None:
        # A new owner's slot is cleared before its first entries are written.
        for _, slot in plan.admitted.tolist():
            for group in self.tabled:
                group.tables.clear(slot)
        updates = plan.block_updates
        if len(updates) == 0:
            return
        for group in self.tabled:
            group.tables.patch(*updates[updates[:, 1] == group.index][:, (0, 2, 3)].T)

    def _state_rows(self, plan: StepPlan, rows_SWR: torch.Tensor) -> dict[int, StateRows]:
        """Return by layer where its state is read and written."""
        if not self._states:
            return {}
        pieces = StatePieces(plan, self._link)
        by_layer = {}
        for place, (layers, speculation) in enumerate(self._states):
            state_rows = pieces.rows_of(rows_SWR[place], is_replayed=speculation == "replay")
            by_layer.update(dict.fromkeys(layers, state_rows))
        return by_layer

    def _plan_queries(self, rows: AttendedRows, positions_T: torch.Tensor) -> Mapping[str, object]:
        """Plan the attention of this rank's share of the queries; {}: it attends for all."""
        if self._own_queries is None:
            return {}
        start, stop = self._own_queries(len(positions_T))
        return self._plan_attention(piece_of(rows, start, stop), positions_T[start:stop])

    def _plan_attention(
        self, rows: AttendedRows, positions_T: torch.Tensor
    ) -> Mapping[str, object]:
        lengths = rows.context_tokens + np.diff(rows.query_start)
        num_blocks = -(-int(lengths.max(initial=0)) // self.block_tokens)
        metadata = {}
        for group in self.tabled:
            batch = AttentionBatch(
                query_start=rows.query_start,
                context_tokens=rows.context_tokens,
                num_decode_rows=rows.num_decode_rows,
                block_tables=group.tables.block_rows(rows.slots, num_blocks),
                block_tokens=self.block_tokens,
                positions_T=positions_T,
                window=group.layout.group.window,
                page_tables=group.tables.page_rows(rows.slots, num_blocks),
                page_tokens=group.page_tokens,
            )
            metadata[group.layout.name] = group.backend.plan(batch)
        return metadata


def _positions(plan: StepPlan) -> NDArray[np.int64]:
    """Return (T,) position of each query token in its sequence."""
    context_tokens = plan.context_tokens.astype(np.int64)
    if plan.num_decode_rows == plan.num_rows == plan.num_tokens:
        return context_tokens
    starts = plan.query_start[:-1]
    shift = np.repeat(context_tokens - starts, np.diff(plan.query_start))
    return np.arange(plan.num_tokens, dtype=np.int64) + shift
