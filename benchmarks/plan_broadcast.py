"""`python -m benchmarks.plan_broadcast`: how long a plan takes from the scheduler to another rank.

One plan of 256 decoding sequences goes to readers in other processes every two milliseconds, so
that they sleep in between as workers do. A figure is the median from before the plan is encoded to
after the last reader has decoded it. Beside it: the same arrays, pickled, over pipes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.results_file import Row, merge_rows

from tokenspeed.engine.ranks.plans import (
    END,
    RingReceiver,
    RingSender,
    make_ring_memory,
    map_ring_memory,
)
from tokenspeed.scheduler import (
    GroupSpec,
    PlanDecoder,
    PlanEncoder,
    Scheduler,
    SchedulerConfig,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SEQUENCES, PROMPT_TOKENS = 256, 64
SENDS, WARM_UP, PAUSE_S = 1000, 100, 0.002
COMMAND = "python -m benchmarks.plan_broadcast"
ARRAYS = (
    "request_ids", "slots", "query_start", "context_tokens", "output_index", "token_ids",
    "admitted", "block_updates", "copies", "state_rows", "num_drafts",
)  # fmt: skip


def decode_plan() -> Any:
    """Return a plan in which all sequences decode, a few of them into a new block."""
    config = SchedulerConfig(
        block_tokens=16,
        groups=[GroupSpec(name="full", kind="full", packing=1)],
        num_physical_blocks=4 * SEQUENCES * PROMPT_TOKENS // 16,
        max_running=SEQUENCES,
        max_waiting=SEQUENCES,
        max_step_tokens=SEQUENCES * PROMPT_TOKENS,
        max_context_tokens=4096,
    )
    scheduler = Scheduler(config)
    for number in range(SEQUENCES):
        prompt = np.arange(number, number + PROMPT_TOKENS - number % 16, dtype=np.int32)
        scheduler.submit(number + 1, prompt, max_new_tokens=100, now_us=1)
    for step in range(2, 6):
        plan = scheduler.plan(now_us=step)
        assert plan is not None
        if plan.num_decode_rows == SEQUENCES:
            return plan
        tokens = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
        scheduler.commit(plan.step_id, tokens, now_us=step)
    raise AssertionError("the sequences do not decode together")


def read_ring(descriptor: int, num_readers: int, reader: int, results: Connection) -> None:
    """Note when each plan is decoded."""
    receiver = RingReceiver(map_ring_memory(descriptor, num_readers), num_readers, reader)
    decoder, times = PlanDecoder(), []
    while message := receiver.receive():
        plan, _ = decoder.decode(message)
        times.append(time.monotonic_ns())
        assert plan.num_rows == SEQUENCES
    results.send(times)


def time_ring(plan: Any, num_readers: int) -> float:
    """Return the median time in us to the last of so many readers."""
    descriptor = make_ring_memory(num_readers)
    os.set_inheritable(descriptor, True)
    pipes = [multiprocessing.Pipe() for _ in range(num_readers)]
    readers = [
        multiprocessing.Process(
            target=read_ring, args=(descriptor, num_readers, reader, pipes[reader][1])
        )
        for reader in range(num_readers)
    ]
    for process in readers:
        process.start()
    sender = RingSender(map_ring_memory(descriptor, num_readers), num_readers, lambda: None)
    encoder, nothing, sent = PlanEncoder(), np.empty(0, np.int32), []
    for _ in range(SENDS + WARM_UP):
        time.sleep(PAUSE_S)
        sent.append(time.monotonic_ns())
        sender.send(encoder.encode(plan, nothing))
    sender.send(END)
    arrived = [pipe[0].recv() for pipe in pipes]
    for process in readers:
        process.join()
    os.close(descriptor)
    return _median_us(sent, [max(times) for times in zip(*arrived, strict=True)])


def read_pipe(plans: Connection, results: Connection) -> None:
    """Note when each pickled plan is there."""
    times = []
    while message := plans.recv_bytes():
        pickle.loads(message)
        times.append(time.monotonic_ns())
    results.send(times)


def time_pickles(plan: Any) -> float:
    """Return the median time in us of the same arrays, pickled, to one reader."""
    ours, theirs = multiprocessing.Pipe()
    results, their_results = multiprocessing.Pipe()
    reader = multiprocessing.Process(target=read_pipe, args=(theirs, their_results))
    reader.start()
    sent = []
    for _ in range(SENDS + WARM_UP):
        time.sleep(PAUSE_S)
        sent.append(time.monotonic_ns())
        ours.send_bytes(pickle.dumps({name: getattr(plan, name) for name in ARRAYS}))
    ours.send_bytes(b"")
    times = results.recv()
    reader.join()
    return _median_us(sent, times)


def _median_us(sent: list[int], arrived: list[int]) -> float:
    pairs = list(zip(sent, arrived, strict=True))[WARM_UP:]
    return statistics.median((there - here) / 1000 for here, there in pairs)


def main() -> None:
    """Measure and write the rows."""
    multiprocessing.set_start_method("fork")
    plan = decode_plan()
    pickled_us = time_pickles(plan)
    rows = []
    for num_readers in (1, 3):
        value_us = time_ring(plan, num_readers)
        print(f"{num_readers} readers: {value_us:.1f} us; pickled, 1 reader: {pickled_us:.1f} us")
        rows.append(
            Row(
                group="ranks",
                name=f"plan of {SEQUENCES} sequences to {num_readers} ranks, median",
                value=round(value_us, 1),
                unit="us",
                better="lower",
                command=COMMAND,
                peer="pickled arrays over a pipe, 1 rank",
                peer_value=round(pickled_us, 1),
                peer_date=time.strftime("%Y-%m-%d"),
                ratio=round(pickled_us / value_us, 2),
                target="< 50 us on one host" if num_readers == 1 else "",
            )
        )
    merge_rows(rows, {})


if __name__ == "__main__":
    main()
