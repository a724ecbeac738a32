"""On a GPU: captured work computes anew from memory, and failed captures leave the device well.

Run by `make gpu-check` on a machine that has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tokenspeed_nvidia.device import CudaRuntime
from tokenspeed_sdk import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.needs_nvidia

MIB = 1 << 20


@pytest.fixture(scope="module")
def runtime() -> CudaRuntime:
    return CudaRuntime()


def test_a_replay_computes_from_what_memory_holds_by_then(runtime: CudaRuntime) -> None:
    device = runtime.torch_device()
    weight, x = torch.randn(256, 256, device=device), torch.randn(8, 256, device=device)
    out = torch.zeros(8, 256, device=device)

    def work() -> None:
        out.copy_((x @ weight).softmax(-1).roll(1, 0))

    graph = runtime.capture(work)
    for _ in range(3):
        x.normal_()
        graph.replay()
        replayed = out.clone()
        work()
        assert torch.equal(replayed, out)


def test_graphs_share_the_memory_of_the_largest(runtime: CudaRuntime) -> None:
    device = runtime.torch_device()
    x = torch.randn(64 * MIB // 4, device=device)
    outs = torch.zeros(4, device=device)

    def work_on(share: int) -> Callable[[], None]:
        return lambda: outs[share - 1].copy_((x[: len(x) // share] * 2).sum())

    graphs = [runtime.capture(work_on(share)) for share in (1, 2, 4)]
    assert graphs[0].num_bytes >= 64 * MIB
    assert sum(graph.num_bytes for graph in graphs[1:]) <= 8 * MIB
    x.normal_()
    for share, graph in zip((1, 2, 4), graphs, strict=True):
        graph.replay()
        torch.testing.assert_close(outs[share - 1], (x[: len(x) // share] * 2).sum())


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "places": lambda x: x.nonzero(),
    "host copy": lambda x: x.cpu(),
    "host data": lambda x: x + torch.tensor([1.0, 2.0], device=x.device),
    "mistake": lambda x: x + x.new_zeros(3),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_after_a_failed_capture_the_device_computes_as_before(
    runtime: CudaRuntime, read: Callable[[torch.Tensor], object]
) -> None:
    x, out = (torch.ones(2, device=runtime.torch_device()) for _ in range(2))
    allocated = torch.cuda.memory_allocated()
    with pytest.raises(EngineError, match="cannot be captured"):
        runtime.capture(lambda: read(x) and None)
    runtime.synchronize()
    assert (x * 2).sum().item() == 4
    for _ in range(50):
        torch.empty(MIB, device=x.device)
    assert torch.cuda.memory_allocated() == allocated
    graph = runtime.capture(lambda: out.copy_(x + 1) and None)
    x.fill_(4)
    graph.replay()
    assert out.tolist() == [5, 5]
