"""Backends of attention and experts as a watched engine runs them: they keep what they are given.

The plainest backend that passes is watched: it can be relied on, and what it is asked for is what
every other would be asked for. Called by the thread that runs steps.
Legend: T tokens, K kv heads, H head dim, E entries (used blocks of all rows), B tokens of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.contracts.attention import KVView
from tokenspeed.contracts.moe import ExpertWeights
from tokenspeed.kernels.spying import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.attention import AttentionBackend, AttentionBatch
    from tokenspeed.contracts.moe import MoEBackend, RoutingMoEBackend
    from tokenspeed.kernels.spying import Watch

    Route = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(slots=True)
class AttentionSample:
    """Steps of one shape: what the first layer of the first was given, before it was written.

    Args:
        batch: its arrays are copies.
        calls: phase -> number of such steps.
        blocks: keys and values of the entries, (E, K, B, H) each.
        stored: k_TKH and v_TKH of the step.
        asked: q_TNH and the options of `attend`.
    """

    batch: AttentionBatch
    calls: dict[str, int] = field(default_factory=dict)
    blocks: tuple[torch.Tensor, torch.Tensor] | None = None
    stored: tuple[torch.Tensor, torch.Tensor] | None = None
    asked: tuple[torch.Tensor, dict[str, Any]] | None = None


class WatchedAttention:
    """An attention backend that keeps a sample of each shape of step.

    Args:
        options: what the backend was loaded with; the others are loaded so too.
    """

    def __init__(self, backend: AttentionBackend, options: Mapping[str, Any], watch: Watch) -> None:
        self.options = dict(options)
        self.samples: dict[str, AttentionSample] = {}
        self._backend, self._watch = backend, watch
        self._open: AttentionSample | None = None

    def plan(self, batch: AttentionBatch) -> object:
        """Plan, and open a sample where the shape is new."""
        self._open = None
        if self._watch.phase:
            shape = _batch_shape(batch)
            if shape not in self.samples:
                self.samples[shape] = self._open = AttentionSample(_copied_batch(batch))
            _count(self.samples[shape].calls, self._watch.phase)
        return self._backend.plan(batch)

    def write(self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: object) -> None:
        """Keep what the blocks had, then write."""
        if self._open is not None:
            batch = self._open.batch
            self._open.blocks = (taken_blocks(kv.k, batch), taken_blocks(kv.v, batch))
            self._open.stored = (k_TKH.clone(), v_TKH.clone())
        self._backend.write(k_TKH, v_TKH, kv, metadata)

    def attend(
        self, q_TNH: torch.Tensor, kv: KVView, metadata: object, **options: Any
    ) -> torch.Tensor:
        """Attend; the sample is whole after the first layer."""
        if self._open is not None:
            self._open.asked = (q_TNH.clone(), dict(options))
            self._open = None
        return self._backend.attend(q_TNH, kv, metadata, **options)


def entries(batch: AttentionBatch) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return (E,) row and (E,) index in the row's table of every block that a step may touch."""
    rows: list[int] = []
    indices: list[int] = []
    contexts = batch.context_tokens.tolist()
    ends = (batch.context_tokens + np.diff(batch.query_start)).tolist()
    for row, (context, end) in enumerate(zip(contexts, ends, strict=True)):
        first_token = max(0, context - batch.window + 1) if batch.window else 0
        blocks = range(first_token // batch.block_tokens, -(-end // batch.block_tokens))
        rows += [row] * len(blocks)
        indices += blocks
    return np.array(rows, np.int32), np.array(indices, np.int32)


def taken_blocks(view: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
    """Copy (E, K, B, H) out of a view in whole blocks, or in pages."""
    taken = view[_ids(view, batch)]
    return taken.transpose(1, 2).flatten(2, 3) if taken.dim() > view.dim() else taken


def put_blocks(view: torch.Tensor, batch: AttentionBatch, blocks_EKBH: torch.Tensor) -> None:
    """Copy (E, K, B, H) into a view in whole blocks, or in pages."""
    ids = _ids(view, batch)
    if ids.dim() > 1:  # (E, pages, K, tokens of a page, H)
        count, heads, _, width = blocks_EKBH.shape
        pages = blocks_EKBH.reshape(count, heads, -1, batch.page_tokens, width)
        blocks_EKBH = pages.transpose(1, 2)
    view[ids] = blocks_EKBH


def _ids(view: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
    """Return the entries' block ids (E,), or page ids (E, pages), on the view's device."""
    import torch

    rows, indices = entries(batch)
    ids = batch.block_tables[rows, indices]
    if batch.page_tables is not None and view.shape[-2] == batch.page_tokens:
        ids = batch.page_tables.reshape(*batch.block_tables.shape, -1)[rows, indices]
    return torch.from_numpy(ids.astype(np.int64)).to(view.device)


def _copied_batch(batch: AttentionBatch) -> AttentionBatch:
    pages = batch.page_tables
    return replace(
        batch,
        query_start=batch.query_start.copy(),
        context_tokens=batch.context_tokens.copy(),
        block_tables=batch.block_tables.copy(),
        positions_T=batch.positions_T.clone(),
        page_tables=None if pages is None else pages.copy(),
    )


def _batch_shape(batch: AttentionBatch) -> str:
    """Name a step: contexts count in blocks, so that a growing answer is one shape."""
    num_rows, num_tokens = len(batch.context_tokens), int(batch.query_start[-1])
    num_blocks = len(entries(batch)[0])
    return f"{batch.num_decode_rows} of {num_rows} rows, {num_tokens} tokens, {num_blocks} blocks"


@dataclass(slots=True)
class ExpertSample:
    """Calls of one shape: what the first was given, without the prepared layer.

    That is x_TD and the router's logits_TE; or x_TD, experts_TX and weights_TX where the layer
    chooses itself, because more than the logits decides.
    """

    arguments: tuple[torch.Tensor, ...]
    calls: dict[str, int] = field(default_factory=dict)


class WatchedExperts:
    """A MoE backend that keeps a sample of each shape, and the weights of the first layer.

    It offers to choose experts whatever it watches, so that backends which choose themselves can be
    compared, from the router's logits on, with those that are told.

    Args:
        options: what the backend was loaded with; the others are loaded so too.
        route: the bound kernel of `moe.route`.
    """

    fuses_routing = True

    def __init__(
        self, backend: MoEBackend, options: Mapping[str, Any], watch: Watch, route: Route
    ) -> None:
        self.options = dict(options)
        self.samples: dict[str, ExpertSample] = {}
        self.weights: ExpertWeights | None = None
        self.route = route
        self._backend, self._watch = backend, watch
        self._compute = from_logits(backend, self.options["group"].routing, route)

    def prepare(self, weights: ExpertWeights) -> object:
        """Prepare a layer; the weights of the first are kept as they came."""
        if self.weights is None:
            self.weights = copied_weights(weights)
        return self._backend.prepare(weights)

    def forward(
        self,
        x_TD: torch.Tensor,
        experts_TX: torch.Tensor,
        weights_TX: torch.Tensor,
        prepared: object,
    ) -> torch.Tensor:
        """Keep a sample of a call that has chosen already, then compute."""
        self._note(f"{x_TD.shape[0]} tokens, experts chosen", x_TD, experts_TX, weights_TX)
        return self._backend.forward(x_TD, experts_TX, weights_TX, prepared)

    def route_and_forward(
        self, x_TD: torch.Tensor, logits_TE: torch.Tensor, prepared: object
    ) -> torch.Tensor:
        """Keep a sample, then compute."""
        self._note(f"{x_TD.shape[0]} tokens", x_TD, logits_TE)
        return self._compute(x_TD, logits_TE, prepared)

    def _note(self, shape: str, *arguments: torch.Tensor) -> None:
        if self._watch.phase:
            if shape not in self.samples:
                self.samples[shape] = ExpertSample(copied(arguments))
            _count(self.samples[shape].calls, self._watch.phase)


def from_logits(backend: Any, routing: object, route: Route) -> Callable[..., torch.Tensor]:
    """Return (x_TD, logits_TE, prepared) -> (T, D), with the backend's own choice if it has one."""
    if backend.fuses_routing:
        fused: RoutingMoEBackend = backend
        return fused.route_and_forward

    def compute(x_TD: torch.Tensor, logits_TE: torch.Tensor, prepared: object) -> torch.Tensor:
        weights_TX, experts_TX = route(logits_TE, routing=routing)
        result: torch.Tensor = backend.forward(x_TD, experts_TX, weights_TX, prepared)
        return result

    return compute


def copied_weights(weights: ExpertWeights) -> ExpertWeights:
    """Copy a layer's experts: a backend owns those that it prepared."""
    gate_up_bias_EF, down_bias_ED = weights.gate_up_bias_EF, weights.down_bias_ED
    return ExpertWeights(
        weights.gate_up_EFD.clone(),
        weights.down_EDF.clone(),
        None if gate_up_bias_EF is None else gate_up_bias_EF.clone(),
        None if down_bias_ED is None else down_bias_ED.clone(),
    )


def _count(calls: dict[str, int], phase: str) -> None:
    calls[phase] = calls.get(phase, 0) + 1
