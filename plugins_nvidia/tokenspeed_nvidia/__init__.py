"""TokenSpeed on NVIDIA GPUs: the device, kernels, and collectives between GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_nvidia.flashinfer.offers import attention_offers
from tokenspeed_sdk import Offer, Registration, hookimpl, portable

if TYPE_CHECKING:
    from tokenspeed_nvidia.device import CudaRuntime
    from tokenspeed_nvidia.nccl import NcclCommunicator

__all__ = ["NvidiaPlugin", "plugin"]


class NvidiaPlugin:
    """Offers the device `cuda`, the portable kernels on it, and FlashInfer's where it is built.

    What those do not take is computed by kernels of other plugins that take any device.
    """

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the GPUs."""
        facts = {"kind": DEVICE, "takes_index": True}
        context.offer(Offer("device", "cuda", _runtime, facts=facts))

    @hookimpl
    def register_kernels(self, context: Registration) -> None:
        """Offer kernels of operators."""
        _offer_portable("operator", context)

    @hookimpl
    def register_attention_backends(self, context: Registration) -> None:
        """Offer attention over pages of keys and values, and of latents."""
        _offer_portable("attention", context)
        for offer in attention_offers(DEVICE):
            context.offer(offer)

    @hookimpl
    def register_moe_backends(self, context: Registration) -> None:
        """Offer routed experts."""
        _offer_portable("moe", context)

    @hookimpl
    def register_samplers(self, context: Registration) -> None:
        """Offer the seeded sampler."""
        _offer_portable("sampler", context)

    @hookimpl
    def register_communicators(self, context: Registration) -> None:
        """Offer NCCL, reductions of small tensors over peer memory, and ordered sums."""
        context.offer(Offer("communicator", "nccl", _nccl, band="PERFORMANT", requires=_ANYWHERE))
        context.offer(Offer("communicator", "peer", _peer, band="PERFORMANT", requires=_ONE_HOST))
        context.offer(
            Offer("communicator", "nccl_ordered", _ordered, band="PORTABLE", requires=_ORDERED)
        )


def _offer_portable(slot: str, context: Registration) -> None:
    for offer in portable.offers(slot, device=DEVICE):
        context.offer(offer)


DEVICE = "cuda"
_ONE_HOST: dict[str, tuple[object, ...]] = {
    "device": (DEVICE,),
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
