"""Device graphs: work is captured on a stream of its own, all graphs in one memory pool.

Graphs are replayed one at a time, so what one computes in between may lie where another's does:
the pool grows to what the largest needs. What a graph's work makes and somebody still holds is
kept out of the next one's way by torch's allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable


class CapturedGraph:
    """DeviceGraph.

    Args:
        num_bytes: by which the device's free memory shrank.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, num_bytes: int) -> None:
        self._graph = graph
        self.num_bytes = num_bytes

    def replay(self) -> None:
        """Launch the work on the current stream."""
        self._graph.replay()


class GraphCapture:
    """Captures graphs on one device. Thread: the step loop's only; others may use the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._void: list[torch.cuda.CUDAGraph] = []

    def capture(self, work: Callable[[], None]) -> CapturedGraph:
        """Run `work` once as it is, once captured.

        The first run compiles kernels and takes the workspaces of libraries, neither of which a
        capture allows; on the same stream, whose workspaces those are.

        Raises:
            EngineError: the work cannot be captured; nothing of it is kept.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)  # the first run reads what was written there
        try:
            with torch.cuda.stream(self._stream):
                work()
                self._stream.synchronize()  # errors of the first run are no errors of the capture
                free_bytes = self._free_bytes()
                graph = self._captured(work)
        except Exception as error:
            cause = " ".join(str(error).partition("\n")[0].split()) or repr(error)
            raise EngineError(f"a graph cannot be captured: {cause}") from error
        finally:
            current.wait_stream(self._stream)  # what follows writes to what the first run reads
        return CapturedGraph(graph, max(0, free_bytes - self._free_bytes()))

    def _captured(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture on the current stream, which is this object's."""
        graph = torch.cuda.CUDAGraph()
        # Other threads copy blocks between tiers meanwhile: their calls are no part of it.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            self._abandon(graph)
            raise
        graph.capture_end()
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture whose work raised, so that the stream and the allocator work again.

        A capture that the device has declared void ends with an error, and torch then still counts
        its allocations as this graph's: that is ended here. The graph stays, since the allocator of
        pinned memory goes on asking it.
        """
        try:
            graph.capture_end()
        except RuntimeError:
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
            torch._C._cuda_releasePool(self._device.index, self._pool)
            self._void.append(graph)
            return
        graph.reset()

    def _free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]
