"""TokenSpeed plugin postnorm: what it offers; nothing heavy is imported before it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk import Offer, hookimpl, lazy

if TYPE_CHECKING:
    from tokenspeed_sdk import Registration

MODELS = {"Gemma2ForCausalLM": "gemma2", "Olmo2ForCausalLM": "olmo2"}


class PostnormPlugin:
    """Says what this wheel offers."""

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer each architecture; its file is imported when it is chosen."""
        for name, module in MODELS.items():
            target = lazy(f"{__name__}.{module}:EntryClass")
            context.offer(Offer("model", name, target, facts={"architectures": (name,)}))


plugin = PostnormPlugin()
