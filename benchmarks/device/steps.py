"""Where the time of decode steps goes: kernels by name, gaps between them, and the host's share.

Kernels are timed by the device's own records; the host's time is that of turns whose waits for the
device are taken off, measured without the recording.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.device.driver import Driver
    from benchmarks.device.workloads import Lengths

BATCHES = (1, 8, 32, 64, 128)
CONTEXT, BEFORE, COUNTED = 512, 24, 32
"""Prompt tokens; steps before the counting begins; steps that are counted."""
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
        kernels, busy_us, span_us, num_steps = _recorded(driver)
        driver.drive()
        print(f"-- batch {batch}: step {step_us:,.0f} us, host {host_us:,.0f} us; recorded steps")
        _show(kernels, span_us, num_steps)
        idle = max(0.0, 1 - busy_us / span_us)
        figures[f"host time of a decode step, batch {batch}"] = host_us
        figures[f"share of a decode step without a kernel, batch {batch}"] = idle
    return figures


def _host_time(driver: Driver) -> tuple[float, float]:
    """Return the microseconds of a turn without its waits for the device, and with them."""
    import torch

    waited = [0.0]
    plain = torch.cuda.Event.synchronize

    def synchronize(event: torch.cuda.Event) -> None:
        begun = time.perf_counter()
        plain(event)
        waited[0] += time.perf_counter() - begun

    torch.cuda.Event.synchronize = synchronize  # type: ignore[method-assign]
    try:
        begun = time.perf_counter()
        for _ in range(COUNTED):
            driver.turn()
        took = time.perf_counter() - begun
    finally:
        torch.cuda.Event.synchronize = plain  # type: ignore[method-assign]
    return (took - waited[0]) / COUNTED * 1e6, took / COUNTED * 1e6


def _recorded(driver: Driver) -> tuple[dict[str, list[float]], float, float, int]:
    """Return kernels' microseconds by name, of any kernel and from first to last, and the steps."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(COUNTED):
            driver.turn()
        torch.cuda.synchronize()
    found: list[Any] = [event for event in profile.events() if event.device_type.name == "CUDA"]
    found.sort(key=lambda event: event.time_range.start)
    kernels: dict[str, list[float]] = defaultdict(list)
    busy, last = 0.0, found[0].time_range.start
    for event in found:
        kernels[event.name].append(event.time_range.end - event.time_range.start)
        busy += max(0.0, event.time_range.end - max(last, event.time_range.start))
        last = max(last, event.time_range.end)
    return dict(kernels), busy, last - found[0].time_range.start, COUNTED


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
