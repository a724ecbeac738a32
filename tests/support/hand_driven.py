"""A model driven step by step without scheduler or arena: caches of its own, full of NaN.

Whatever a step should not read is NaN or out of range: blocks not written yet, state rows of
nobody, table entries before a window. Each step writes a state to another row than it read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from tests.support.moe_backends import bound_moe_groups

from tokenspeed.contracts.attention import AttentionBatch, KVView, StateView
from tokenspeed.contracts.model import ForwardContext, ModelContext, StateRows, expert_groups_of
from tokenspeed.kernels.registry import KernelRegistry
from tokenspeed.models.registry import resolve_architecture
from tokenspeed.placement.local import local_cache_groups, local_expert_group
from tokenspeed.plugins import load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.placement.shards import RankShards
    from tokenspeed.plugins import Registry

BLOCK_TOKENS = 16
NUM_BLOCKS = 64
NO_BLOCK = 10**6
CPU = torch.device("cpu")


@dataclass(slots=True)
class Stream:
    """One sequence: tokens in the cache, its blocks in order, and its two state rows."""

    num_tokens: int
    blocks: list[int]
    rows: tuple[int, int]
    read_row: int = -1


@dataclass(slots=True)
class HandDriven:
    """A checkpoint on the reference plugin, float32."""

    model: Any
    groups: tuple[CacheGroup, ...]
    attention: dict[str, Any]
    views: list[KVView | StateView]
    free: list[int] = field(default_factory=lambda: list(range(NUM_BLOCKS - 1, 0, -1)))

    def start(self) -> Stream:
        """Begin a sequence."""
        return Stream(0, [], (self.free.pop(), self.free.pop()))

    def step(self, rows: Sequence[tuple[Stream, Sequence[int]]]) -> list[torch.Tensor]:
        """Feed tokens to streams, single tokens first; return their logits, (tokens, V) each."""
        lengths = [len(tokens) for _, tokens in rows]
        streams = [stream for stream, _ in rows]
        assert lengths == sorted(lengths, key=lambda length: length != 1)
        for stream, length in zip(streams, lengths, strict=True):
            while len(stream.blocks) * BLOCK_TOKENS < stream.num_tokens + length:
                stream.blocks.append(self.free.pop())
        context = self._context(streams, lengths)
        fed = [token for _, tokens in rows for token in tokens]
        token_ids = torch.tensor(fed, dtype=torch.int64)
        with torch.inference_mode():
            logits = self.model.compute_logits(self.model.forward(token_ids, context))
        for stream, length in zip(streams, lengths, strict=True):
            stream.num_tokens += length
            stream.read_row = _other(stream)
        return list(logits.split(lengths))

    def decode(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, *, chunk_tokens: int
    ) -> list[list[int]]:
        """Decode all prompts greedily and together, each a chunk later than the one before."""
        streams = [self.start() for _ in prompts]
        todo = [list(prompt) for prompt in prompts]
        outputs: list[list[int]] = [[] for _ in prompts]
        step = 0
        while any(todo):
            active = [index for index in range(min(step + 1, len(todo))) if todo[index]]
            active.sort(key=lambda index: len(todo[index][:chunk_tokens]) != 1)
            fed = [(streams[index], todo[index][:chunk_tokens]) for index in active]
            for index, logits in zip(active, self.step(fed), strict=True):
                del todo[index][:chunk_tokens]
                if not todo[index]:
                    outputs[index].append(int(logits[-1].argmax()))
                    todo[index] = outputs[index][-1:] if len(outputs[index]) < num_tokens else []
            step += 1
        return outputs

    def _context(self, streams: Sequence[Stream], lengths: Sequence[int]) -> ForwardContext:
        query_start = np.cumsum([0, *lengths], dtype=np.int32)
        positions = np.concatenate(
            [
                np.arange(0),
                *(
                    np.arange(stream.num_tokens, stream.num_tokens + length)
                    for stream, length in zip(streams, lengths, strict=True)
                ),
            ]
        )
        positions_T = torch.from_numpy(positions)
        rows = StateRows(
            torch.tensor([stream.read_row for stream in streams], dtype=torch.int64),
            torch.tensor([_other(stream) for stream in streams], dtype=torch.int64),
        )
        return ForwardContext(
            positions_T=positions_T,
            kv=self.views,
            attention_metadata={
                group.name: self.attention[group.name].plan(
                    AttentionBatch(
                        query_start=query_start,
                        context_tokens=np.array([s.num_tokens for s in streams], np.int32),
                        num_decode_rows=sum(length == 1 for length in lengths),
                        block_tables=tables_of(streams, group.window),
                        block_tokens=BLOCK_TOKENS,
                        positions_T=positions_T,
                        window=group.window,
                    )
                )
                for group in self.groups
                if group.kind != "state"
            },
            output_index_R=None,
            num_drafts_R=None,
            query_start=query_start,
            state_rows={
                layer: rows
                for group in self.groups
                if group.kind == "state"
                for layer in group.layers
            },
        )


def hand_driven(path: Path, *, objective: str = "latency") -> HandDriven:
    """Load a checkpoint."""
    registry = load_plugins(("reference",), role="engine")
    formats: list[Any] = [item.offer.load() for item in registry.offers("weight_format")]  # type: ignore[call-arg]
    source = next(item for item in formats if item.matches(path)).open(path)
    config = source.config()

    def weights(model: Any) -> Iterator[tuple[str, LinearWeight]]:
        tensors: Iterator[tuple[str, LinearWeight]] = source.tensors(
            torch.float32, keep_packed=False
        )
        return tensors

    driven = drive(resolve_architecture(registry, config), config, weights, objective=objective)
    source.close()
    return driven


Weights = Callable[[Any], "Iterator[tuple[str, LinearWeight]]"]
"""Yields a checkpoint for a model."""


class Built(NamedTuple):
    """A model without weights, and what it runs over."""

    model: Any
    groups: tuple[CacheGroup, ...]
    attention: dict[str, Any]
    views: list[Any]
    kernels: Any


def drive(
    model_class: Any,
    config: Mapping[str, Any],
    weights: Weights,
    *,
    objective: str = "latency",
) -> HandDriven:
    """Build a model, and fill it with what `weights` yields for it."""
    built = build(model_class, config, objective=objective)
    built.model.load_weights(weights(built.model))
    return HandDriven(*built[:4])


def build(
    model_class: Any,
    config: Mapping[str, Any],
    *,
    shards: RankShards | None = None,
    objective: str = "latency",
) -> Built:
    """Build a model; with shards, one rank's part of it."""
    registry = plugins()
    groups = model_class.cache_groups(config)
    num_heads, moe_groups = config["num_attention_heads"], expert_groups_of(model_class, config)
    if shards is not None:
        groups = local_cache_groups(groups, shards)
        num_heads //= shards.mesh.degrees.tp
        moe_groups = tuple(local_expert_group(group, shards) for group in moe_groups)
    traits = {"device": "cpu", "dtype": "float32"}
    binder = KernelRegistry(registry).binder(traits, objective=objective)
    attention = {
        group.name: registry.offers("attention")[0].offer.load(
            num_heads=num_heads,
            num_kv_heads=group.fields[0].shape[0],
            head_dim=group.fields[0].shape[1],
            **({"v_head_dim": group.value_dim} if group.value_dim else {}),
            block_tokens=BLOCK_TOKENS,
            dtype=torch.float32,
            device=CPU,
        )
        for group in groups
        if group.kind != "state"
    }
    moe = bound_moe_groups(registry, moe_groups, objective=objective)
    context = ModelContext(binder, attention, torch.float32, CPU, 512, moe, shards=shards)
    views = dict(view for group in groups for view in _views(group))
    listed = [views.get(layer) for layer in range(1 + max(views))]
    return Built(model_class(config, context), groups, attention, listed, binder)


@cache
def plugins() -> Registry:
    return load_plugins(("reference",), role="engine")


def _views(group: CacheGroup) -> Iterator[tuple[int, KVView | StateView]]:
    for layer in group.layers:
        if group.kind == "state":
            shapes = {item.name: (NUM_BLOCKS, *item.shape) for item in group.fields}
            states = {name: torch.full(shape, torch.nan) for name, shape in shapes.items()}
            yield layer, StateView(states)
        else:
            heads, dim = group.fields[0].shape
            keys, values = (
                torch.full((NUM_BLOCKS, heads, BLOCK_TOKENS, dim), torch.nan) for _ in range(2)
            )
            value_dim = group.value_dim
            yield layer, KVView(keys, keys[..., :value_dim] if value_dim else values)


def tables_of(streams: Sequence[Stream], window: int) -> np.ndarray:
    width = max((len(s.blocks) for s in streams), default=0)
    tables = np.full((len(streams), width), NO_BLOCK, np.int32)
    for row, stream in enumerate(streams):
        before = max(0, stream.num_tokens + 1 - window) // BLOCK_TOKENS if window else 0
        tables[row, before : len(stream.blocks)] = stream.blocks[before:]
    return tables


def _other(stream: Stream) -> int:
    """Return the row of the two that the next step does not read."""
    return stream.rows[stream.read_row == stream.rows[0]]
