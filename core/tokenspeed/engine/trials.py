"""Trials of `--tune`: for each shape that a watched engine met, how a candidate is timed on it.

An operator's kernel is called with the arguments that were seen. An attention backend runs a step
of its cache group: `plan`, then `write` and `attend` in every layer, over a small arena that is
laid out as the backend demands and holds the same keys and values. A MoE backend computes one
layer from the router's logits; one that does not choose experts itself is timed with `moe.route`.
Where a layer's choice takes more than its logits, only what follows the choice is timed.
Legend: T tokens, N query heads, K kv heads, H head dim, D hidden, E experts.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.engine.watched import copied_weights, entries, from_logits, put_blocks
from tokenspeed.executor.tables import GroupTables
from tokenspeed.kernels.registry import load_kernel
from tokenspeed.kernels.spying import copied
from tokenspeed.kv import Arena

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.attention import AttentionBatch, KVView
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.watched import (
        AttentionSample,
        ExpertSample,
        WatchedAttention,
        WatchedExperts,
    )
    from tokenspeed.kernels.spying import Sample
    from tokenspeed.kv import ArenaLayout

    Solve = Callable[[Mapping[str, CacheDemand]], ArenaLayout]
    Wait = Callable[[], None]

MIN_REPEATS, MAX_REPEATS = 3, 20
ENOUGH_S = 0.05
"""Time spent on one candidate and shape, at least MIN_REPEATS calls."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One shape.

    Args:
        shape: its name in the file of times.
        calls: phase -> how often it came.
        seconds: times a candidate.
    """

    shape: str
    calls: Mapping[str, int]
    seconds: Callable[[RegisteredOffer[Any]], float]


def operator_trials(samples: Mapping[str, Sample], wait: Wait) -> Iterator[Trial]:
    """Yield a trial for each shape of an operator's calls."""
    for shape, sample in samples.items():
        yield Trial(shape, sample.calls, _kernel_timer(sample, wait))


def _kernel_timer(sample: Sample, wait: Wait) -> Callable[[RegisteredOffer[Any]], float]:
    return lambda offer: time_sample(load_kernel(offer), sample, wait)


def attention_trials(
    watched: WatchedAttention,
    group: str,
    traits: str,
    runtime: DeviceRuntime,
    solve: Solve,
) -> Iterator[Trial]:
    """Yield a trial for each shape of a cache group's steps.

    Args:
        traits: of the request, as text.
        solve: lays the model's cache out, as it would be with one more demand.
    """
    num_layers = len(next(item for item in solve({}).groups if item.name == group).layers)
    for rows, sample in watched.samples.items():
        if sample.asked is not None:
            shape = f"attention|{traits} heads={watched.options['num_heads']}|"
            yield Trial(
                f"{shape}{num_layers} layers, {rows}",
                sample.calls,
                _attention_timer(watched, sample, group, runtime, solve),
            )


def _attention_timer(
    watched: WatchedAttention,
    sample: AttentionSample,
    group: str,
    runtime: DeviceRuntime,
    solve: Solve,
) -> Callable[[RegisteredOffer[Any]], float]:
    def seconds(offer: RegisteredOffer[Any]) -> float:
        layout = solve({group: offer.offer.facts.get("cache", CacheDemand())})
        backend = offer.offer.load(**watched.options)
        step = attention_step(backend, sample, layout, group, runtime)
        return time_call(step, runtime.synchronize)

    return seconds


def attention_step(
    backend: Any,
    sample: AttentionSample,
    layout: ArenaLayout,
    group: str,
    runtime: DeviceRuntime,
) -> Callable[[], torch.Tensor]:
    """Lay a sample's blocks out for a backend; returns what runs the step in all layers.

    Its result is the last layer's.
    """
    assert sample.blocks is not None, "the sample is whole"
    assert sample.stored is not None, "the sample is whole"
    assert sample.asked is not None, "the sample is whole"
    index = next(i for i, item in enumerate(layout.groups) if item.name == group)
    (k_TKH, v_TKH), (q_TNH, options) = sample.stored, sample.asked
    layout, batch = _moved(sample.batch, layout, index)
    views = Arena(layout, runtime.allocate_arena(layout.total_bytes)).views()
    layers = [cast("KVView", views[layer]) for layer in layout.groups[index].layers]
    for view in layers:
        for tensor, blocks in zip((view.k, view.v), sample.blocks, strict=True):
            put_blocks(tensor, batch, blocks)

    def step() -> torch.Tensor:
        metadata = backend.plan(batch)
        for view in layers:
            backend.write(k_TKH, v_TKH, view, metadata)
            result: torch.Tensor = backend.attend(q_TNH, view, metadata, **options)
        return result

    return step


def _moved(
    batch: AttentionBatch, layout: ArenaLayout, index: int
) -> tuple[ArenaLayout, AttentionBatch]:
    """Return the layout with as many blocks as will do, and the step with a block an entry."""
    packing, (rows, indices) = layout.groups[index].packing, entries(batch)
    layout = replace(layout, num_physical_blocks=1 + -(-len(rows) // packing))
    pages, (num_rows, width) = layout.page_ids(index), batch.block_tables.shape
    tables = GroupTables(num_rows, width, pages)
    ids = np.arange(packing, packing + len(rows), dtype=np.int32)  # behind the sentinel's
    tables.patch(rows, indices, ids)
    slots = np.arange(num_rows, dtype=np.int32)
    return layout, replace(
        batch,
        block_tables=tables.block_rows(slots, width),
        page_tables=tables.page_rows(slots, width),
        page_tokens=pages.page_tokens if pages else 0,
    )


def expert_trials(watched: WatchedExperts, traits: str, wait: Wait) -> Iterator[Trial]:
    """Yield a trial for each shape of an expert group's calls."""
    prepared: dict[str, tuple[Any, object]] = {}

    def timer(sample: ExpertSample) -> Callable[[RegisteredOffer[Any]], float]:
        def seconds(offer: RegisteredOffer[Any]) -> float:
            if offer.pin not in prepared:
                assert watched.weights is not None
                backend = offer.offer.load(**watched.options)
                prepared[offer.pin] = (backend, backend.prepare(copied_weights(watched.weights)))
            backend, layer = prepared[offer.pin]
            compute = from_logits(backend, watched.options["group"].routing, watched.route)
            if len(sample.arguments) > 2:  # the layer has chosen
                compute = backend.forward
            return time_call(lambda: compute(*sample.arguments, layer), wait)

        return seconds

    for tokens, sample in watched.samples.items():
        yield Trial(f"moe|{traits}|{tokens}", sample.calls, timer(sample))


def time_sample(kernel: Callable[..., Any], sample: Sample, wait: Wait | None = None) -> float:
    """Return the median seconds of one call with the sample's arguments."""
    import torch

    with torch.inference_mode():
        if sample.prepared is not None:
            args, kwargs = sample.prepared
            kernel = kernel(*args, **kwargs)

    def fresh() -> Callable[[], Any]:
        args, kwargs = copied(sample.arguments)
        return lambda: kernel(*args, **kwargs)

    return _median(fresh, wait)


def time_call(call: Callable[[], Any], wait: Wait | None = None) -> float:
    """Return the median seconds of a call that may be repeated as it is."""
    return _median(lambda: call, wait)


def _median(fresh: Callable[[], Callable[[], Any]], wait: Wait | None) -> float:
    """Time calls, each made anew beforehand; the device is waited for before and after."""
    import torch

    wait = wait or (lambda: None)
    times: list[float] = []
    with torch.inference_mode():
        while len(times) < MIN_REPEATS + 1 or (
            sum(times) < ENOUGH_S and len(times) < MAX_REPEATS + 1
        ):
            call = fresh()
            wait()
            start_s = time.perf_counter()
            call()
            wait()
            times.append(time.perf_counter() - start_s)
    return statistics.median(times[1:])  # the first call warms up
