"""The sdk's own plugin: the test kit's scripted model, for tests that are not about numbers."""

from __future__ import annotations

from typing import Any

from tokenspeed_sdk import Offer, Registration, hookimpl, lazy

SCRIPTED = "ScriptedForCausalLM"


class SdkPlugin:
    """Offers what the test kit brings; loaded only when `--plugins sdk` names it."""

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer the scripted model; its file is imported when it is chosen."""
        target = lazy("tokenspeed_sdk.testkit.scripted:EntryClass")
        context.offer(Offer("model", SCRIPTED, target, facts={"architectures": (SCRIPTED,)}))

    @hookimpl
    def register_weight_formats(self, context: Registration) -> None:
        """Offer the format of folders without weights."""
        context.offer(Offer("weight_format", "none", _no_weights))


def _no_weights() -> Any:
    from tokenspeed_sdk.testkit.no_weights import NoWeights

    return NoWeights()


plugin = SdkPlugin()
