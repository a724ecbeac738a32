"""What a built engine says of itself: the model's facts for API processes, the start report."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import tokenspeed
from tokenspeed.engine.messages import ModelInfo
from tokenspeed.engine.ranks.place import degrees_of, mesh_text
from tokenspeed.engine.reports import StartReport, size_text
from tokenspeed.engine.sizes import EngineSizes, max_sequence_tokens
from tokenspeed.engine.tiers import write_policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.engine.drafting import Drafting
    from tokenspeed.engine.engine import StepExecutor, Transfers
    from tokenspeed.engine.expert_loads import ExpertLoads
    from tokenspeed.engine.grammars import Grammars
    from tokenspeed.engine.graphs import Graphs
    from tokenspeed.engine.policy_guard import GuardedPolicy
    from tokenspeed.engine.ranks.group import RankGroup
    from tokenspeed.engine.store_guard import GuardedStore
    from tokenspeed.engine.tenants import Tenants
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.kernels import Binder
    from tokenspeed.kv import ArenaLayout
    from tokenspeed.plugins import BindingPlan, Registry
    from tokenspeed.scheduler import Scheduler
    from tokenspeed.scheduler.record import RecordWriter


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What `build.py` made, on its way into the Engine."""

    sizes: EngineSizes
    layout: ArenaLayout
    executor: StepExecutor
    scheduler: Scheduler
    tenants: Tenants
    policy: GuardedPolicy
    recorder: RecordWriter | None
    binder: Binder
    model_config: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    weights_bytes: int
    cache_groups: tuple[str, ...]
    transfers: Transfers | None
    host_blocks: int
    drafting: Drafting | None
    communicator: Communicator
    connections: GroupConnections | None
    store: GuardedStore | None
    grammars: Grammars | None
    graphs: Graphs
    group: RankGroup | None = None
    expert_loads: ExpertLoads | None = None


def model_name(path: Path) -> str:
    """Return the name under which a model is served: its folder's or file's, without file types.

    `SmolLM2-135M-Instruct.Q4_1.gguf` is SmolLM2-135M-Instruct: how weights are stored is no part
    of what clients ask for.
    """
    if not path.is_file():
        return path.resolve().name
    return re.sub(r"[.-](I?Q\d\w*|BF16|F16|F32)$", "", path.stem, flags=re.IGNORECASE)


def model_info(config: EngineConfig, path: Path, parts: EngineParts) -> ModelInfo:
    """Return what API processes must know; the ids that end an answer come from the tokenizer."""
    longest_tokens = min(
        parts.sizes.max_context_tokens,
        max_sequence_tokens(
            parts.layout, state_rows=config.depth + 1, step_tokens=parts.sizes.max_step_tokens
        ),
    )
    return ModelInfo(
        name=config.served_model_name or model_name(path),
        path=str(path),
        architecture=str(parts.model_config["architectures"][0]),
        vocab_size=parts.sizes.vocab_size,
        max_context_tokens=parts.sizes.max_context_tokens,
        max_prompt_tokens=longest_tokens - 1,
        eos_token_ids=parts.eos_token_ids,
        has_snapshots=any(group.kind == "state" for group in parts.layout.groups),
        block_tokens=parts.sizes.block_tokens,
        cache_groups=tuple((group.kind, group.group.window) for group in parts.layout.groups),
    )


def start_report(
    config: EngineConfig,
    registry: Registry,
    runtime: DeviceRuntime,
    plan: BindingPlan,
    parts: EngineParts,
) -> StartReport:
    """Return the facts of this start."""
    chosen = {slot: decision.winner.offer.name for slot, decision in plan.slots.items()}
    kernels = {str(item.record["slot"]): item.winner.offer.name for item in plan.kernels}
    return StartReport(
        version=tokenspeed.__version__,
        python=platform.python_version(),
        pid=os.getpid(),
        device=f"{runtime.facts.kind} ({runtime.facts.name})",
        plugins=tuple(
            f"{status.id} {status.version}"
            for status in registry.plugins
            if status.state == "registered"
        ),
        architecture=str(parts.model_config["architectures"][0]),
        dtype=parts.sizes.dtype,
        weights_bytes=parts.weights_bytes,
        weight_format=chosen["weight_format"],
        block_tokens=parts.sizes.block_tokens,
        kv_blocks=(parts.layout.num_physical_blocks - 1) * parts.layout.groups[0].packing,
        kv_bytes=parts.layout.total_bytes,
        tiers=_tiers(config, plan, parts),
        policy=parts.policy.name,
        speculator=parts.drafting.name if parts.drafting else "",
        max_drafts=config.max_drafts if parts.drafting else 0,
        max_context_tokens=parts.sizes.max_context_tokens,
        max_running=config.max_running,
        max_step_tokens=parts.sizes.max_step_tokens,
        depth=config.depth,
        kernels=tuple(
            (slot, name)
            for slot, name in {**chosen, **kernels}.items()
            if slot.partition(".")[0] in ("attention", "moe", "sampler") or slot in kernels
        ),
        graphs=parts.graphs.text,
        mesh=mesh_text(degrees_of(config)),
        plan_digest=plan.digest,
        plan={**plan.to_json(), "plugins": [asdict(status) for status in registry.plugins]},
    )


def _tiers(
    config: EngineConfig, plan: BindingPlan, parts: EngineParts
) -> tuple[tuple[str, str], ...]:
    """Return the tiers behind the device, nearest first, with what each is."""
    if not parts.host_blocks:
        return ()
    num_bytes = parts.host_blocks * parts.layout.physical_bytes
    each = " a rank" if parts.group is not None else ""
    host = f"{size_text(num_bytes)}{each}, {write_policy(config)}"
    if "kv_store" not in plan.slots:
        return (("host", host),)
    store = f"{plan.slots['kv_store'].winner.pin}, at most {config.kv_store_gib:,g} GiB"
    return (("host", host), ("store", store))
