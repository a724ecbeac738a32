"""One engine in this process, driven turn by turn; every token's arrival is noted."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.config import load_config
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.messages import Refused, TokensOut
from tokenspeed.engine.submits import make_submit
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

MODELS = Path(__file__).parent / "models"
FIRST_ID = 10
"""Token ids below are left alone: some are special."""


@dataclass(slots=True)
class Run:
    """One request and when its tokens came.

    Args:
        session: of the caller's.
        arrivals: (seconds, tokens) of each delivery.
    """

    prompt: NDArray[np.int32]
    session: int = 0
    turn: int = 0
    started_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0][0] - self.started_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second behind the first delivery."""
        (first_s, first), (last_s, _) = self.arrivals[0], self.arrivals[-1]
        return (sum(count for _, count in self.arrivals) - first) / (last_s - first_s)


def write_model(name: str, folder: Path, scale: int = 1, **changes: Any) -> Path:
    """Write the folder of a published model with random weights and a tokenizer of its size.

    Args:
        name: of a file in `models/`.
        scale: widths and counts are divided by it, to run where the model would not fit.
        changes: to config.json.
    """
    from tokenizers import Tokenizer, models

    config = json.loads((MODELS / f"{name}.json").read_text())
    if scale > 1:
        config = _scaled(config, scale)
    config |= changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"<{index}>": index for index in range(config["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="<0>")).save(str(folder / "tokenizer.json"))
    return folder


class Driver:
    """Sends requests of token ids and takes their tokens.

    Args:
        channel: between both; None: one of its own.
        settings: of the engine, such as plugins="nvidia".
    """

    def __init__(
        self, model: Path, *, channel: LocalChannel | None = None, **settings: Any
    ) -> None:
        flags = {"model": str(model), **settings}
        config = load_config(EngineConfig, flags=flags, environ={})
        started_s = time.perf_counter()
        self.engine = build_engine(config, progress=None)
        self.started_in_s = time.perf_counter() - started_s
        self.channel = channel or LocalChannel()
        self.loop = EventLoop(self.engine, self.channel)
        self._runs: dict[str, Run] = {}
        self._ran = False
        self._count = 0
        self._random = random.Random(7)

    def prompt(self, num_tokens: int) -> NDArray[np.int32]:
        """Return random token ids, never the same ones twice."""
        import numpy as np

        rng = np.random.default_rng(self._random.getrandbits(64))
        top = self.engine.info.vocab_size
        return rng.integers(FIRST_ID, top, num_tokens, dtype=np.int32)

    def submit(
        self, prompt: NDArray[np.int32], max_tokens: int, *, session: int = 0, turn: int = 0
    ) -> Run:
        """Start a greedy request of exactly so many tokens."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request_id = f"r{self._count}"
        self._count += 1
        run = Run(prompt, session, turn)
        submit = make_submit(self.engine.info, prompt, params, request_id, epoch=1)
        self._runs[request_id] = run
        run.started_s = time.perf_counter()
        self.channel.inbox.append(submit)
        return run

    def drive(self, on_done: Callable[[Run], None] | None = None) -> list[Run]:
        """Turn until every request has ended; `on_done` may submit more.

        Raises:
            RuntimeError: a request was refused, failed or came short.
        """
        done: list[Run] = []
        while self._runs:
            done += self.turn(on_done)
        return done

    def turn(self, on_done: Callable[[Run], None] | None = None) -> list[Run]:
        """Turn the step loop once and take what came; return the requests that ended.

        Raises:
            RuntimeError: a request was refused, failed or came short.
        """
        done: list[Run] = []
        self._ran = self.loop.turn(self.loop.wait_ms(self._ran))
        now_s = time.perf_counter()
        while self.channel.outbox:
            message = self.channel.outbox.popleft()
            if isinstance(message, Refused):
                raise RuntimeError(f"refused: {message}")
            if isinstance(message, TokensOut):
                for delta in message.deltas:
                    self._take(delta, now_s, done, on_done)
        return done

    def all_have(self, num_tokens: int) -> bool:
        """Say whether every request that runs has had so many tokens."""
        return all(len(run.tokens) >= num_tokens for run in self._runs.values())

    def batch(self, prompts: Sequence[NDArray[np.int32]], max_tokens: int) -> list[Run]:
        """Run requests that start together."""
        for prompt in prompts:
            self.submit(prompt, max_tokens)
        return self.drive()

    def close(self) -> None:
        """Give the engine's memory back."""
        self.loop.flush()
        self.channel.close()
        self.engine.close()
        del self.loop, self.engine

    def _take(
        self, delta: Any, now_s: float, done: list[Run], on_done: Callable[[Run], None] | None
    ) -> None:
        run = self._runs[delta.request_id]
        if delta.tokens:
            run.arrivals.append((now_s, len(delta.tokens)))
            run.tokens += delta.tokens
        run.cached_tokens = max(run.cached_tokens, delta.cached_tokens)
        if delta.finish_reason is None:
            return
        if delta.finish_reason != "length":
            raise RuntimeError(f"{delta.request_id} ended with {delta.finish_reason}: {delta}")
        del self._runs[delta.request_id]
        done.append(run)
        if on_done is not None:
            on_done(run)


def steady_tokens_per_s(runs: Sequence[Run]) -> float:
    """Return the rate from when the last request began to when the first ended.

    Raises:
        ValueError: they never ran together; longer answers would.
    """
    begin_s = max(run.arrivals[0][0] for run in runs)
    end_s = min(run.arrivals[-1][0] for run in runs)
    if end_s <= begin_s:
        raise ValueError(f"{len(runs)} requests never decoded all at once; give a smaller --scale")
    counted = sum(n for run in runs for at_s, n in run.arrivals if begin_s < at_s <= end_s)
    return counted / (end_s - begin_s)


_WIDTHS = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "vocab_size",
)
_COUNTS = ("num_hidden_layers", "num_experts", "n_routed_experts")


def _scaled(config: dict[str, Any], scale: int) -> dict[str, Any]:
    """Return a model of the same build, for machines on which the real one does not run."""
    small = dict(config)
    for name in _WIDTHS:
        if name in small:
            small[name] = max(64, small[name] // scale // 32 * 32)
    for name in _COUNTS:
        if name in small:
            small[name] = max(8 if "expert" in name else 4, small[name] // scale)
    if "num_experts_per_tok" in small:
        small["num_experts_per_tok"] = 2
    for name in ("bos_token_id", "eos_token_id"):
        small[name] = 1
    return small
