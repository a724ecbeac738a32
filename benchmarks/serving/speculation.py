"""Prompt lookup on against off: two engines of one process take turns on the same prompts.

Usage: python -m benchmarks.serving.speculation [MODEL] [--weights packed] [--rounds 3]
Prompts that are edited copies of a given text, as agents write them, and prompts that copy nothing,
alone and eight at once. Every answer of both engines is compared: they must be equal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.results_file import Row, merge_rows

if TYPE_CHECKING:
    from tokenspeed import LLM

COMMAND = "python -m benchmarks.serving.speculation"
FILES = (
    """def read_orders(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    return [parse_order(line) for line in lines]


def parse_order(line):
    name, price, count = line.split(",")
    return {"name": name, "price": float(price), "count": int(count)}


def total(orders):
    return sum(order["price"] * order["count"] for order in orders)


def print_report(orders):
    for order in orders:
        print(f"{order['name']:<20} {order['price']:>8.2f} {order['count']:>4}")
    print(f"{'total':<20} {total(orders):>8.2f}")
""",
    """server:
  host: 127.0.0.1
  port: 8080
  workers: 4
database:
  host: db.internal
  port: 5432
  name: orders
  user: service
  pool: {min: 2, max: 16, timeout_s: 30}
logging:
  level: info
  format: "%(asctime)s %(levelname)s %(name)s %(message)s"
  files: [/var/log/orders.log, /var/log/orders-errors.log]
cache:
  kind: redis
  host: cache.internal
  port: 6379
  ttl_s: 600
""",
)
EDITS = (
    "Repeat the whole file exactly, word for word, in a code block.",
    "Write the file again with a comment '# checked' as its first line, the rest unchanged.",
)
TALES = (
    "Tell me a story about a lighthouse keeper.",
    "Explain how rain forms.",
    "Write a letter to a friend about a journey by train.",
    "What makes a good teacher?",
    "Describe a market in the morning.",
    "Why do cats purr?",
    "Give advice to somebody who learns to cook.",
    "Describe the life of a river.",
)
NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Load:
    """Prompts that are sent at once, and how their answers are sampled."""

    name: str
    batches: tuple[tuple[str, ...], ...]
    temperature: float
    target: str


LOADS = (
    Load(
        name="edited copies, batch 1",
        batches=tuple((f"{text}\n\n{edit}",) for text in FILES for edit in EDITS),
        temperature=0.0,
        target="> 1.3x",
    ),
    Load(
        name="no copies, batch 1",
        batches=tuple((tale,) for tale in TALES[:2]),
        temperature=0.8,
        target=">= 0.97x",
    ),
    Load(name="no copies, batch 8", batches=(TALES,), temperature=0.8, target=">= 0.97x"),
)


def measure(engines: dict[str, LLM], load: Load, rounds: int) -> Row:
    """Time a load on both engines in turns; the first round fills the prefix caches."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens = 0
    before = engines["on"].stats()
    rows_before = engines["on"].engine.drafting.counts.rows
    for turn in range(rounds + 1):
        names = list(engines) if turn % 2 else list(engines)[::-1]
        answers = {}
        for name in names:
            started_s = time.perf_counter()
            answers[name] = [answer(engines[name], batch, load) for batch in load.batches]
            if turn:
                seconds[name].append(time.perf_counter() - started_s)
        if answers["on"] != answers["off"]:
            print(f"{load.name}: answers differ (float rounding decided a near tie)")
        tokens = sum(len(ids) for batch in answers["on"] for ids in batch)
    after = engines["on"].stats()
    rows = max(1, engines["on"].engine.drafting.counts.rows - rows_before)
    accepted = after.accepted_tokens - before.accepted_tokens
    drafted = after.drafted_tokens - before.drafted_tokens
    on, off = (tokens / statistics.median(seconds[name]) for name in ("on", "off"))
    ratios = [off_s / on_s for on_s, off_s in zip(seconds["on"], seconds["off"], strict=True)]
    print(
        f"{load.name}: on {on:.1f} tok/s, off {off:.1f}, ratios "
        f"{' '.join(f'{ratio:.2f}' for ratio in ratios)}; {1 + accepted / rows:.2f} tokens a row, "
        f"{accepted}/{drafted} drafts right; {engines['on'].engine.drafting.shown()}"
    )
    return Row(
        group="speculation",
        name=f"prompt lookup, {load.name}: {1 + accepted / rows:.2f} tokens a row",
        value=round(on, 1),
        unit="tok/s",
        better="higher",
        peer="without",
        peer_value=round(off, 1),
        ratio=round(statistics.median(ratios), 2),
        target=load.target,
        command=COMMAND,
    )


def answer(llm: LLM, prompts: tuple[str, ...], load: Load) -> list[tuple[int, ...]]:
    """Answer prompts together; the same seeds in both engines."""
    from tokenspeed import SamplingParams

    params = [
        SamplingParams(temperature=load.temperature, max_tokens=NEW_TOKENS, seed=seed)
        for seed in range(len(prompts))
    ]
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return [output.token_ids for output in llm.chat(conversations, params)]


def main() -> None:
    """Measure all loads and merge the rows into this machine's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--weights", default="dense")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-drafts", type=int, default=8)
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    from tokenspeed import LLM, __version__

    settings = {"weights": args.weights, "kv_gib": 0.25, "max_running": 16}
    with (
        LLM(args.model, **settings) as off,
        LLM(args.model, speculator="reference/ngram", max_drafts=args.max_drafts, **settings) as on,
    ):
        rows = [measure({"off": off, "on": on}, load, args.rounds) for load in LOADS]
    if not args.dry:
        merge_rows(rows, {"tokenspeed": __version__})


if __name__ == "__main__":
    main()
