"""`--tune`: times the candidates of every choice on the model's own shapes, once, and keeps it.

The model is built with watched kernels and backends and answers made-up prompts, then a second turn
of each, whose beginning is cached; then every candidate that passes is timed on what was seen
(`trials.py`). The engine is built anew afterwards, by the measured times. Agents read more than
they write: see PROMPT_TOKENS_PER_OUTPUT.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenspeed.config.load import replace_settings
from tokenspeed.engine.reports import Progress
from tokenspeed.engine.trials import attention_trials, expert_trials, operator_trials
from tokenspeed.engine.watched_choices import WatchedChoices
from tokenspeed.errors import ConfigError, plugin_code, told
from tokenspeed.kernels.evidence import why_not_kept
from tokenspeed.kernels.spying import SpyBinder, Watch, weighed
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.binding import Decision, RegisteredOffer
    from tokenspeed.contracts.device import DeviceRuntime
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.reports import ProgressCallback
    from tokenspeed.engine.trials import Solve, Trial
    from tokenspeed.kernels.evidence import EvidenceFile, ModelEvidence
    from tokenspeed.kernels.rules import Rules
    from tokenspeed.plugins import Registry

PROMPT_TOKENS = 512
TURNS = 2
"""A turn's prompt repeats those before it, and is as much longer as the first."""
OUTPUT_TOKENS = 4
THROUGHPUT_STREAMS = 8
PROMPT_TOKENS_PER_OUTPUT = 10
"""Prompt tokens computed for each token written: agents' turns are long, most of them cached."""
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
    """A watched build; whoever builds fills in what it met on the way.

    Args:
        solve: lays the model's cache out with one more demand of a backend.
    """

    watch: Watch = field(default_factory=Watch)
    evidence: ModelEvidence | None = None
    runtime: DeviceRuntime | None = None
    solve: Solve | None = None
    registry: Registry | None = None
    choices: WatchedChoices | None = None
    binder: SpyBinder | None = None

    def watched_choices(self, config: EngineConfig, registry: Registry) -> WatchedChoices:
        """Return the choices of the watched build."""
        self.registry, self.choices = registry, WatchedChoices(config, registry, self.watch)
        return self.choices

    def watched_binder(self, traits: Mapping[str, object], rules: Rules) -> SpyBinder:
        """Return the binder of the watched build."""
        assert self.registry is not None, "choices come before kernels"
        assert self.choices is not None, "choices come before kernels"
        self.binder = SpyBinder(self.registry, traits, rules, self.watch)
        self.choices.binder = self.binder
        return self.binder


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
        "decode": 1 / (OUTPUT_TOKENS - 1) / num_streams / TURNS,
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
    length = max(1, min(PROMPT_TOKENS, engine.info.max_prompt_tokens - OUTPUT_TOKENS) // TURNS)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for turn in range(1, TURNS + 1):
        for stream in range(num_streams):
            ids = [(17 * i + 101 * stream) % engine.info.vocab_size for i in range(turn * length)]
            name = f"tune-{turn}-{stream}"
            channel.inbox.append(make_submit(engine.info, ids, params, name, epoch=1))
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


@dataclass(frozen=True, slots=True)
class _Work:
    """The trials of one request, and who takes part."""

    request: str
    trials: tuple[Trial, ...]
    finalists: tuple[RegisteredOffer[Any], ...]


def _measure(tuning: Tuning, weights: Mapping[str, float], tell: ProgressCallback) -> None:
    """Time each candidate on each shape that it was not tried on."""
    evidence = tuning.evidence
    assert evidence is not None, "the watched engine says where its evidence belongs"
    file, works = evidence.file, list(_works(tuning))
    todo = [
        (trial, finalist)
        for work in works
        for trial in work.trials
        for finalist in work.finalists
        if not file.has(trial.shape, finalist.pin)
    ]
    for done, (trial, finalist) in enumerate(todo):
        tell(Progress("tuning", done, len(todo)))
        _try(trial, finalist, file)
    tell(Progress("tuning", len(todo), len(todo)))
    file.models[evidence.model_key] = {
        work.request: [
            (trial.shape, weighed(trial.calls, weights))
            for trial in work.trials
            if _was_timed(trial, file)
        ]
        for work in works
    }
    _check_kept(file.save())
    LOGGER.info("measured %d candidates on this model's shapes: %s", len(todo), file.path)


def _try(trial: Trial, finalist: RegisteredOffer[Any], file: EvidenceFile) -> None:
    """Keep a candidate's time, or why it has none."""
    try:
        with plugin_code():
            file.shapes.setdefault(trial.shape, {})[finalist.pin] = trial.seconds(finalist)
    except Exception as error:
        LOGGER.warning("%s failed when it was timed on %s: %s", finalist.pin, trial.shape, error)
        file.failures.setdefault(trial.shape, {})[finalist.pin] = told(error)


def _was_timed(trial: Trial, file: EvidenceFile) -> bool:
    """Say whether anybody could be timed; if not, the trial is wrong: it refuses nobody.

    One of them has computed this in the watched engine.
    """
    if not file.shapes.get(trial.shape):
        file.failures.pop(trial.shape, None)
        LOGGER.warning("no candidate could be timed on %s; it is left out", trial.shape)
        return False
    return True


def _works(tuning: Tuning) -> Iterator[_Work]:
    choices, binder, registry = tuning.choices, tuning.binder, tuning.registry
    runtime, solve = tuning.runtime, tuning.solve
    assert choices is not None, "the watched engine keeps its choices"
    assert binder is not None, "the watched engine keeps its binder"
    assert registry is not None, "the watched engine keeps its registry"
    assert runtime is not None, "the watched engine keeps its device"
    assert solve is not None, "the watched engine keeps its cache groups"
    wait = runtime.synchronize
    for request, decision in binder.requests.items():
        trials = operator_trials(tuning.watch.samples.get(request, {}), wait)
        offers = registry.kernel_offers(str(decision.record["slot"]))
        yield _Work(request, tuple(trials), tuple(_passing(decision, offers)))
    for slot, attention in choices.attention_backends.items():
        group = slot.partition(".")[2]
        trials = attention_trials(attention, group, choices.texts[slot], runtime, solve)
        finalists = _passing(choices.decisions[slot], registry.offers("attention"))
        yield _Work(choices.requests[slot], tuple(trials), tuple(finalists))
    for slot, experts in choices.expert_backends.items():
        trials = expert_trials(experts, choices.texts[slot], wait)
        finalists = _passing(choices.decisions[slot], registry.offers("moe"))
        yield _Work(choices.requests[slot], tuple(trials), tuple(finalists))


def _passing(
    decision: Decision, offers: tuple[RegisteredOffer[Any], ...]
) -> Iterator[RegisteredOffer[Any]]:
    """Yield the candidates of a decision that pass."""
    passing = {item["offer"] for item in decision.record["candidates"] if not item["clauses"]}
    yield from (offer for offer in offers if offer.pin in passing)
