"""Decode steps replayed as device graphs: one launch in place of some hundred.

A graph is captured for each size at start-up: inputs, forward, logits; and beside it the sampling
of rows that ask for nothing special, their tokens' way into the next step, and the results. What a
step changes is uploaded into memory that the graphs read (`decode_buffers.py`). A size that cannot
be captured is launched as if there were no graphs. Legend: R rows of a size, S slots, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.attention import AttentionBatch, DecodeRows
from tokenspeed.contracts.model import ForwardContext
from tokenspeed.executor.decode_buffers import DecodeBuffers
from tokenspeed.executor.device_tables import DeviceTables
from tokenspeed.executor.shared_prefixes import SharedRows
from tokenspeed.log import LOGGER
from tokenspeed.sampling.slots import DeviceParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from tokenspeed.contracts.device import DeviceGraph
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.sampler import Sampler
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.batch import StepBatcher, TabledGroup
    from tokenspeed.executor.decode_buffers import DecodeStep
    from tokenspeed.sampling.slots import SlotParameters

    Capture = Callable[[Callable[[], None]], DeviceGraph]
    Upload = Callable[..., tuple[torch.Tensor, ...]]
    Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """How graphs are made; kernels and the device's capture are bound already.

    Args:
        sizes: rows of the steps that are captured, smallest first.
        max_bytes: that all graphs may keep beside their buffers.
        capture: of the DeviceRuntime.
        prepare, patch: kernels of `step.prepare` and `step.patch_tables`.
        samples: the sampler may be captured; otherwise it is called on a graph's logits.
        shares: beginnings that rows share are looked for. Read once, they are summed in another
            order: off where a row's bits must not depend on the rows beside it.
    """

    sizes: tuple[int, ...]
    max_bytes: int
    capture: Capture
    prepare: Callable[..., None]
    patch: Callable[..., None]
    samples: bool = True
    shares: bool = True


@dataclass(slots=True)
class GraphCounts:
    """What became of graphs.

    Args:
        captured: sizes that have one, or those of all their pieces.
        num_bytes: that they keep, with the memory at the ends of pieces.
        failed: size -> why it has none.
        replayed: steps.
    """

    captured: tuple[int, ...] = ()
    num_bytes: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class _Size:
    """What is replayed for steps of R rows.

    Args:
        metadata: group index -> what the group's backend planned.
        forward: from the uploaded rows to logits.
        greedy, drawn: from logits to results; None: the sampler is called.
    """

    step: DecodeStep
    metadata: Mapping[int, object]
    forward: DeviceGraph
    greedy: DeviceGraph | None = None
    drawn: DeviceGraph | None = None

    @property
    def num_bytes(self) -> int:
        graphs = (self.forward, self.greedy, self.drawn)
        return sum(graph.num_bytes for graph in graphs if graph is not None)


class DecodeGraphs:
    """The graphs of one rank.

    Args:
        batcher: its tables are followed on the device.
        max_running: slots; `last_tokens_S` has one more, for padded rows.
        upload: brings arrays to the device.
    """

    def __init__(
        self,
        model: CausalLM,
        batcher: StepBatcher,
        sampler: Sampler,
        settings: GraphSettings,
        *,
        last_tokens_S: torch.Tensor,
        max_running: int,
        block_tokens: int,
        vocab_size: int,
        upload: Upload,
    ) -> None:
        device = last_tokens_S.device
        self._model = model
        self._batcher = batcher
        self._sampler = sampler
        self._settings = settings
        self._last_tokens_S = last_tokens_S
        self._vocab_size = vocab_size
        self._block_tokens = block_tokens
        self._spare_slot = max_running
        self._upload = upload
        most = settings.sizes[-1]
        self._buffers = DecodeBuffers(
            most,
            spare_slot=max_running,
            num_state_groups=batcher.num_state_groups,
            device=device,
        )
        groups = [(group.index, group.tables) for group in batcher.tabled]
        self._tables = DeviceTables(groups, patch=settings.patch, upload=upload, device=device)
        self._shared = {
            group.index: SharedRows(
                group.tables,
                group=group.index,
                block_tokens=block_tokens,
                max_rows=most,
                upload=upload,
                device=device,
            )
            for group in batcher.tabled
            if settings.shares and not group.layout.group.window
        }
        self._refreshed = [group for group in batcher.tabled if hasattr(group.backend, "refresh")]
        self._parameters = DeviceParameters(max_running + 1, device)
        self._logits_RV: torch.Tensor | None = None
        self._sizes: dict[int, _Size] = {}
        self._size_of: list[int] = [0] * (most + 1)
        self.counts = GraphCounts()

    @torch.inference_mode()
    def capture(self, progress: Progress | None = None) -> None:
        """Capture all sizes, the largest first: the others fit into memory that it has used.

        Args:
            progress: called with (sizes done, sizes in all).
        """
        sizes = self._settings.sizes
        for done, num_rows in enumerate(reversed(sizes)):
            if progress is not None:
                progress(done, len(sizes))
            try:
                self._add(num_rows, self._capture(num_rows))
            except Exception as error:  # the device computes as before: launched without a graph
                self.counts.failed[num_rows] = str(error) or repr(error)
        if progress is not None:
            progress(len(sizes), len(sizes))
        self.counts.captured = tuple(sorted(self._sizes))
        self._index_sizes()
        self._warn()

    def admit(self, slot: int, parameters: SlotParameters) -> None:
        """Learn what a slot's tokens are drawn with, before its first step that is sampled."""
        self._parameters.admit(slot, parameters)

    def follow(self, plan: StepPlan) -> None:
        """Apply a plan's changes; of every plan, right after the batcher did."""
        self._tables.patch(plan.block_updates)
        for shared in self._shared.values():
            shared.follow(plan)

    def serves(self, plan: StepPlan) -> bool:
        """Say whether a step is one token a row, all of them sampled, and of a captured size."""
        num_rows = plan.num_rows
        is_decode = num_rows == plan.num_decode_rows == plan.num_tokens
        if not is_decode or not 0 < num_rows < len(self._size_of) or not self._size_of[num_rows]:
            return False
        return bool((plan.output_index >= 0).all()) and not plan.num_drafts.any()

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Replay a step that is served up to its logits: (num_rows, V), until the next step."""
        size = self._sizes[self._size_of[plan.num_rows]]
        padded = len(size.step.rows_RF)
        (rows_RF,) = self._upload(self._buffers.pack(plan, padded))
        size.step.rows_RF.copy_(rows_RF)
        lengths_R = plan.context_tokens + 1
        for shared in self._shared.values():
            shared.update(plan.slots, lengths_R, padded)
        for group in self._refreshed:
            batch = self._padded_batch(group, plan, size.step)
            group.backend.refresh(size.metadata[group.index], batch)  # type: ignore[attr-defined]
        size.forward.replay()
        self.counts.replayed += 1
        assert self._logits_RV is not None, "nothing was captured"
        return self._logits_RV[: plan.num_rows]

    def sample(self, plan: StepPlan, *, is_drawn: bool) -> torch.Tensor | None:
        """Sample the logits of `forward`, and leave the tokens to the next step.

        Args:
            is_drawn: some row is not greedy.
        Returns:
            (num_rows,) int64 device, -1 where a row failed; None: such sampling was not captured.
        """
        size = self._sizes[self._size_of[plan.num_rows]]
        graph = size.drawn if is_drawn else size.greedy
        if graph is None:
            return None
        graph.replay()
        return size.step.results_R[: plan.num_rows].clone()  # the next step writes there again

    def _capture(self, num_rows: int) -> _Size:
        step = self._buffers.of(num_rows)
        metadata = {
            group.index: group.backend.plan_decode(self._decode_rows(group, step))  # type: ignore[attr-defined]
            for group in self._batcher.tabled
        }
        context = self._context(step, metadata)
        if self._logits_RV is None:
            self._logits_RV = torch.empty_like(self._run(step, context))
        logits_RV = self._logits_RV[:num_rows]
        capture = self._settings.capture
        forward = capture(lambda: _put(logits_RV, self._run(step, context)))
        if not self._settings.samples:
            return _Size(step, metadata, forward)
        greedy, drawn = (
            capture(lambda is_drawn=is_drawn: self._sample(step, logits_RV, is_drawn=is_drawn))  # type: ignore[misc]
            for is_drawn in (False, True)
        )
        return _Size(step, metadata, forward, greedy, drawn)

    def _run(self, step: DecodeStep, context: ForwardContext) -> torch.Tensor:
        self._settings.prepare(
            step.rows_RF,
            self._last_tokens_S,
            step.token_ids_R,
            step.positions_R,
            step.lengths_R,
            step.slots_R,
            step.further_GR,
            vocab_size=self._vocab_size,
        )
        hidden_RD = self._model.forward(step.token_ids_R, context)
        return self._model.compute_logits(hidden_RD)

    def _sample(self, step: DecodeStep, logits_RV: torch.Tensor, *, is_drawn: bool) -> None:
        batch = self._parameters.batch(step.slots_R, step.output_index_R, is_drawn=is_drawn)
        sample = self._sampler.sample(logits_RV, batch)
        tokens_R = sample.tokens_R.clamp(0, self._vocab_size - 1)
        self._last_tokens_S.index_copy_(0, step.slots_R.long(), tokens_R)
        step.results_R.copy_(tokens_R.masked_fill(sample.failed_R, -1))

    def _decode_rows(self, group: TabledGroup, step: DecodeStep) -> DecodeRows:
        shared = self._shared.get(group.index)
        return DecodeRows(
            slots_R=step.slots_R,
            lengths_R=step.lengths_R,
            positions_R=step.positions_R,
            tables=self._tables.of(group.index),
            entry_tokens=group.page_tokens or self._block_tokens,
            window=group.layout.group.window,
            shared=None if shared is None else shared.of(len(step.rows_RF)),
        )

    def _context(self, step: DecodeStep, metadata: Mapping[int, object]) -> ForwardContext:
        num_rows = len(step.rows_RF)
        states = zip(self._batcher.state_layers, step.states, strict=True)
        return ForwardContext(
            positions_T=step.positions_R,
            kv=self._batcher.views,
            attention_metadata={
                group.layout.name: metadata[group.index] for group in self._batcher.tabled
            },
            output_index_R=np.zeros(num_rows, dtype=np.int32),
            num_drafts_R=np.zeros(num_rows, dtype=np.int32),
            query_start=np.arange(num_rows + 1, dtype=np.int32),
            state_rows={layer: rows for layers, rows in states for layer in layers},
        )

    def _padded_batch(self, group: TabledGroup, plan: StepPlan, step: DecodeStep) -> AttentionBatch:
        """Return the rows of a step as its host tables show them, with the padded ones."""
        num_rows, lengths = len(step.rows_RF), plan.context_tokens + 1
        num_blocks = -(-int(lengths.max()) // self._block_tokens)
        context_tokens = np.zeros(num_rows, dtype=np.int32)
        context_tokens[: plan.num_rows] = plan.context_tokens
        spare = num_rows - plan.num_rows
        blocks = group.tables.block_rows(plan.slots, num_blocks)
        pages = group.tables.page_rows(plan.slots, num_blocks)
        return AttentionBatch(
            query_start=np.arange(num_rows + 1, dtype=np.int32),
            context_tokens=context_tokens,
            num_decode_rows=num_rows,
            block_tables=np.pad(blocks, ((0, spare), (0, 0))),
            block_tokens=self._block_tokens,
            positions_T=step.positions_R,
            window=group.layout.group.window,
            page_tables=None if pages is None else _with_sentinel(pages, spare, group),
            page_tokens=group.page_tokens,
        )

    def _add(self, num_rows: int, size: _Size) -> None:
        num_bytes = self.counts.num_bytes + size.num_bytes
        if num_bytes > self._settings.max_bytes:
            self.counts.failed[num_rows] = (
                f"its graph brings their memory to {num_bytes / 2**20:.1f} MiB; raise "
                "graph_memory_mib"
            )
            return
        self.counts.num_bytes = num_bytes
        self._sizes[num_rows] = size

    def _index_sizes(self) -> None:
        """Note the captured size of each number of rows; 0: it falls to one that has none."""
        smaller = 0
        for size in self._settings.sizes:
            for num_rows in range(smaller + 1, size + 1):
                self._size_of[num_rows] = size if size in self._sizes else 0
            smaller = size

    def _warn(self) -> None:
        """Say once which sizes have no graph, and why."""
        if self.counts.failed:
            sizes = ", ".join(map(str, sorted(self.counts.failed)))
            causes = "; ".join(dict.fromkeys(self.counts.failed.values()))
            LOGGER.warning(
                "decode steps padded to %s rows are launched without a graph, which is slower: %s",
                sizes,
                causes,
            )


def _put(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)


def _with_sentinel(
    pages: np.ndarray[Any, np.dtype[np.int32]], spare: int, group: TabledGroup
) -> np.ndarray[Any, np.dtype[np.int32]]:
    lines = group.tables.sentinel_lines(spare)
    return np.concatenate([pages, lines[:, : pages.shape[1]]])
