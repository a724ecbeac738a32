"""Builds what every rank of a replica has: the model, its backends, its weights and its cache.

Called by `build.py` for rank 0, which adds what only it needs, and by `ranks/rank.py` for the
others. With one rank there is no difference.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tokenspeed import ops
from tokenspeed.contracts.model import ModelContext, expert_groups_of
from tokenspeed.engine.built import building, check_arena
from tokenspeed.engine.described import DescribedModel
from tokenspeed.engine.evidence import evidence_for
from tokenspeed.engine.memory import memory_errors
from tokenspeed.engine.placing import connect, partition_of, partitioned
from tokenspeed.engine.ranks.group_seat import GroupSeat
from tokenspeed.engine.ranks.place import degrees_of
from tokenspeed.engine.ranks.progress import CountedCommunicator
from tokenspeed.engine.reports import Progress
from tokenspeed.engine.rules import device_traits
from tokenspeed.engine.sizes import CPU, arena_bytes, check_tables, resolve_sizes
from tokenspeed.engine.tiers import host_blocks
from tokenspeed.kernels import KernelRegistry
from tokenspeed.kv import Arena, describe, solve_layout
from tokenspeed.log import LOGGER
from tokenspeed.models.failures import model_errors
from tokenspeed.placement.mesh import build_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.weights import WeightSource
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.placing import Placing
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.ranks.progress import RankProgress
    from tokenspeed.engine.reports import ProgressCallback
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.engine.tuning import Tuning
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.executor.partition import Partition
    from tokenspeed.kernels import Binder
    from tokenspeed.kv import ArenaLayout
    from tokenspeed.placement.expert_load import ExpertLoad
    from tokenspeed.plugins import Registry

    Agree = Callable[[Sequence[int]], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class RankParts:
    """What a rank computes with.

    Args:
        storage: the memory behind `arena`.
        communicator: between all ranks of the replica.
        program: digest of what the ranks of all stages run; "": each has all of the model.
        host_blocks: physical blocks of the host tier, as on every other rank; 0: there is none.
        expert_load: counts of choices of this stage's experts; None: experts stay.
        partition: of data-parallel attention; None: there is one only.
        connections: between the ranks of this rank's groups; None: there are no such groups.
    """

    model: CausalLM
    attention: Mapping[str, AttentionBackend]
    binder: Binder
    communicator: Communicator
    layout: ArenaLayout
    storage: torch.Tensor
    arena: Arena
    weights_bytes: int
    program: str
    host_blocks: int = 0
    expert_load: ExpertLoad | None = None
    partition: Partition | None = None
    connections: GroupConnections | None = None

    @property
    def tells_late(self) -> bool:
        """Whether a group may break in a step that goes on."""
        from tokenspeed.executor.connections import tells_late

        groups = self.connections
        return tells_late(self.communicator) or (groups is not None and groups.tells_late)

    def check(self) -> None:
        """Raise if a group broke during a step whose results are about to be used."""
        from tokenspeed.executor.connections import check_late

        check_late(self.communicator)
        if self.connections is not None:
            self.connections.check()

    def close(self) -> None:
        """Leave the other ranks in peace."""
        if self.connections is not None:
            self.connections.close()
        self.communicator.close()


def describe_model(
    config: EngineConfig, choices: Choices, runtime: DeviceRuntime, source: WeightSource
) -> DescribedModel:
    """Read the model's config, find its class, and ask that for cache and experts.

    Raises:
        TokenSpeedError: the config is not as needed, or nobody offers its architecture.
    """
    with building(choices.decisions["weight_format"].winner, "reading the model's config"):
        model_config = source.config()
    model_class = choices.model_class(model_config)
    with model_errors(model_class, "it declared its cache and experts"):
        groups = tuple(model_class.cache_groups(model_config))
        experts = expert_groups_of(model_class, model_config)
    sizes = resolve_sizes(config, model_config, device_kind=runtime.facts.kind)
    return DescribedModel(model_class, model_config, groups, experts, sizes)


def joined(
    choices: Choices,
    sizes: EngineSizes,
    runtime: DeviceRuntime,
    place: Place,
    progress: RankProgress | None,
) -> Communicator:
    """Join the communicator of all ranks; its calls are counted in `progress`."""
    seat = GroupSeat(
        rank=place.rank, size=place.world, rendezvous=place.rendezvous, hosts=place.num_hosts
    )
    communicator = choices.communicator(sizes, runtime, seat)
    return communicator if progress is None else CountedCommunicator(communicator, progress)


def build_rank(
    config: EngineConfig,
    registry: Registry,
    choices: Choices,
    runtime: DeviceRuntime,
    source: WeightSource,
    described: DescribedModel,
    communicator: Communicator,
    place: Place,
    placing: Placing | None,
    progress: RankProgress | None,
    *,
    tell: ProgressCallback,
    agree: Agree = tuple,
    tuning: Tuning | None = None,
) -> RankParts:
    """Build one rank's model and cache.

    Args:
        described: the whole model.
        communicator: between all ranks of the replica, joined already.
        placing: what of the model is this rank's; None: all of it.
        progress: where this rank's collectives are counted; None: there is one rank.
        agree: takes what this rank has room for, and returns what all ranks have.
        tuning: watches what computes; None: nobody does.
    Raises:
        TokenSpeedError: nothing computes such a model here, or memory does not suffice.
    """
    mesh = build_mesh(degrees_of(config))
    partition = partition_of(config, place)
    own = described if placing is None else placing.local(described)
    sizes, groups = own.sizes, own.groups
    check_tables(config, groups, sizes, free_bytes=_free_bytes(config, runtime, place))
    binder = _binder(config, registry, choices, runtime, own, tuning)
    attention = choices.attention(groups, sizes, runtime)
    context = ModelContext(
        kernels=binder,
        attention=attention,
        dtype=_dtype(sizes),
        device=runtime.torch_device(),
        max_context_tokens=sizes.max_context_tokens,
        moe=choices.moe(own.experts, sizes, runtime),
        shards=None if placing is None else placing.shards,
    )
    with model_errors(own.model_class, "it was built"), memory_errors("the model"):
        model = own.model_class(own.config, context)
        connections = (
            None if progress is None else connect(mesh, choices, own, runtime, place, progress)
        )
        if placing is not None:
            assert connections is not None, "ranks among others count their collectives"
            model = placing.model(model, binder, connections)
    with model_errors(own.model_class, "its weights were loaded"), memory_errors("the model"):
        weights_bytes = _load_weights(
            model, source, sizes, runtime, keep_packed=config.weights == "packed", tell=tell
        )
    expert_load: ExpertLoad | None = getattr(model, "expert_load", None)
    if partition is not None:
        assert connections is not None, "partitions are on several ranks"
        model = partitioned(model, partition, connections, mesh, place.rank)
    tell(Progress("cache"))
    wanted_bytes = arena_bytes(
        config, groups, sizes, free_bytes=_free_bytes(config, runtime, place)
    )
    layout = _layout(own, choices, wanted_bytes, tuning)
    # Ids of blocks are the same on all ranks.
    room = layout.num_physical_blocks, host_blocks(config, layout, ranks=place.world)
    num_physical, num_host = agree(room)
    layout = replace(layout, num_physical_blocks=num_physical)
    if place.rank == 0:
        LOGGER.info("%s", describe(layout))
    storage = runtime.allocate_arena(layout.total_bytes)
    check_arena(storage, layout.total_bytes, choices.decisions["device"].winner.pin)
    return RankParts(
        model=model,
        attention=attention,
        binder=binder,
        communicator=communicator,
        layout=layout,
        storage=storage,
        arena=Arena(layout, storage, copy=binder.bind(ops.kv.copy_tokens)),
        weights_bytes=weights_bytes,
        program="" if placing is None else placing.compiled.digest,
        host_blocks=num_host,
        expert_load=expert_load,
        partition=partition,
        connections=connections,
    )


def _free_bytes(config: EngineConfig, runtime: DeviceRuntime, place: Place) -> int:
    """Return this rank's share of free memory: ranks and replicas of a host share its own."""
    is_shared = runtime.torch_device().type == CPU
    sharing = place.local_world * config.replicas if is_shared else 1
    return runtime.free_memory_bytes() // sharing


def _layout(
    described: DescribedModel, choices: Choices, num_bytes: int, tuning: Tuning | None
) -> ArenaLayout:
    sizes = described.sizes
    solve = partial(
        solve_layout,
        described.groups,
        block_tokens=sizes.block_tokens,
        dtype=sizes.dtype,
        arena_bytes=num_bytes,
        first_layer=min(layer for group in described.groups for layer in group.layers),
    )
    layout = solve(demands=choices.cache_demands())
    if tuning is not None:
        tuning.solve = lambda more: solve(demands={**choices.cache_demands(), **more})
    return layout


def _binder(
    config: EngineConfig,
    registry: Registry,
    choices: Choices,
    runtime: DeviceRuntime,
    described: DescribedModel,
    tuning: Tuning | None,
) -> Binder:
    """Return the binder: by measured times where there are any, watched while they are taken.

    Backends of slots are chosen by the same times, so it comes before them.
    """
    traits = {**device_traits(runtime.facts), "dtype": described.sizes.dtype}
    evidence = evidence_for(config, registry, runtime.facts, described.sizes, described.config)
    if tuning is None:
        choices.evidence = evidence
        return KernelRegistry(registry).binder(traits, rules=choices.rules, evidence=evidence)
    tuning.evidence, tuning.runtime = evidence, runtime
    return tuning.watched_binder(traits, choices.rules)


def _load_weights(
    model: CausalLM,
    source: WeightSource,
    sizes: EngineSizes,
    runtime: DeviceRuntime,
    *,
    keep_packed: bool,
    tell: ProgressCallback,
) -> int:
    from tokenspeed.executor import load_weights

    return load_weights(
        model,
        source,
        dtype=_dtype(sizes),
        device=runtime.torch_device(),
        keep_packed=keep_packed,
        progress=lambda done, total: tell(Progress("weights", done, total)),
    )


def _dtype(sizes: EngineSizes) -> Any:
    import torch

    return getattr(torch, sizes.dtype)


def set_threads(wanted: int, sharing: int) -> None:
    """Use so many threads for kernels.

    Args:
        wanted: 0: this process's share of the host's cores.
        sharing: ranks and replicas on this host.
    """
    import torch

    if wanted:
        torch.set_num_threads(wanted)
    elif sharing > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // sharing))


def rank_facts(parts: RankParts, choices: Choices, names: Sequence[str] = ()) -> dict[str, str]:
    """Return what must be alike on all ranks, by name."""
    slots = {
        f"slot {slot}": decision.winner.pin
        for slot, decision in choices.decisions.items()
        if slot.partition(".")[0] in EVERY_RANK
    }
    kernels = {f"kernel {item.record['slot']}": item.winner.pin for item in parts.binder.decisions}
    layout = parts.layout
    groups = ", ".join(f"{group.name} {group.packing}" for group in layout.groups)
    cache = f"{layout.num_physical_blocks} blocks of {groups}"
    return {**slots, **kernels, "cache": cache, "program": parts.program}


EVERY_RANK = frozenset(
    {"device", "weight_format", "model", "attention", "moe", "communicator", "kv_store"}
)
"""Slots that every rank fills; the rest is rank 0's alone."""
