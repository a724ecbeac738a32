"""Reference plugin: the plainest correct version of everything a device plugin may replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_reference import formats, offers
from tokenspeed_sdk import hookimpl

if TYPE_CHECKING:
    from tokenspeed_sdk import Registration


class ReferencePlugin:
    """Offers a CPU device, and kernels in plain torch that run on any torch device."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the CPU."""
        for offer in offers.device_offers():
            context.offer(offer)

    @hookimpl
    def register_kernels(self, context: Registration) -> None:
        """Offer a kernel for every operator."""
        for offer in offers.kernel_offers():
            context.offer(offer)

    @hookimpl
    def register_attention_backends(self, context: Registration) -> None:
        """Offer paged attention."""
        for offer in offers.attention_offers():
            context.offer(offer)

    @hookimpl
    def register_moe_backends(self, context: Registration) -> None:
        """Offer routed experts."""
        for offer in offers.moe_offers():
            context.offer(offer)

    @hookimpl
    def register_samplers(self, context: Registration) -> None:
        """Offer the seeded sampler."""
        for offer in offers.sampler_offers():
            context.offer(offer)

    @hookimpl
    def register_communicators(self, context: Registration) -> None:
        """Offer collectives between threads."""
        for offer in offers.communicator_offers():
            context.offer(offer)

    @hookimpl
    def register_kv_stores(self, context: Registration) -> None:
        """Offer stores in memory and on local disk."""
        for offer in offers.kv_store_offers():
            context.offer(offer)

    @hookimpl
    def register_weight_formats(self, context: Registration) -> None:
        """Offer safetensors and GGUF."""
        for offer in formats.offers():
            context.offer(offer)


plugin = ReferencePlugin()
