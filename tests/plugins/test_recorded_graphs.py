"""The simulated device's graphs compute anew from what memory holds, and refuse host reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.sim.tokenspeed_sim.recording import record

from tokenspeed.errors import EngineError


def test_a_replay_computes_from_what_its_tensors_hold_by_then() -> None:
    random = torch.Generator().manual_seed(0)
    weight, x = torch.randn(6, 6, generator=random), torch.randn(6, generator=random)
    places, out = torch.tensor([1, 4]), torch.zeros(6)

    def work() -> None:
        hidden = torch.nn.functional.linear(x[None], weight).relu()
        hidden[:, places] = x[:2]
        out.copy_(hidden.view(-1).softmax(0) + x.roll(1))

    with torch.inference_mode():
        graph = record(work)
        for _ in range(2):
            x.copy_(torch.randn(6, generator=random))
            places.copy_(torch.randperm(6, generator=random)[:2])
            graph.replay()
            replayed = out.clone()
            work()
            assert torch.equal(replayed, out)
    assert graph.num_bytes > 0


def test_python_numbers_are_those_of_the_capture() -> None:
    out, step = torch.zeros(1), {"value": 3}
    graph = record(lambda: out.fill_(step["value"]))  # type: ignore[arg-type, return-value]
    step["value"] = 5
    graph.replay()
    assert out.item() == 3


X = torch.arange(6.0)
HOST_READS: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "list": lambda: X.tolist(),
    "branch": lambda: bool((X > 2).any()),
    "array": lambda: X.numpy(),
    "host copy": lambda: X.cpu(),
    "mask": lambda: X[X > 2],
    "places": lambda: (X > 2).nonzero(),
    "distinct": lambda: X.unique(),
    "comparison": lambda: torch.equal(X, X),
    "counts": lambda: torch.repeat_interleave(X, torch.ones(6, dtype=torch.int64)),
    "host data": lambda: torch.tensor([1, 2]),
}


@pytest.mark.parametrize("read", HOST_READS.values(), ids=HOST_READS)
def test_what_waits_for_the_device_is_refused(read: Callable[[], None]) -> None:
    with torch.inference_mode(), pytest.raises(EngineError, match="cannot be recorded"):
        record(read)
    assert X.sum().item() == 15, "the device computes as before"
