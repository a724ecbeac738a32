"""Where the time of decode steps goes: kernels by name, gaps between them, and the host's share.

Kernels are timed by the device's own records; the host's time is that of turns whose waits for the
device are taken off, measured without the recording.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tokenspeed.executor.host_link import StreamLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.device.driver import Driver
    from benchmarks.device.workloads import Lengths

    from tokenspeed.executor.host_link import StepEvent

BATCHES = (1, 8, 32, 64, 128)
CONTEXT, BEFORE, COUNTED = 512, 24, 32
"""Prompt tokens; steps before the counting begins; steps that are counted."""
PROMPTS, PROMPT = 8, 4096
SHOWN = 24
NAME_WIDTH = 60


def steps(driver: Driver, lengths: Lengths) -> dict[str, float]:
    """Host microseconds of a decode step, and the share of it in which the device idles."""
    figures: dict[str, float] = {}
    for batch in BATCHES:
        for _ in range(batch):
            driver.submit(driver.prompt(lengths.of(CONTEXT)), BEFORE + 2 * COUNTED + 40)
        while not driver.all_have(BEFORE):
            driver.turn()
        host_us, step_us = _host_time(driver)
        kernels, busy_us, span_us = _recorded(lambda: _turn(driver))
        driver.drive()
        print(f"-- batch {batch}: step {step_us:,.0f} us, host {host_us:,.0f} us; recorded steps")
        _show(kernels, span_us, COUNTED)
        idle = max(0.0, 1 - busy_us / span_us)
        figures[f"host time of a decode step, batch {batch}"] = host_us
        figures[f"share of a decode step without a kernel, batch {batch}"] = idle
    for _ in range(PROMPTS):
        driver.submit(driver.prompt(lengths.of(PROMPT)), 1)
    kernels, _, span_us = _recorded(driver.drive)
    tokens = PROMPTS * lengths.of(PROMPT)
    print(f"-- prefill of {PROMPTS} prompts: {tokens / span_us * 1e6:,.0f} tokens/s")
    _show(kernels, span_us, 1)
    return figures


def _turn(driver: Driver) -> None:
    for _ in range(COUNTED):
        driver.turn()


def _host_time(driver: Driver) -> tuple[float, float]:
    """Return the microseconds of a turn without its waits for the device, and with them."""
    waited = [0.0]
    plain = StreamLink.end

    def end(link: StreamLink) -> StepEvent:
        return _Timed(plain(link), waited)

    with patch.object(StreamLink, "end", end):
        for _ in range(BEFORE // 4):
            driver.turn()
        waited[0] = 0.0
        begun = time.perf_counter()
        _turn(driver)
        took = time.perf_counter() - begun
    return (took - waited[0]) / COUNTED * 1e6, took / COUNTED * 1e6


class _Timed:
    """A step's event that adds up how long it was waited for."""

    def __init__(self, event: StepEvent, waited: list[float]) -> None:
        self._event, self._waited = event, waited

    def query(self) -> bool:
        return self._event.query()

    def synchronize(self) -> None:
        begun = time.perf_counter()
        self._event.synchronize()
        self._waited[0] += time.perf_counter() - begun


def _recorded(work: Callable[[], object]) -> tuple[dict[str, list[float]], float, float]:
    """Return kernels' microseconds by name, those of any kernel, and those from first to last."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    found: list[Any] = [event for event in profile.events() if event.device_type.name == "CUDA"]
    found.sort(key=lambda event: event.time_range.start)
    kernels: dict[str, list[float]] = defaultdict(list)
    busy, last = 0.0, found[0].time_range.start
    for event in found:
        kernels[event.name].append(event.time_range.end - event.time_range.start)
        busy += max(0.0, event.time_range.end - max(last, event.time_range.start))
        last = max(last, event.time_range.end)
    return dict(kernels), busy, last - found[0].time_range.start


def _show(kernels: dict[str, list[float]], span_us: float, num_steps: int) -> None:
    order = sorted(kernels, key=lambda name: -sum(kernels[name]))
    for name in order[:SHOWN]:
        times = kernels[name]
        print(
            f"   {sum(times) / num_steps:9.1f} us a step  {100 * sum(times) / span_us:5.1f} %  "
            f"{len(times) / num_steps:7.1f} x {sum(times) / len(times):8.2f} us  "
            f"{name[:NAME_WIDTH]}"
        )
    total = sum(map(sum, kernels.values()))
    print(f"   {total / num_steps:9.1f} us a step of kernels, span {span_us / num_steps:9.1f} us")
