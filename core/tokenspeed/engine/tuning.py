"""`--tune`: times the candidates of every choice on the model's own shapes, once, and keeps it.

The model is built with watched kernels and answers a made-up prompt; then every candidate that
passes is called with the arguments that were seen. The engine is built anew afterwards, by the
measured times. Agents read more than they write: see PROMPT_TOKENS_PER_OUTPUT.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenspeed.config.load import replace_settings
from tokenspeed.engine.reports import Progress
from tokenspeed.errors import ConfigError
from tokenspeed.kernels.evidence import why_not_kept
from tokenspeed.kernels.registry import load_kernel
from tokenspeed.kernels.spying import Watch, copied, weighed
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.binding import Decision, RegisteredOffer
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.reports import ProgressCallback
    from tokenspeed.kernels.evidence import ModelEvidence
    from tokenspeed.kernels.spying import Sample, SpyBinder
    from tokenspeed.plugins import Registry

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 4
THROUGHPUT_STREAMS = 8
PROMPT_TOKENS_PER_OUTPUT = 10
"""Prompt tokens computed for each token written: agents' turns are long, most of them cached."""
MIN_REPEATS, MAX_REPEATS = 3, 20
ENOUGH_S = 0.05
"""Time spent on one candidate and shape, at least MIN_REPEATS calls."""
_OFF: Mapping[str, Any] = {
    "tune": False,
    "host_kv_gib": 0.0,
    "kv_store": "",
    "kv_events": "",
    "kv_events_replay": "",
    "record": "",
}


@dataclass(slots=True)
class Tuning:
    """A watched build; whoever builds fills in where its evidence belongs and what was bound."""

    watch: Watch = field(default_factory=Watch)
    evidence: ModelEvidence | None = None
    binder: SpyBinder | None = None
    registry: Registry | None = None


def tune(
    config: EngineConfig, tell: ProgressCallback, build: Callable[[EngineConfig, Tuning], Engine]
) -> None:
    """Measure what was not measured before, and keep it on disk.

    Args:
        build: builds a watched engine, and fills in the tuning.
    Raises:
        TokenSpeedError: the engine cannot be built, or the cache folder cannot be written.
    """
    _check_kept(why_not_kept())
    tuning = Tuning()
    engine = build(replace_settings(config, **_OFF), tuning)
    num_streams = THROUGHPUT_STREAMS if config.objective == "throughput" else 1
    try:
        prompt_tokens = _run(engine, tuning.watch, num_streams)
        _measure(tuning, _weights(prompt_tokens, num_streams), tell)
    finally:
        engine.close()


def _check_kept(problem: str) -> None:
    if problem:
        raise ConfigError(
            f"--tune: measured times cannot be kept: {problem}; make the folder writable, set "
            "TOKENSPEED_CACHE_DIR to one that is, or start without --tune"
        )


def _weights(prompt_tokens: int, num_streams: int) -> dict[str, float]:
    """Return what a call of each phase costs an output token."""
    return {
        "prompt": PROMPT_TOKENS_PER_OUTPUT / prompt_tokens,
        "decode": 1 / (OUTPUT_TOKENS - 1) / num_streams,
    }


def _run(engine: Engine, watch: Watch, num_streams: int) -> int:
    """Answer made-up prompts with the watched engine; returns the prompt tokens computed."""
    from tokenspeed.engine.channel import LocalChannel
    from tokenspeed.engine.event_loop import EventLoop
    from tokenspeed.engine.submits import make_submit
    from tokenspeed.sampling.params import SamplingParams

    executor = _Phases(engine.executor, watch)
    channel = LocalChannel()
    loop = EventLoop(replace(engine, executor=executor), channel, epoch=1)
    length = min(PROMPT_TOKENS, engine.info.max_prompt_tokens - OUTPUT_TOKENS)
    vocab_size = engine.info.vocab_size
    for stream in range(num_streams):
        ids = [(17 * index + 101 * stream) % vocab_size for index in range(length)]
        params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        channel.inbox.append(make_submit(engine.info, ids, params, f"tune-{stream}", epoch=1))
    loop.turn(0)
    while len(loop.requests):
        loop.turn(0)
    loop.flush()
    watch.phase = ""
    return executor.prompt_tokens


class _Phases:
    """An executor that tells the watch what kind of step runs."""

    def __init__(self, executor: Any, watch: Watch) -> None:
        self._executor, self._watch = executor, watch
        self.prompt_tokens = 0

    def launch(self, plan: StepPlan) -> None:
        """Run one step."""
        is_prompt = plan.num_tokens > plan.num_rows
        self._watch.phase = "prompt" if is_prompt else "decode"
        if is_prompt:
            self.prompt_tokens += plan.num_tokens
        self._executor.launch(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def _measure(tuning: Tuning, weights: Mapping[str, float], tell: ProgressCallback) -> None:
    """Time each candidate on each shape that has no time yet."""
    evidence, binder = tuning.evidence, tuning.binder
    assert evidence is not None, "the watched engine says where its evidence belongs"
    assert binder is not None, "the watched engine keeps its binder"
    file = evidence.file
    work = [
        (request, shape, sample, finalist)
        for request, decision in binder.requests.items()
        for shape, sample in tuning.watch.samples.get(request, {}).items()
        for finalist in _finalists(decision, tuning)
        if finalist.pin not in file.shapes.get(shape, {})
    ]
    for done, (_, shape, sample, finalist) in enumerate(work):
        tell(Progress("tuning", done, len(work)))
        seconds = time_sample(load_kernel(finalist), sample)
        file.shapes.setdefault(shape, {})[finalist.pin] = seconds
    tell(Progress("tuning", len(work), len(work)))
    file.models[evidence.model_key] = {
        request: [(shape, weighed(sample.calls, weights)) for shape, sample in by_shape.items()]
        for request, by_shape in tuning.watch.samples.items()
    }
    _check_kept(file.save())
    LOGGER.info("measured %d candidates on this model's shapes: %s", len(work), file.path)


def _finalists(decision: Decision, tuning: Tuning) -> Iterator[RegisteredOffer[Any]]:
    """Yield the candidates of a decision that pass."""
    assert tuning.registry is not None
    passing = {item["offer"] for item in decision.record["candidates"] if not item["clauses"]}
    for offer in tuning.registry.kernel_offers(str(decision.record["slot"])):
        if offer.pin in passing:
            yield offer


def time_sample(kernel: Callable[..., Any], sample: Sample) -> float:
    """Return the median seconds of one call with the sample's arguments."""
    import torch

    with torch.inference_mode():
        if sample.prepared is not None:
            args, kwargs = sample.prepared
            kernel = kernel(*args, **kwargs)
        times: list[float] = []
        while len(times) < MIN_REPEATS + 1 or (
            sum(times) < ENOUGH_S and len(times) < MAX_REPEATS + 1
        ):
            args, kwargs = copied(sample.arguments)
            start_s = time.perf_counter()
            kernel(*args, **kwargs)
            times.append(time.perf_counter() - start_s)
    return statistics.median(times[1:])  # the first call warms up
