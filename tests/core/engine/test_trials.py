"""Trials: a candidate is timed on what was seen, however often it is called."""

from __future__ import annotations

from typing import Any

from tokenspeed.engine.trials import time_sample
from tokenspeed.kernels.spying import Sample, Watch


def test_a_sample_is_timed_on_fresh_copies_of_its_arguments() -> None:
    import torch

    watch = Watch()
    watch.phase = "decode"
    x = torch.ones(3)
    watch.note("request", "op", ((x,), {}), None)
    x.zero_()
    ((_, sample),) = watch.samples["request"].items()
    seen: list[float] = []

    def double(x: torch.Tensor) -> None:
        seen.append(float(x.sum()))
        x.mul_(2)

    assert time_sample(double, sample) > 0
    assert set(seen) == {3.0}
    assert sample.calls == {"decode": 1}


def test_a_kernel_that_prepares_another_is_timed_in_what_it_prepared() -> None:
    calls: list[str] = []

    def prepare(name: str) -> Any:
        calls.append(f"prepare {name}")
        return lambda value: calls.append(f"run {value}")

    time_sample(prepare, Sample(((7,), {}), (("w",), {}), {"decode": 1}))
    assert calls[0] == "prepare w"
    assert set(calls[1:]) == {"run 7"}
    assert len(calls) > 3
