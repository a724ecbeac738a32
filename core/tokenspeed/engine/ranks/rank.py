"""A rank other than 0, built: it carries out messages and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.engine.build import model_path
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.placing import placing_of
from tokenspeed.engine.rank_build import build_rank, describe_model, joined, rank_facts, set_threads
from tokenspeed.engine.rank_tiers import build_tiers
from tokenspeed.engine.ranks.health import StepHealth
from tokenspeed.engine.ranks.moves import MovesReporter
from tokenspeed.engine.ranks.place import degrees_of
from tokenspeed.engine.ranks.plan_frames import JoinedDecoder
from tokenspeed.engine.ranks.plan_group import join_plan_group
from tokenspeed.engine.sizes import slots_each, slots_of, with_depth
from tokenspeed.env import is_strict
from tokenspeed.errors import EngineError
from tokenspeed.executor.batch import StepBatcher
from tokenspeed.executor.following import FollowingExecutor
from tokenspeed.executor.host_link import host_link
from tokenspeed.executor.partition import PartitionBatcher
from tokenspeed.models.modules import register_model_modules
from tokenspeed.plugins import load_planned
from tokenspeed.scheduler import PlanDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.rank_build import Agree, RankParts
    from tokenspeed.engine.ranks.messages import RankMoves
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.ranks.plan_group import PlanGroup
    from tokenspeed.engine.ranks.progress import RankProgress
    from tokenspeed.executor.transfers import TierTransfers
    from tokenspeed.placement.expert_load import ExpertLoad
    from tokenspeed.plugins import PluginPlan


class RankExecutor:
    """Decodes each plan, proves that it is the one rank 0 sent, and carries it out.

    Args:
        decoder: of what rank 0 sends.
        parts: what it computes with.
        expert_load: that rank 0 must be told of; None: it has it, or another rank tells.
        facts: see `rank_facts`.
        device_text: where it computes, for the log.
        event: see StepHealth.
        plans: the group that brings plans; None: they come by the ring.
        transfers: moves this rank's part of blocks between the tiers; None: there is no tier.
        moves: says what of that has ended; None: there is no tier.
    """

    def __init__(
        self,
        place: Place,
        executor: FollowingExecutor,
        parts: RankParts,
        *,
        expert_load: ExpertLoad | None,
        decoder: PlanDecoder | JoinedDecoder,
        facts: Mapping[str, str],
        device_text: str,
        event: Callable[[], Any] | None,
        plans: PlanGroup | None,
        transfers: TierTransfers | None = None,
        moves: MovesReporter | None = None,
    ) -> None:
        self.facts = dict(facts)
        self.expert_load = expert_load
        self.device_text = device_text
        self._rank = place.rank
        self._executor = executor
        self._parts = parts
        self._event = event
        self.plans = plans
        self._health: StepHealth | None = None
        self._decoder = decoder
        self._transfers = transfers
        self._moves = moves

    @property
    def stored_keys(self) -> bytes:
        """The keys of the records that this rank's store has found, one behind the other."""
        return b"" if self._transfers is None else self._transfers.stored_keys().tobytes()

    @property
    def tells_health(self) -> bool:
        """Whether rank 0 must be told that steps went well: they may end although they did not."""
        return self._parts.tells_late

    def begin_health(self, tell: Callable[[int], None], fail: Callable[[Exception], None]) -> None:
        """Tell of each step from now on; see StepHealth."""
        self._health = StepHealth(self._parts.check, tell, fail, event=self._event)

    def run(self, message: bytes) -> None:
        """Carry out one plan.

        Raises:
            EngineError: it is not the one that is due, or not as it was sent; or a group broke.
        """
        try:
            plan: Any
            plan, spans = self._decoder.decode(message)
        except ValueError as error:
            raise EngineError(
                f"rank {self._rank} disagrees with rank 0: {error}; the replica starts anew"
            ) from error
        self._executor.run(plan, spans)
        if self._health is not None:
            self._health.note_launched()
        self.report_moves()

    def report_moves(self) -> None:
        """Say which moves between tiers have ended."""
        if self._moves is not None:
            self._moves.report()

    def close(self) -> None:
        """Leave the other ranks in peace."""
        if self._health is not None:
            self._health.close()
        if self._transfers is not None:
            self._transfers.close()
        if self.plans is not None:
            self.plans.close()
        self._parts.close()


def build_worker(
    config: EngineConfig,
    plugins: PluginPlan,
    place: Place,
    progress: RankProgress,
    *,
    plan_ranks: Sequence[int],
    joining: Callable[[], object],
    agree: Agree,
    tell_moves: Callable[[RankMoves], None],
) -> RankExecutor:
    """Build this rank's part of a replica.

    Args:
        plan_ranks: of the group that brings plans; (): they come by the ring.
        joining: called when nothing but the other ranks can stop the communicator; returns when
            they are as far.
        agree: see `build_rank`.
        tell_moves: takes what ended of moves between tiers.
    Raises:
        TokenSpeedError: as `build_engine`.
    """
    registry = load_planned(plugins, role="engine")
    register_model_modules(registry, config.model_module, lock=config.plugins_lock)
    choices = Choices(config, registry)
    runtime = choices.device(place.device_index)
    config = with_depth(config, runtime.features)
    set_threads(config.threads, place.local_world * config.replicas)
    path = model_path(config)
    source = choices.checkpoint(path)
    try:
        described = describe_model(config, choices, runtime, source)
        placing = placing_of(config, described, place)
        joining()
        communicator = joined(choices, described.sizes, runtime, place, progress)
        plans = join_plan_group(choices, place, plan_ranks) if plan_ranks else None
        parts = build_rank(
            config, registry, choices, runtime, source, described, communicator, place, placing,
            progress, tell=lambda _: None, agree=agree,
        )  # fmt: skip
    finally:
        source.close()
    _, transfers = build_tiers(config, choices, parts, path, place, described.sizes, runtime)
    facts = rank_facts(parts, choices)
    parts.binder.freeze()
    registry.freeze(strict=is_strict())
    link = host_link(runtime, depth=config.depth)
    batcher = StepBatcher(
        parts.arena,
        parts.attention,
        max_running=slots_each(config),
        max_context_tokens=described.sizes.max_context_tokens,
        block_tokens=described.sizes.block_tokens,
        vocab_size=described.sizes.vocab_size,
        link=link,
        own_queries=getattr(parts.model, "own_queries", None),
    )
    executor = FollowingExecutor(
        parts.model,
        batcher if parts.partition is None else PartitionBatcher(batcher, parts.partition),
        max_running=slots_of(config),
        link=link,
        share=communicator.broadcast,
        transfers=transfers,
    )
    text = f"{runtime.facts.kind} ({runtime.facts.name}), {runtime.torch_device()}"
    decoder = (
        PlanDecoder()
        if parts.partition is None
        else JoinedDecoder(config.dp, slots_each=slots_each(config))
    )
    is_first_of_stage = place.rank % degrees_of(config).stage_ranks == 0
    return RankExecutor(
        place,
        executor,
        parts,
        expert_load=parts.expert_load if is_first_of_stage else None,
        decoder=decoder,
        facts=facts,
        device_text=text,
        event=_events(runtime),
        plans=plans,
        transfers=transfers,
        moves=None if transfers is None else MovesReporter(transfers, tell_moves),
    )


def _events(runtime: DeviceRuntime) -> Callable[[], Any] | None:
    """Return what makes an event of the device; None: what it is given is made at once."""
    if "streams" not in runtime.features:
        return None
    import torch

    device: Any = runtime.torch_device()
    return lambda: torch.Event(device)
