"""The workloads: decode, prefill, long contexts, agents' sessions, second turns.

Each returns figures by name. Lengths are divided by `scale`, where a small machine tries the whole
path.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.device.driver import Run, steady_tokens_per_s
from benchmarks.device.steps import steps

if TYPE_CHECKING:
    from benchmarks.device.driver import Driver

    Figures = dict[str, float]

BATCHES = (1, 8, 32, 128)
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of every part of the workloads.

    Args:
        scale: 1 for the real ones.
    """

    scale: int = 1

    def of(self, tokens: int) -> int:
        """Return a length, scaled."""
        return max(8, tokens // self.scale)


def decode(driver: Driver, lengths: Lengths) -> Figures:
    """Tokens a second of batches that decode together: 512 in, 256 out, the steady part."""
    figures = {}
    driver.batch([driver.prompt(lengths.of(512)) for _ in range(4)], 16)
    for batch in BATCHES:
        rates = []
        for _ in range(REPEATS):
            prompts = [driver.prompt(lengths.of(512)) for _ in range(batch)]
            rates.append(steady_tokens_per_s(driver.batch(prompts, lengths.of(256))))
        figures[f"decode, batch {batch}"] = median(rates)
    return figures


def prefill(driver: Driver, lengths: Lengths) -> Figures:
    """Prompt tokens a second of 32 prompts of 4,096 tokens; milliseconds to a lone first token."""
    figures = {}
    rates = []
    for _ in range(2):
        prompts = [driver.prompt(lengths.of(4096)) for _ in range(32)]
        runs = driver.batch(prompts, 1)
        took_s = max(run.arrivals[-1][0] for run in runs) - runs[0].started_s
        rates.append(sum(map(len, prompts)) / took_s)
    figures["prefill, 32 x 4096"] = max(rates)
    for length in (512, 4096, 16384):
        times = []
        for _ in range(REPEATS):
            times += [run.ttft_s for run in driver.batch([driver.prompt(lengths.of(length))], 1)]
        figures[f"first token alone, {length} tokens"] = min(times) * 1e3
    return figures


def long(driver: Driver, lengths: Lengths) -> Figures:
    """Milliseconds a token of one request, by the length of its context."""
    figures = {}
    for length in (8192, 32768, 131072):
        (run,) = driver.batch([driver.prompt(lengths.of(length))], lengths.of(160))
        figures[f"token at {length // 1024}k"] = 1e3 / run.tokens_per_s
    return figures


def agents(driver: Driver, lengths: Lengths) -> Figures:
    """16 sessions of 5 turns on a warm 32k prefix that they share, and on 16 different ones."""
    return _sessions(driver, lengths, shared=True) | _sessions(driver, lengths, shared=False)


def second_turn(driver: Driver, lengths: Lengths) -> Figures:
    """Milliseconds to the first token of a second turn behind 32k tokens; share of the first's."""
    firsts, seconds = [], []
    for _ in range(REPEATS):
        (first,) = driver.batch([driver.prompt(lengths.of(32768))], lengths.of(64))
        again = np.concatenate([first.prompt, first.tokens, driver.prompt(lengths.of(512))])
        (second,) = driver.batch([again.astype(np.int32)], lengths.of(64))
        firsts.append(first.ttft_s)
        seconds.append(second.ttft_s)
    return {
        "second turn at 32k": median(seconds) * 1e3,
        "second turn at 32k, share of the first": median(seconds) / median(firsts),
    }


WORKLOADS = {
    "decode": decode,
    "prefill": prefill,
    "long": long,
    "agents": agents,
    "second_turn": second_turn,
    "steps": steps,
}

SESSIONS, TURNS = 16, 5
PREFIX, GROWTH, ANSWER = 32768, 1024, 300


def _sessions(driver: Driver, lengths: Lengths, *, shared: bool) -> Figures:
    prefix, growth, answer = map(lengths.of, (PREFIX, GROWTH, ANSWER))
    growth = max(growth, answer + 8)
    common = driver.prompt(prefix)
    if shared:
        driver.batch([common], 1)

    def go_on(run: Run) -> None:
        if run.turn + 1 < TURNS:
            parts = [run.prompt, run.tokens, driver.prompt(growth - answer)]
            prompt = np.concatenate(parts).astype(np.int32)
            driver.submit(prompt, answer, session=run.session, turn=run.turn + 1)

    for session in range(SESSIONS):
        own = common if shared else driver.prompt(prefix)
        driver.submit(np.concatenate([own, driver.prompt(growth)]), answer, session=session)
    runs = driver.drive(go_on)
    later = [run for run in runs if run.turn]
    kind = "one prefix" if shared else "16 prefixes"
    hits = sum(run.cached_tokens for run in runs) / sum(len(run.prompt) for run in runs)
    return {
        f"agents, {kind}: tokens/s per user": mean(run.tokens_per_s for run in later),
        f"agents, {kind}: first token": median(run.ttft_s for run in later) * 1e3,
        f"agents, {kind}: prompt tokens from the cache": hits,
    }
