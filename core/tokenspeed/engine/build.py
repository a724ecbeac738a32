"""Builds an engine from settings: the one place where all parts meet, and the only one with order.

Plugins, then device, checkpoint and model, then the cache, then weights. What was chosen is frozen
into the BindingPlan; after this no hook is called and no name is looked up.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed import ops
from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.engine.built import building
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.drafting import Drafting
from tokenspeed.engine.engine import Engine
from tokenspeed.engine.evidence import evidence_for
from tokenspeed.engine.expert_loads import ExpertLoads
from tokenspeed.engine.facts import EngineParts, model_info, start_report
from tokenspeed.engine.graphs import capture_graphs
from tokenspeed.engine.kv_events import EventGroup
from tokenspeed.engine.kv_publisher import KvEventSettings, check_addresses
from tokenspeed.engine.pins import idle_pins
from tokenspeed.engine.placing import placing_of
from tokenspeed.engine.rank_build import build_rank, describe_model, joined, rank_facts, set_threads
from tokenspeed.engine.rank_tiers import build_tiers
from tokenspeed.engine.ranks.group import ON_THIS_HOST, RankGroup, RankStart
from tokenspeed.engine.ranks.leading import LeadingExecutor
from tokenspeed.engine.ranks.moves import RankTransfers
from tokenspeed.engine.ranks.place import ALONE, world_of
from tokenspeed.engine.reports import Progress, ProgressCallback
from tokenspeed.engine.scheduling import make_scheduler, make_tenants, scheduler_settings
from tokenspeed.engine.sizes import (
    EngineSizes,
    check_speculation,
    resolve_sizes,
    slots_of,
    with_depth,
)
from tokenspeed.engine.start_settings import plugins_of
from tokenspeed.engine.tiers import check_tiers
from tokenspeed.engine.tuning import Tuning, tune
from tokenspeed.engine.vocabulary import check_vocabulary, grammar_vocabulary
from tokenspeed.env import is_strict
from tokenspeed.errors import CapacityError, CheckpointError, RequestError
from tokenspeed.log import LOGGER
from tokenspeed.models.modules import register_model_modules
from tokenspeed.plugins import BindingPlan, load_planned
from tokenspeed.scheduler import Scheduler
from tokenspeed.scheduler.record import RecordWriter, check_record, scheduler_config
from tokenspeed.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.grammar import GrammarVocabulary
    from tokenspeed.contracts.speculator import Speculator
    from tokenspeed.contracts.weights import WeightSource
    from tokenspeed.engine.engine import StepExecutor
    from tokenspeed.engine.grammars import Grammars
    from tokenspeed.engine.rank_build import RankParts
    from tokenspeed.executor import Executor
    from tokenspeed.executor.transfers import TierTransfers
    from tokenspeed.grammar import AnswerMasks
    from tokenspeed.plugins import PluginPlan, Registry


def build_engine(
    config: EngineConfig,
    *,
    progress: ProgressCallback | None = None,
    plugins: PluginPlan | None = None,
    ranks: RankStart = ON_THIS_HOST,
) -> Engine:
    """Build everything that one replica needs.

    Args:
        progress: told of each stage, and of the bytes of weights read.
        plugins: what the launcher planned; None: planned here, before anything is read.
        ranks: how further ranks come to be, if the settings ask for any.
    Raises:
        TokenSpeedError: settings, plugins, model files or memory are not as needed.
    """
    check_tiers(config)
    world = world_of(config)
    _check_outlets(config)
    model_path(config)
    tell = progress or (lambda _: None)
    tell(Progress("plugins"))
    plugins = plugins or plugins_of(config)
    if world > 1:
        return _build_leading(config, plugins, tell, RankGroup(config, plugins, world, ranks))
    if config.tune and not _is_tuned(config, plugins):
        tune(config, tell, lambda watched, tuning: _build(watched, plugins, tell, tuning=tuning))
    return _build(config, plugins, tell, device_index=ranks.device_index)


def _build_leading(
    config: EngineConfig, plugins: PluginPlan, tell: ProgressCallback, group: RankGroup
) -> Engine:
    """Build rank 0's engine while the other ranks build theirs.

    Raises:
        TokenSpeedError: of this rank, or of the one that failed first.
    """
    try:
        return _build(config, plugins, tell, group=group, device_index=group.device_index)
    except Exception as error:
        cause = group.failure_behind(error)
        group.close()
        if cause is error:
            raise
        raise cause from error
    except BaseException:
        group.close()
        raise


def _build(
    config: EngineConfig,
    plugins: PluginPlan,
    tell: ProgressCallback,
    *,
    group: RankGroup | None = None,
    tuning: Tuning | None = None,
    device_index: int = 0,
) -> Engine:
    """Build an engine; with `tuning` what computes is watched, and no measured time is used."""
    path = model_path(config)
    registry = load_planned(plugins, role="engine")
    register_model_modules(registry, config.model_module, lock=config.plugins_lock)
    choices = tuning.watched_choices(config, registry) if tuning else Choices(config, registry)
    runtime = choices.device(device_index)
    config = with_depth(config, runtime.features)
    tell(Progress("model"))
    source = choices.checkpoint(path)
    try:
        parts = _build_parts(config, registry, choices, runtime, source, path, tell, tuning, group)
    finally:
        source.close()
    return _finish(config, registry, choices, runtime, path, parts)


def _is_tuned(config: EngineConfig, plugins: PluginPlan) -> bool:
    """Say whether everything that this start asks for was measured before."""
    path = model_path(config)
    registry = load_planned(plugins, role="engine")
    register_model_modules(registry, config.model_module, lock=config.plugins_lock)
    choices = Choices(config, registry)
    facts = choices.device().facts
    source = choices.checkpoint(path)
    try:
        with building(choices.decisions["weight_format"].winner, "reading the model's config"):
            model_config = source.config()
    finally:
        source.close()
    sizes = resolve_sizes(config, model_config, device_kind=facts.kind)
    return evidence_for(config, registry, facts, sizes, model_config).is_complete


def model_path(config: EngineConfig) -> Path:
    """Return the path of the configured model; empty means the default model.

    Raises:
        ConfigError: the named model is not there.
        CheckpointError: the default model was not fetched yet.
    """
    if config.model:
        return existing_model(config.model)
    from tokenspeed.checkpoint.default_model import default_model_path

    path = default_model_path()
    if not os.path.isfile(path):  # pathlib's raises for a name that is too long
        raise CheckpointError(
            f"the default model is not at {path}; fetch it with `python -m "
            "tokenspeed.checkpoint.default_model`, or name a model"
        )
    return path


def _check_outlets(config: EngineConfig) -> None:
    """Check where the engine will write to, so that nobody waits for weights in vain.

    Raises:
        ConfigError: an address or a file cannot be used.
    """
    check_addresses(config.kv_events, config.kv_events_replay)
    if config.record:
        check_record(Path(config.record))


def _build_parts(
    config: EngineConfig,
    registry: Registry,
    choices: Choices,
    runtime: DeviceRuntime,
    source: WeightSource,
    path: Path,
    tell: ProgressCallback,
    tuning: Tuning | None,
    group: RankGroup | None,
) -> EngineParts:
    policy = choices.policy()
    choices.check_kv_store()
    described = describe_model(config, choices, runtime, source)
    sizes = described.sizes
    tokenizer = load_tokenizer(path)
    eos_token_ids = check_vocabulary(tokenizer, sizes.vocab_size)
    vocabulary = grammar_vocabulary(path, tokenizer, sizes.vocab_size)
    del tokenizer
    speculator = choices.speculator(sizes)
    check_speculation(config, described.groups)
    place, placing = ALONE, None
    if group is not None:
        placing = placing_of(config, described, group.place)  # what cannot be cut starts no process
        group.start()
        place = group.wait_joining()
    progress = group.progress if group is not None else None
    communicator = joined(choices, sizes, runtime, place, progress)
    if group is not None:
        group.join_plans(choices, place)
    set_threads(config.threads, place.local_world * config.replicas)
    rank = build_rank(
        config, registry, choices, runtime, source, described, communicator, place, placing,
        progress, tell=tell, agree=tuple if group is None else group.agree, tuning=tuning,
    )  # fmt: skip
    layout, binder = rank.layout, rank.binder
    store, own_transfers = build_tiers(config, choices, rank, path, place, sizes, runtime)
    settings = scheduler_settings(config, layout, sizes, host_blocks=rank.host_blocks)
    grammars = choices.grammars(vocabulary)
    masks = _masks(sizes, vocabulary, grammars)
    scheduler = make_scheduler(config, settings, layout)
    executor = _build_executor(config, rank, sizes, choices, runtime, own_transfers, masks, group)
    graphs = capture_graphs(
        config, rank, described, choices, runtime, executor, tell, is_watched=tuning is not None
    )
    stepping: StepExecutor = executor
    transfers: RankTransfers | TierTransfers | None = own_transfers
    if group is not None:
        stepping = LeadingExecutor(executor, group, rank.check, num_partitions=config.dp)
        group.check_alike(rank_facts(rank, choices))
        transfers = None if own_transfers is None else RankTransfers(own_transfers, group)
    if transfers is not None:
        scheduler.notify_store(transfers.stored_keys(), True)
    return EngineParts(
        sizes=sizes,
        layout=layout,
        executor=stepping,
        scheduler=scheduler,
        tenants=make_tenants(config, scheduler, layout),
        recorder=RecordWriter(Path(config.record), settings) if config.record else None,
        transfers=transfers,
        host_blocks=rank.host_blocks,
        drafting=_drafting(config, choices, speculator, scheduler, settings, sizes),
        communicator=communicator,
        connections=rank.connections,
        store=store,
        grammars=grammars,
        policy=policy,
        binder=binder,
        model_config=described.config,
        eos_token_ids=eos_token_ids,
        weights_bytes=rank.weights_bytes,
        cache_groups=tuple(item.name for item in layout.groups),
        group=group,
        expert_loads=_expert_loads(config, rank, group),
        graphs=graphs,
    )


def _expert_loads(
    config: EngineConfig, rank: RankParts, group: RankGroup | None
) -> ExpertLoads | None:
    if group is None or not config.eplb_steps:
        return None
    return ExpertLoads(rank.expert_load, group.expert_loads)


def _build_executor(
    config: EngineConfig,
    rank: RankParts,
    sizes: EngineSizes,
    choices: Choices,
    runtime: DeviceRuntime,
    transfers: TierTransfers | None,
    masks: AnswerMasks,
    group: RankGroup | None,
) -> Executor:
    from tokenspeed.executor import Executor
    from tokenspeed.executor.host_link import host_link

    return Executor(
        rank.model,
        arena=rank.arena,
        attention=rank.attention,
        sampler=choices.sampler(sizes, runtime),
        max_running=slots_of(config),
        max_context_tokens=sizes.max_context_tokens,
        block_tokens=sizes.block_tokens,
        vocab_size=sizes.vocab_size,
        link=host_link(runtime, depth=config.depth),
        transfers=transfers,
        mask_logits=rank.binder.bind(ops.sampling.mask_logits),
        masks=masks,
        share=rank.communicator.broadcast if group is not None else None,
        partition=rank.partition,
    )


def _masks(
    sizes: EngineSizes, vocabulary: GrammarVocabulary, grammars: Grammars | None
) -> AnswerMasks:
    from tokenspeed.grammar import AnswerMasks

    return AnswerMasks(
        sizes.vocab_size,
        vocabulary.stop_token_ids,
        vocabulary.special_token_ids,
        vocabulary.token_bytes,
        engine=grammars.name if grammars is not None else "",
    )


def _drafting(
    config: EngineConfig,
    choices: Choices,
    speculator: Speculator | None,
    scheduler: Scheduler,
    settings: Mapping[str, Any],
    sizes: EngineSizes,
) -> Drafting | None:
    """Return what asks the speculator, if there is one.

    Raises:
        CapacityError: the cache holds no request with so many drafts.
    """
    if speculator is None:
        return None
    probe = Scheduler(scheduler_config(settings))
    try:
        probe.submit(1, np.zeros(1, np.int32), max_drafts=config.max_drafts, now_us=0)
    except RequestError as error:
        raise CapacityError(
            f"max_drafts is {config.max_drafts}, for each of which the model keeps a state, and "
            f"the cache holds no such request ({error}); lower max_drafts or raise kv_gib"
        ) from error
    return Drafting(
        speculator,
        choices.decisions["speculator"].winner.pin,
        scheduler,
        max_drafts=config.max_drafts,
        max_step_tokens=sizes.max_step_tokens,
    )


def _finish(
    config: EngineConfig,
    registry: Registry,
    choices: Choices,
    runtime: DeviceRuntime,
    path: Path,
    parts: EngineParts,
) -> Engine:
    parts.binder.freeze()
    registry.freeze(strict=is_strict())
    plan = BindingPlan.of(choices.decisions, parts.binder.decisions)
    for text in idle_pins(choices.rules.pins, plan.names()):
        LOGGER.warning("%s", text)
    return Engine(
        info=model_info(config, path, parts),
        scheduler=parts.scheduler,
        tenants=parts.tenants,
        executor=parts.executor,
        policy=parts.policy,
        recorder=parts.recorder,
        registry=registry,
        binding_plan=plan,
        report=start_report(config, registry, runtime, plan, parts),
        max_running=slots_of(config),
        depth=config.depth,
        cache_groups=parts.cache_groups,
        cache_block_bytes=tuple(
            parts.layout.physical_bytes // group.packing for group in parts.layout.groups
        ),
        drafting=parts.drafting,
        transfers=parts.transfers,
        communicator=parts.communicator,
        connections=parts.connections,
        group=parts.group,
        store=parts.store,
        grammars=parts.grammars,
        kv_events=_kv_events(config, parts),
        is_routed=config.replicas > 1,
        expert_loads=parts.expert_loads,
        graph_counts=parts.graphs.counts,
    )


def _kv_events(config: EngineConfig, parts: EngineParts) -> KvEventSettings | None:
    """Return where changes of the prefix cache are published."""
    if not config.kv_events:
        return None
    return KvEventSettings(
        endpoint=config.kv_events,
        replay_endpoint=config.kv_events_replay,
        topic=config.kv_events_topic,
        is_named=config.kv_events_format == "named",
        block_tokens=parts.sizes.block_tokens,
        groups=tuple(EventGroup(group.kind, group.group.window) for group in parts.layout.groups),
    )
