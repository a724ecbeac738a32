"""TokenSpeed on NVIDIA GPUs. This version brings the device; kernels of its own come later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk import Offer, Registration, hookimpl

if TYPE_CHECKING:
    from tokenspeed_nvidia.device import CudaRuntime

__all__ = ["NvidiaPlugin", "plugin"]


class NvidiaPlugin:
    """Offers the device `cuda`; the reference plugin's kernels compute on it, slowly."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the GPUs."""
        facts = {"kind": "cuda", "takes_index": True}
        context.offer(Offer("device", "cuda", _runtime, facts=facts))


def _runtime(index: int = 0) -> CudaRuntime:
    from tokenspeed_nvidia.device import CudaRuntime

    return CudaRuntime(index)


plugin = NvidiaPlugin()
