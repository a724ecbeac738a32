"""Whether steps of this start may be device graphs, and with what.

Everything that a captured step runs must say that it can be captured: a kernel that looks at a
number on the host would repeat what it saw, silently. So graphs are off, with the reason in the
start report, wherever one part does not say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed import ops
from tokenspeed.engine.ranks.place import degrees_of
from tokenspeed.engine.reports import Progress, size_text
from tokenspeed.engine.sizes import slots_of
from tokenspeed.errors import PlacementError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.described import DescribedModel
    from tokenspeed.engine.rank_build import RankParts
    from tokenspeed.engine.reports import ProgressCallback
    from tokenspeed.executor import Executor
    from tokenspeed.executor.graphs import GraphCounts, GraphSettings
    from tokenspeed.kernels import Decision

OUTSIDE = frozenset(
    {
        "kv.copy_tokens",
        "logits.mask",
        "quantise.decode",
        "quantise.encode",
        "step.patch_tables",
    }
)
"""Operators whose kernels run before or beside a captured step, or while weights are loaded."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Graphs:
    """What became of graphs at this start.

    Args:
        text: for the start report.
        counts: of decode steps; None: there are none.
        pieces: of steps with prompts; None: they are launched kernel by kernel.
    """

    text: str
    counts: GraphCounts | None = None
    pieces: GraphCounts | None = None


def capture_graphs(
    config: EngineConfig,
    rank: RankParts,
    described: DescribedModel,
    choices: Choices,
    runtime: DeviceRuntime,
    executor: Executor,
    tell: ProgressCallback,
    *,
    is_watched: bool,
) -> Graphs:
    """Capture the decode steps of an engine of one rank, if all of its parts allow it.

    Args:
        is_watched: kernels are being timed.
    """
    if config.graphs == "off" or "graphs" not in runtime.features:
        return Graphs("off")
    reason = "kernels are being timed" if is_watched else ""
    reason = reason or declined(config, rank.attention, rank.binder.decisions, choices.decisions)
    if reason:
        LOGGER.info("decode steps are launched kernel by kernel: %s", reason)
        return Graphs(f"off: {reason}")
    counts = executor.capture_graphs(
        _settings(config, rank, choices, runtime),
        lambda done, total: tell(Progress("graphs", done, total)),
    )
    if not counts.captured:
        return Graphs("off: none could be captured", counts)
    smallest, largest = counts.captured[0], counts.captured[-1]
    text = f"{smallest}-{largest} rows, {size_text(counts.num_bytes)}"
    if not config.piecewise_tokens:
        return Graphs(text, counts)
    left_bytes = config.graph_memory_mib * MIB - counts.num_bytes
    pieces = _capture_pieces(config, rank, described, runtime, executor, left_bytes)
    return Graphs(f"{text}; {_pieces_text(config, pieces)}", counts, pieces)


def declined(
    config: EngineConfig,
    attention: Mapping[str, AttentionBackend],
    kernels: Iterable[Decision],
    slots: Mapping[str, Decision],
) -> str:
    """Return why there can be no graphs; "": nothing is against them.

    Args:
        attention: cache group name -> its backend.
        kernels: choices of everything that was bound.
        slots: choices by slot.
    """
    if degrees_of(config).world > 1:
        return "several ranks"
    for group, backend in attention.items():
        if not hasattr(backend, "plan_decode"):
            return f"attention of {group!r} plans on the host"
    unsafe = [
        item.winner.pin
        for item in kernels
        if item.record["slot"] not in OUTSIDE and not item.winner.offer.graph_safe
    ]
    unsafe += [
        decision.winner.pin
        for slot, decision in slots.items()
        if slot.partition(".")[0] == "moe" and not _is_graph_safe(decision)
    ]
    return f"not graph-safe: {', '.join(dict.fromkeys(unsafe))}" if unsafe else ""


def _settings(
    config: EngineConfig, rank: RankParts, choices: Choices, runtime: DeviceRuntime
) -> GraphSettings:
    from tokenspeed.executor.graph_sizes import LARGEST, sizes_up_to
    from tokenspeed.executor.graphs import GraphSettings

    most = min(config.graph_rows or LARGEST, slots_of(config))
    return GraphSettings(
        sizes=sizes_up_to(most),
        max_bytes=config.graph_memory_mib * MIB,
        capture=runtime.capture,  # type: ignore[attr-defined]
        prepare=rank.binder.bind(ops.step.prepare, graph_safe=True),
        patch=rank.binder.bind(ops.step.patch_tables),
        samples=_is_graph_safe(choices.decisions["sampler"]),
        shares=not config.deterministic,
    )


def _capture_pieces(
    config: EngineConfig,
    rank: RankParts,
    described: DescribedModel,
    runtime: DeviceRuntime,
    executor: Executor,
    max_bytes: int,
) -> GraphCounts | None:
    """Let steps with prompts be captured in pieces; None: the model cannot be cut."""
    from tokenspeed.executor.alone import runner_of
    from tokenspeed.executor.piecewise import piece_sizes

    try:
        runner = runner_of(rank.model, described.config, rank.binder, dtype=described.sizes.dtype)
    except PlacementError as error:
        LOGGER.warning("steps with prompts are launched kernel by kernel: %s", error)
        return None
    return executor.capture_pieces(
        runner,
        sizes=piece_sizes(config.piecewise_tokens),
        max_bytes=max_bytes,
        capture=runtime.capture,  # type: ignore[attr-defined]
    )


def _pieces_text(config: EngineConfig, pieces: GraphCounts | None) -> str:
    if pieces is None:
        return "no pieces: the model cannot be cut"
    return f"pieces up to {config.piecewise_tokens} tokens"


def _is_graph_safe(decision: Decision) -> bool:
    return True in decision.winner.offer.requires.get("graph_safe", ())
