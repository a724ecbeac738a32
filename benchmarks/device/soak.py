"""Thousands of mixed requests through one engine; what they may not leave behind is counted.

    python -m benchmarks.device.soak [--requests N] [--plugins NAMES]

Short and long prompts, shared beginnings, second turns, greedy and drawn, penalties, stops; some
are aborted, some lose their client, some read a token whose embedding is NaN. The pool is smaller
than what runs at once, so that requests are retracted. Whenever nothing is live, no block is held
but the prefix cache's, which has none either when their sessions are released, but for the tails
of requests that were retracted; memory stays.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.device.__main__ import COMMIT, machine_name, versions
from benchmarks.device.driver import Driver, write_model
from benchmarks.device.soak_requests import POISON, Asked, Clients, Maker, SoakError
from benchmarks.results_file import Row, merge_rows

from tokenspeed.engine.channel import LOCAL_CLIENT
from tokenspeed.engine.messages import (
    Abort,
    Refused,
    SessionRelease,
    SessionReply,
    Terms,
    TokensOut,
)
from tokenspeed.engine.submits import make_submit
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from tokenspeed.engine.messages import Delta

NUM_REQUESTS = 10_000
LONGEST_TOKENS = 8192
KV_GIB = 0.4
"""About 200 blocks of the model below: less than what runs at once may want."""
IN_FLIGHT = 96
NUM_PHASES = 10
NUM_SAMPLES = 40
"""Greedy requests that are asked again, alone."""
NEAR_TIES = {"float32": 2e-3, "bfloat16": 0.1}
"""Difference of the best two logits below which rounding may choose, for logits that deviate by
about one."""
MEMORY_SLACK_BYTES = 1 << 20
"""That device memory may grow by after the first phase."""
RSS_SLACK_BYTES = 256 << 20
"""That the process may grow by: allocators of the host keep what they once had."""
OWNER = "soak"


class Soak:
    """Keeps requests in flight until so many have ended.

    Args:
        driver: with a channel of `Clients` and a model whose token POISON reads as NaN.
    """

    def __init__(self, driver: Driver, *, longest_tokens: int, dtype: str, seed: int = 1) -> None:
        assert isinstance(driver.channel, Clients)
        self._driver = driver
        self._channel = driver.channel
        self._maker = Maker(driver.engine.info.vocab_size, longest_tokens, seed=seed)
        self._near_tie = NEAR_TIES[dtype]
        self._live: dict[str, Asked] = {}
        self._samples: list[Asked] = []
        self._sessions: list[str] = []
        self._retractions = 0
        self._most_cached = 0
        self._turn = 0
        self._count = 0
        self.reasons: Counter[str] = Counter()

    def run(self, num_requests: int) -> dict[str, float]:
        """Send all of them; return figures.

        Raises:
            SoakError: something was left behind or ended wrongly.
        """
        started_s = time.perf_counter()
        memory, rss = [], []
        for phase in range(1, NUM_PHASES + 1):
            self._phase(num_requests * phase // NUM_PHASES)
            self.check_idle()
            self._flush()
            gc.collect()
            memory.append(_device_bytes())
            rss.append(_rss_bytes())
        took_s = time.perf_counter() - started_s
        stats = self._driver.engine.scheduler.stats()
        num_same, num_sure = self._ask_samples_again()
        self._flush()
        counts = self._driver.engine.scheduler.stats()
        _require(memory[-1] <= memory[0] + MEMORY_SLACK_BYTES, f"device bytes grew: {memory}")
        _require(rss[-1] <= rss[0] + RSS_SLACK_BYTES, f"bytes of the process grew: {rss}")
        return {
            "requests": float(sum(self.reasons.values())),
            "requests a second": num_requests / took_s,
            "retractions": float(stats["retractions"]),
            "prompt tokens from the cache": stats["cached_tokens"] / stats["prompt_tokens"],
            "tokens equal to those alone": float(num_same),
            "tokens compared": float(num_sure),
            "blocks held when idle": float(counts["blocks_used"]),
            "most blocks cached after the release": float(self._most_cached),
            "device bytes gained": float(memory[-1] - memory[0]),
            "process bytes gained": float(rss[-1] - rss[0]),
            **{f"ended with {reason}": float(n) for reason, n in sorted(self.reasons.items())},
        }

    def _phase(self, until: int) -> None:
        while self._count < until or self._live or self._driver.engine.scheduler.has_work():
            while self._count < until and len(self._live) < IN_FLIGHT:
                self.submit(self._maker.make(self._count, self._turn))
            self._meet_fates()
            self._driver.loop.turn(0)
            self._turn += 1
            self._take()

    def submit(self, request: Asked, *, salt: bytes = b"") -> None:
        info = self._driver.engine.info
        terms = Terms(session=request.request_id, owner=OWNER, salt=salt)
        self._sessions.append(request.request_id)
        submit = make_submit(
            info, request.prompt, request.params, request.request_id, epoch=1, terms=terms
        )
        self._count += 1
        self._live[request.request_id] = request
        self._channel.posted.append((request.client, submit))

    def _meet_fates(self) -> None:
        met = [item for item in self._live.values() if item.fate and item.fate_turn <= self._turn]
        for request in met:
            if request.fate == "abort":
                self._channel.posted.append((request.client, Abort(request.request_id)))
            else:
                self._channel.gone.add(request.client)
            self.reasons[request.fate] += 1
            del self._live[request.request_id]

    def _take(self) -> None:
        while self._channel.outbox:
            message = self._channel.outbox.popleft()
            if isinstance(message, Refused):
                raise SoakError(f"refused: {message}")
            if isinstance(message, TokensOut):
                for delta in message.deltas:
                    self._take_delta(delta)

    def _take_delta(self, delta: Delta) -> None:
        request = self._live.get(delta.request_id)
        if request is None:  # its fate met it; this was on its way
            return
        request.tokens += delta.tokens
        if delta.finish_reason is None:
            return
        request.reason, request.error = delta.finish_reason, delta.error or ""
        del self._live[request.request_id]
        self.reasons[request.reason] += 1
        request.check()
        if POISON not in (*request.prompt, *request.tokens):
            self._maker.ended.append(request.prompt + request.tokens)
        if request.is_sample and len(self._samples) < NUM_SAMPLES:
            self._samples.append(request)

    def check_idle(self) -> None:
        scheduler = self._driver.engine.scheduler
        scheduler.check_invariants()
        counts = scheduler.stats()
        held = counts["blocks_used"]
        _require(held == 0, f"{held} blocks are held though nothing is live: {counts}")
        _require(len(self._driver.loop.requests) == 0, "requests are still known")

    def _ask_samples_again(self) -> tuple[int, int]:
        """Ask alone; return how many tokens were equal and how many had to be."""
        num_same = num_sure = 0
        for sample in self._samples:
            wanted, gaps = self._alone(sample)
            sure = next((i for i, gap in enumerate(gaps) if gap < self._near_tie), len(gaps))
            same = next(
                (i for i, (a, b) in enumerate(zip(wanted, sample.tokens, strict=True)) if a != b),
                len(wanted),
            )
            _require(same >= sure, f"{sample.request_id}: token {same} differs, {gaps[same:][:1]}")
            num_same, num_sure = num_same + same, num_sure + sure
        _require(num_sure > 0, "no token of the samples was sure")
        return num_same, num_sure

    def _alone(self, sample: Asked) -> tuple[list[int], list[float]]:
        params = SamplingParams(
            temperature=0.0, max_tokens=len(sample.tokens), ignore_eos=True, logprobs=2
        )
        request_id = f"alone{self._count}"
        self.submit(Asked(request_id, sample.prompt, params), salt=request_id.encode())
        tokens, gaps = [], []
        while request_id in self._live:
            self._driver.loop.turn(0)
            while self._channel.outbox:
                message = self._channel.outbox.popleft()
                for delta in message.deltas if isinstance(message, TokensOut) else ():
                    tokens += delta.tokens
                    scores = delta.logprobs or ()
                    gaps += [score.top[0][1] - score.top[1][1] for score in scores]
                    if delta.finish_reason is not None:
                        del self._live[request_id]
        return tokens, gaps

    def _flush(self) -> None:
        """Release every session.

        Raises:
            SoakError: blocks stay.
        """
        for number, session in enumerate(self._sessions):
            asked = SessionRelease(query_id=number, owner=OWNER, session=session)
            self._channel.posted.append((LOCAL_CLIENT, asked))
        left = len(self._sessions)
        while left > 0:
            self._driver.loop.turn(0)
            left -= sum(isinstance(message, SessionReply) for message in self._channel.outbox)
            self._channel.outbox.clear()
        self._sessions.clear()
        self.check_idle()
        counts = self._driver.engine.scheduler.stats()
        # A retracted request may leave a tail beside the path of its turn; it is evicted in time.
        most = counts["retractions"] - self._retractions
        self._retractions = counts["retractions"]
        _require(counts["blocks_cached"] <= most, f"released sessions left blocks: {counts}")
        self._most_cached = max(self._most_cached, counts["blocks_cached"])


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SoakError(otherwise)


def _device_bytes() -> int:
    """Return what PyTorch has handed out on the device; 0 where there is none."""
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    """Soak a small random model; the exit status is 1 when something was left behind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device.soak")
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--plugins", default="sdk,nvidia,reference")
    parser.add_argument("--dtype", default="bfloat16", choices=NEAR_TIES)
    parser.add_argument("--kv-gib", type=float, default=KV_GIB)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--keep", action="store_true", help="write the figures to the results")
    given = parser.parse_args()
    settings = {"plugins": given.plugins, "dtype": given.dtype, "kv_gib": given.kv_gib}
    settings |= {"max_running": 48, "max_step_tokens": 2048, "max_context_tokens": 8448}
    settings |= dict(item.split("=", 1) for item in given.setting)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(
            "qwen3-8b", Path(folder) / "m", scale=8, num_hidden_layers=4, nan_on_token=POISON
        )
        driver = Driver(path, channel=Clients(), **settings)
        soak = Soak(driver, longest_tokens=LONGEST_TOKENS, dtype=given.dtype, seed=given.seed)
        try:
            figures = soak.run(given.requests)
        except SoakError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 1
        finally:
            driver.close()
    for name, value in figures.items():
        print(f"  {name}: {value:,.4g}")
    if given.keep:
        print(f"written to {merge_rows(_rows(figures), versions(), machine=machine_name())}")
    return 0


def _rows(figures: dict[str, float]) -> list[Row]:
    return [
        Row(
            group="soak",
            name=name,
            value=figures[name],
            unit=unit,
            better=better,
            target=target,
            command='make gpu-check ARGS="--only soak"',
            commit=COMMIT,
        )
        for name, unit, better, target in (
            ("requests", "requests", "higher", "10000"),
            ("requests a second", "requests/s", "higher", ""),
            ("retractions", "retractions", "higher", "1"),
            ("blocks held when idle", "blocks", "lower", "0"),
            ("most blocks cached after the release", "blocks", "lower", ""),
            ("device bytes gained", "bytes", "lower", str(MEMORY_SLACK_BYTES)),
            ("process bytes gained", "bytes", "lower", str(RSS_SLACK_BYTES)),
        )
    ]


if __name__ == "__main__":
    sys.exit(main())
