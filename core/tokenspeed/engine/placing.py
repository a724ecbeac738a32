"""What a rank holds and runs of a model that is spread over several: compiled, cut, connected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.engine.ranks.group_seat import RANKS_TIMEOUT_S, GroupSeat
from tokenspeed.engine.ranks.place import degrees_of
from tokenspeed.engine.ranks.progress import CountedCommunicator
from tokenspeed.engine.sizes import slots_each
from tokenspeed.errors import ConfigError
from tokenspeed.placement.fitting import check_experts
from tokenspeed.placement.local import local_cache_groups, local_expert_group
from tokenspeed.placement.mesh import build_mesh

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.described import DescribedModel
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.ranks.progress import RankProgress
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.executor.partition import Partition
    from tokenspeed.placement.compiled import CompiledModel
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.shards import RankShards


@dataclass(frozen=True, slots=True)
class Placing:
    """A model compiled for the ranks of the settings, and one of them.

    Args:
        balance_steps: steps between two looks at the load of experts; 0: they stay.
    """

    compiled: CompiledModel
    rank: int
    balance_steps: int = 0

    @property
    def shards(self) -> RankShards:
        """What the rank holds."""
        return self.compiled.shards(self.rank)

    def local(self, described: DescribedModel) -> DescribedModel:
        """Return the geometry of the rank: its heads, experts and layers."""
        shards, sizes = self.shards, described.sizes
        parts, _ = shards.place(ParallelGroup.ATTN_TP, sizes.num_heads)
        return replace(
            described,
            groups=local_cache_groups(described.groups, shards),
            experts=tuple(local_expert_group(group, shards) for group in described.experts),
            sizes=replace(sizes, num_heads=sizes.num_heads // parts),
        )

    def model(
        self, model: CausalLM, kernels: KernelBinder, connections: GroupConnections
    ) -> CausalLM:
        """Return what the rank runs: `model` is built with its shards."""
        from tokenspeed.executor.placed_model import PlacedModel

        placed: Any = PlacedModel(
            model,
            self.compiled,
            rank=self.rank,
            kernels=kernels,
            connections=connections,
            balance_steps=self.balance_steps,
        )
        return placed  # type: ignore[no-any-return]


def placing_of(config: EngineConfig, described: DescribedModel, place: Place) -> Placing | None:
    """Compile a model for its ranks; None: each has all of it, there being one, or by its wish.

    Raises:
        PlacementError: the model cannot be spread so; names module, expected and found, and the
            numbers of ranks that work.
        ConfigError: a degree divides nothing of it, or experts are to move, of a model that has
            none.
    """
    is_replicated = getattr(described.model_class, "is_replicated", False)
    if config.eplb_steps and (is_replicated or not described.experts):
        raise ConfigError(
            f"eplb_steps is {config.eplb_steps} and {described.model_class.__name__} has no "
            "experts that ranks share, a mixture of experts is needed; leave --eplb-steps out"
        )
    if place.world == 1 or is_replicated:
        return None
    from tokenspeed.placement.compiled import compile_model

    degrees = degrees_of(config)
    check_experts(degrees, described.experts)
    mesh = build_mesh(degrees)
    compiled = compile_model(
        described.model_class, described.config, mesh, dtype=described.sizes.dtype
    )
    if config.eplb_steps:
        compiled = replace(compiled, spare_experts=config.eplb_slots)
    return Placing(compiled, place.rank, config.eplb_steps)


def partition_of(config: EngineConfig, place: Place) -> Partition | None:
    """Return the rank's partition of data-parallel attention; None: there is one only."""
    if config.dp == 1:
        return None
    from tokenspeed.executor.partition import Partition

    mesh = build_mesh(degrees_of(config))
    number = mesh.place(place.rank, mesh.groups[ParallelGroup.ATTN_DP])
    return Partition(number, slots_each(config))


def partitioned(
    model: CausalLM, partition: Partition, connections: GroupConnections, mesh: Mesh, rank: int
) -> CausalLM:
    """Return a model that gives the hidden states of all partitions."""
    from tokenspeed.executor.partition import PartitionedModel

    has_logits = mesh.stage(rank) == mesh.degrees.pp - 1
    across = connections.over(mesh.groups[ParallelGroup.ATTN_DP]) if has_logits else None
    joined: Any = PartitionedModel(model, across, number=partition.number)
    return joined  # type: ignore[no-any-return]


def connect(
    mesh: Mesh,
    choices: Choices,
    described: DescribedModel,
    runtime: DeviceRuntime,
    place: Place,
    progress: RankProgress,
) -> GroupConnections:
    """Return the rank's communicators, each joined when the program's first call of it is built."""

    from tokenspeed.executor.connections import GroupConnections

    def load(
        *, rank: int, size: int, rendezvous: str, timeout_s: float, device: object
    ) -> Communicator:
        seat = GroupSeat(
            rank=rank, size=size, rendezvous=rendezvous, hosts=place.num_hosts, timeout_s=timeout_s
        )
        found = choices.communicator(described.sizes, runtime, seat)
        counted: Any = CountedCommunicator(found, progress)
        return counted  # type: ignore[no-any-return]

    loader: Callable[..., Communicator] = load
    return GroupConnections(
        mesh,
        place.rank,
        loader,
        rendezvous=place.rendezvous,
        device=runtime.torch_device(),
        timeout_s=RANKS_TIMEOUT_S,
    )
