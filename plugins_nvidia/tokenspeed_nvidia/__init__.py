"""TokenSpeed on NVIDIA GPUs: the device, and collectives between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Offer, Registration, hookimpl

if TYPE_CHECKING:
    from tokenspeed_nvidia.device import CudaRuntime
    from tokenspeed_nvidia.nccl import NcclCommunicator

__all__ = ["NvidiaPlugin", "plugin"]


class NvidiaPlugin:
    """Offers the device `cuda`; the reference plugin's kernels compute on it, slowly."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the GPUs."""
        facts = {"kind": "cuda", "takes_index": True}
        context.offer(Offer("device", "cuda", _runtime, facts=facts))

    @hookimpl
    def register_communicators(self, context: Registration) -> None:
        """Offer NCCL, reductions of small tensors over peer memory, and ordered sums."""
        context.offer(Offer("communicator", "nccl", _nccl, band="PERFORMANT", requires=_ANYWHERE))
        context.offer(Offer("communicator", "peer", _peer, band="PERFORMANT", requires=_ONE_HOST))
        context.offer(
            Offer("communicator", "nccl_ordered", _ordered, band="PORTABLE", requires=_ORDERED)
        )


_ONE_HOST: dict[str, tuple[object, ...]] = {
    "device": ("cuda",),
    "arch": ("*",),
    "dtype": ("float32", "bfloat16", "float16"),
    "ranks": ("processes",),
    "hosts": (1,),
    "graph_safe": (True, False),
}
_ANYWHERE = {**_ONE_HOST, "hosts": ("*",)}
_ORDERED = {**_ANYWHERE, "deterministic": (True,)}


def _runtime(index: int = 0) -> CudaRuntime:
    from tokenspeed_nvidia.device import CudaRuntime

    return CudaRuntime(index)


def _nccl(**options: Any) -> NcclCommunicator:
    from tokenspeed_nvidia.nccl import NcclCommunicator

    return NcclCommunicator(**options)


def _ordered(**options: Any) -> NcclCommunicator:
    from tokenspeed_nvidia.nccl import OrderedNcclCommunicator

    return OrderedNcclCommunicator(**options)


def _peer(**options: Any) -> NcclCommunicator:
    from tokenspeed_nvidia.peer import PeerCommunicator

    return PeerCommunicator(**options)


plugin = NvidiaPlugin()
