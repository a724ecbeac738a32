"""The three planes joined by hand: plugins, model, executor and scheduler, without the event loop.

`build_parts` loads a checkpoint through the reference plugin; `Parts.run` drives steps to the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tests.sim.tokenspeed_sim.attention import Attention
from tests.sim.tokenspeed_sim.moe import Experts
from tests.sim.tokenspeed_sim.recording import record
from tests.sim.tokenspeed_sim.sampler import Sampler
from tests.support.moe_backends import bound_moe

from tokenspeed import ops
from tokenspeed._core import GroupSpec, Scheduler, SchedulerConfig
from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import ModelContext, expert_groups_of
from tokenspeed.engine.drafting import Drafting
from tokenspeed.errors import EngineError
from tokenspeed.executor import Executor, InlineLink, load_weights
from tokenspeed.executor.alone import runner_of
from tokenspeed.executor.graphs import GraphSettings
from tokenspeed.kernels.registry import KernelRegistry
from tokenspeed.kv import Arena, solve_layout
from tokenspeed.models.registry import resolve_architecture
from tokenspeed.plugins import load_plugins
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenspeed.contracts.device import DeviceGraph
    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.contracts.speculator import Speculator
    from tokenspeed.contracts.step import StepPlan, StepResult
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.kv import ArenaLayout
    from tokenspeed.plugins import Registry

GREEDY = SamplingParams(temperature=0.0, max_tokens=64)
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Job:
    """One request, as submitted; aborted in step `abort_step`, 0: never."""

    prompt: Sequence[int]
    params: SamplingParams = GREEDY
    outputs: Sequence[int] = ()
    match_prefix: bool = True
    start_step: int = 0
    abort_step: int = 0
    reuse_points: Sequence[int] = ()
    stop_token_ids: tuple[int, ...] = ()
    grammar: CompiledGrammar | None = None


@dataclass(slots=True)
class Run:
    """What a run gave: per job its tokens and embedding, and what happened on the way."""

    tokens: list[list[int]]
    reasons: list[str]
    cached_tokens: list[int]
    logprobs: list[list[TokenLogprobs]]
    results: list[StepResult] = field(default_factory=list)
    num_steps: int = 0
    embeddings: dict[int, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimulatedParts:
    """How the simulated device is used.

    Args:
        graph_sizes: rows of the decode steps that are captured; (): no graphs.
        page_tokens: attention reads pages of so many tokens; 0: whole blocks.
        max_bytes: that the graphs may keep.
        samples: the sampler is captured too.
        fails_at: sizes whose capture fails; only where the sampler is not captured.
        attention: class of the backends.
        shares: beginnings that rows share are looked for.
        piece_sizes: tokens of the other steps that are captured in pieces; (): none.
        piece_fails_at: captures, counted from 0, that fail.
        max_piece_bytes: that the pieces may keep.
    """

    graph_sizes: tuple[int, ...] = ()
    page_tokens: int = 0
    max_bytes: int = 1 << 30
    samples: bool = True
    fails_at: tuple[int, ...] = ()
    attention: type[Attention] = Attention
    shares: bool = True
    piece_sizes: tuple[int, ...] = ()
    piece_fails_at: tuple[int, ...] = ()
    max_piece_bytes: int = 1 << 30


@dataclass(slots=True)
class Parts:
    """A scheduler and an executor over one arena."""

    scheduler: Scheduler
    executor: Executor
    depth: int
    physical_bytes: int = 0
    drafting: Drafting | None = None
    next_id: int = 1
    now_us: int = 1

    def run(self, jobs: Sequence[Job]) -> Run:
        """Run jobs together until all have ended."""
        run = Run(
            [list(job.outputs) for job in jobs],
            [""] * len(jobs),
            [-1] * len(jobs),
            [[] for _ in jobs],
        )
        first_id, self.next_id = self.next_id, self.next_id + len(jobs)
        waiting = deque(sorted(range(len(jobs)), key=lambda index: jobs[index].start_step))
        in_flight: deque[StepPlan] = deque()
        while waiting or self.scheduler.has_work():
            while waiting and jobs[waiting[0]].start_step <= run.num_steps:
                index = waiting.popleft()
                self._submit(first_id + index, jobs[index])
            for index, job in enumerate(jobs):
                if job.abort_step and job.abort_step == run.num_steps:
                    self.scheduler.abort(first_id + index, now_us=self._tick())
            plan = self.scheduler.plan(now_us=self._tick())
            if plan is not None:
                self.executor.launch(plan)
                in_flight.append(plan)
            run.num_steps += 1
            if in_flight and (plan is None or len(in_flight) > self.depth):
                self._commit(in_flight.popleft(), run, first_id)
        return run

    def _tick(self) -> int:
        self.now_us += 1000
        return self.now_us

    def _submit(self, request_id: int, job: Job) -> None:
        prompt = np.asarray(job.prompt, dtype=np.int32)
        outputs = np.asarray(job.outputs, dtype=np.int32)
        self.executor.add_request(
            request_id, prompt, outputs, job.params, job.stop_token_ids, job.grammar
        )
        if self.drafting is not None:
            self.drafting.add(request_id, prompt, outputs)
        self.scheduler.submit(
            request_id,
            prompt,
            output_ids=outputs,
            max_new_tokens=job.params.max_tokens or 0,
            min_new_tokens=job.params.min_tokens if job.grammar is None else 0,
            stop_token_ids=np.asarray(job.stop_token_ids, dtype=np.int32),
            max_drafts=self.drafting.max_drafts if self.drafting is not None else 0,
            match_prefix=job.match_prefix,
            reuse_points=np.asarray(job.reuse_points, dtype=np.int32),
            now_us=self._tick(),
        )

    def _commit(self, plan: StepPlan, run: Run, first_id: int) -> None:
        result = self.executor.collect()
        run.results.append(result)
        assert result.step_id == plan.step_id
        for row, state in result.embeddings:
            run.embeddings[int(plan.request_ids[row]) - first_id] = state
        done = self.scheduler.commit(
            result.step_id,
            result.tokens,
            accepted=result.accepted,
            failed=result.failed,
            now_us=self._tick(),
        )
        for request_id, tokens, reason, cached, row in done.entries():
            scored = result.logprobs[row] if result.logprobs else None
            index = request_id - first_id
            run.tokens[index].extend(tokens)
            run.logprobs[index].extend((scored or ())[: len(tokens)])
            if cached >= 0:
                run.cached_tokens[index] = cached
            if reason:
                run.reasons[index] = _reason(reason)
                self.executor.remove_request(request_id)
                if self.drafting is not None:
                    self.drafting.forget(request_id)
        if self.drafting is not None:
            self.drafting.committed(plan, result, done, 1e-3)


def graph_settings(simulated: SimulatedParts, binder: Any) -> GraphSettings:
    """Return the settings of graphs on the simulated device."""
    to_fail = [size in simulated.fails_at for size in reversed(simulated.graph_sizes)]

    def capture(work: Callable[[], None]) -> DeviceGraph:
        if not simulated.samples and to_fail.pop(0):
            raise EngineError("planned failure")
        return record(work)

    return GraphSettings(
        sizes=simulated.graph_sizes,
        max_bytes=simulated.max_bytes,
        capture=capture,
        samples=simulated.samples,
        shares=simulated.shares,
        prepare=binder.bind(ops.step.prepare),
        patch=binder.bind(ops.step.patch_tables),
    )


def capture_pieces(
    executor: Executor, simulated: SimulatedParts, model: Any, config: Any, binder: Any
) -> None:
    """Let an executor capture steps in pieces on the simulated device."""
    numbers = count()

    def capture(work: Callable[[], None]) -> DeviceGraph:
        if next(numbers) in simulated.piece_fails_at:
            raise EngineError("planned failure")
        return record(work)

    executor.capture_pieces(
        runner_of(model, config, binder, dtype="float32"),
        sizes=simulated.piece_sizes,
        max_bytes=simulated.max_piece_bytes,
        capture=capture,
    )


def build_parts(
    path: Path,
    *,
    block_tokens: int = 16,
    num_blocks: int = 128,
    max_running: int = 8,
    max_step_tokens: int = 64,
    max_context_tokens: int = 512,
    depth: int = 0,
    keep_packed: bool = False,
    plugins: Sequence[str] = ("reference",),
    prefix_cache: bool = True,
    poison: bool = False,
    speculator: Speculator | None = None,
    max_drafts: int = 5,
    simulated: SimulatedParts | None = None,
    link: HostLink | None = None,
) -> Parts:
    """Load a checkpoint and join the planes; the pool has `num_blocks` usable physical blocks.

    Args:
        speculator: all of its drafts are verified, whether they pay or not.
        simulated: compute with what the simulated device computes with.
        link: to a device that is never waited for by the sampler; None: the host.
    """
    registry = load_plugins(tuple(plugins), role="engine")
    source = _open(registry, path)
    config = source.config()
    model_class: Any = resolve_architecture(registry, config)
    groups = model_class.cache_groups(config)
    kind = "cpu" if simulated is None else "sim"
    binder = KernelRegistry(registry).binder({"device": kind, "dtype": "float32"})
    load_attention: Any = _offer(registry, "attention").load
    if simulated is not None:
        load_attention = partial(simulated.attention, nan_every=0)
    attention = {
        group.name: load_attention(
            num_heads=config["num_attention_heads"],
            num_kv_heads=group.fields[0].shape[0],
            head_dim=group.fields[0].shape[1],
            **({"v_head_dim": group.value_dim} if group.value_dim else {}),
            block_tokens=block_tokens,
            dtype=torch.float32,
            device=CPU,
        )
        for group in groups
        if group.kind != "state"
    }
    moe = bound_moe(registry, model_class, config)
    if simulated is not None:
        moe = {
            group.name: Experts(group, dtype=torch.float32, device=CPU)
            for group in expert_groups_of(model_class, config)
        }
    model = model_class(
        config, ModelContext(binder, attention, torch.float32, CPU, max_context_tokens, moe)
    )
    load_weights(
        model, source, dtype=torch.float32, device=torch.device("cpu"), keep_packed=keep_packed
    )
    source.close()
    paged = simulated is not None and simulated.page_tokens
    demands = {
        name: CacheDemand(simulated.page_tokens, fields=tuple(field.name for field in fields))
        for name, fields in ((group.name, group.fields) for group in groups)
        if paged and name in attention
    }
    layout = layout_of(groups, block_tokens=block_tokens, num_blocks=num_blocks, demands=demands)
    storage = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    load_sampler = _offer(registry, "sampler").load if simulated is None else Sampler
    executor = Executor(
        model,
        arena=Arena(layout, storage),
        attention=attention,
        sampler=load_sampler(
            device=CPU, vocab_size=config["vocab_size"], **({"looks": False} if link else {})
        ),
        max_running=max_running,
        max_context_tokens=max_context_tokens,
        block_tokens=block_tokens,
        vocab_size=config["vocab_size"],
        link=link or InlineLink(CPU),
        poison=poison,
    )
    if simulated is not None and simulated.graph_sizes:
        executor.capture_graphs(graph_settings(simulated, binder))
    if simulated is not None and simulated.piece_sizes:
        capture_pieces(executor, simulated, model, config, binder)
    scheduler = Scheduler(
        SchedulerConfig(
            block_tokens=block_tokens,
            groups=[
                GroupSpec(
                    name=group.name,
                    kind=group.kind,
                    packing=group.packing,
                    window=group.group.window,
                    speculation=group.group.speculation.replace("none", "replay"),
                )
                for group in layout.groups
            ],
            num_physical_blocks=layout.num_physical_blocks,
            max_running=max_running,
            max_waiting=64,
            max_step_tokens=max_step_tokens,
            max_context_tokens=max_context_tokens,
            depth=depth,
            prefix_cache=prefix_cache,
        )
    )
    drafting = None
    if speculator is not None:
        drafting = Drafting(
            speculator,
            "tests/speculator",
            scheduler,
            max_drafts=max_drafts,
            max_step_tokens=max_step_tokens,
            adapts=False,
        )
    return Parts(scheduler, executor, depth, layout.physical_bytes, drafting)


def layout_of(
    groups: Sequence[CacheGroup],
    *,
    block_tokens: int,
    num_blocks: int,
    demands: Mapping[str, CacheDemand] | None = None,
) -> ArenaLayout:
    """Return the layout with `num_blocks` usable physical blocks; their size follows the arena's.

    A small arena has small blocks, so the size is looked for from the largest down.
    """
    physical_bytes = 0
    arena_bytes = 2**30
    while True:
        layout = solve_layout(
            groups,
            block_tokens=block_tokens,
            dtype="float32",
            arena_bytes=arena_bytes,
            demands=demands or {},
        )
        if layout.physical_bytes == physical_bytes:
            assert layout.num_physical_blocks == num_blocks + 1
            return layout
        physical_bytes = layout.physical_bytes
        arena_bytes = physical_bytes * (num_blocks + 1)


def _open(registry: Registry, path: Path) -> Any:
    formats = [item.offer.load() for item in registry.offers("weight_format")]  # type: ignore[call-arg]
    return next(item for item in formats if item.matches(path)).open(path)


def _offer(registry: Registry, slot: str) -> Any:
    return registry.offers(slot)[0].offer


def _reason(index: int) -> str:
    from tokenspeed._core import FINISH_REASONS

    return FINISH_REASONS[index]
