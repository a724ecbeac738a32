"""A rank other than 0, built: it carries out messages and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.engine.build import model_path
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.placing import placing_of
from tokenspeed.engine.rank_build import build_rank, describe_model, joined, rank_facts, set_threads
from tokenspeed.engine.ranks.plan_frames import JoinedDecoder
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
    from collections.abc import Callable, Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.ranks.progress import RankProgress
    from tokenspeed.plugins import PluginPlan


class RankExecutor:
    """Decodes each plan, proves that it is the one rank 0 sent, and carries it out.

    Args:
        decoder: of what rank 0 sends.
        facts: see `rank_facts`.
        device_text: where it computes, for the log.
    """

    def __init__(
        self,
        place: Place,
        executor: FollowingExecutor,
        communicator: Communicator,
        *,
        decoder: PlanDecoder | JoinedDecoder,
        facts: Mapping[str, str],
        device_text: str,
    ) -> None:
        self.facts = dict(facts)
        self.device_text = device_text
        self._rank = place.rank
        self._executor = executor
        self._communicator = communicator
        self._decoder = decoder

    def run(self, message: bytes) -> None:
        """Carry out one plan.

        Raises:
            EngineError: it is not the one that is due, or not as it was sent.
        """
        try:
            plan: Any
            plan, spans = self._decoder.decode(message)
        except ValueError as error:
            raise EngineError(
                f"rank {self._rank} disagrees with rank 0: {error}; the replica starts anew"
            ) from error
        self._executor.run(plan, spans)

    def close(self) -> None:
        """Leave the other ranks in peace."""
        self._communicator.close()


def build_worker(
    config: EngineConfig,
    plugins: PluginPlan,
    place: Place,
    progress: RankProgress,
    *,
    joining: Callable[[], None],
) -> RankExecutor:
    """Build this rank's part of a replica.

    Args:
        joining: called when nothing but the other ranks can stop the communicator.
    Raises:
        TokenSpeedError: as `build_engine`.
    """
    registry = load_planned(plugins, role="engine")
    register_model_modules(registry, config.model_module, lock=config.plugins_lock)
    choices = Choices(config, registry)
    runtime = choices.device(place.device_index)
    config = with_depth(config, runtime.features)
    set_threads(config.threads, place.local_world * config.replicas)
    source = choices.checkpoint(model_path(config))
    try:
        described = describe_model(config, choices, runtime, source)
        placing = placing_of(config, described, place)
        joining()
        communicator = joined(choices, described.sizes, runtime, place, progress)
        parts = build_rank(
            config, registry, choices, runtime, source, described, communicator, place, placing,
            progress, tell=lambda _: None,
        )  # fmt: skip
    finally:
        source.close()
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
    )
    text = f"{runtime.facts.kind} ({runtime.facts.name}), {runtime.torch_device()}"
    decoder = (
        PlanDecoder()
        if parts.partition is None
        else JoinedDecoder(config.dp, slots_each=slots_each(config))
    )
    return RankExecutor(
        place, executor, communicator, decoder=decoder, facts=facts, device_text=text
    )
