"""The sdk's own plugin: the test kit's scripted model, for tests that are not about numbers."""

from __future__ import annotations

from tokenspeed_sdk import Offer, Registration, hookimpl, lazy

SCRIPTED = "ScriptedForCausalLM"


class SdkPlugin:
    """Offers what the test kit brings; loaded only when `--plugins sdk` names it."""

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer the scripted model; its file is imported when it is chosen."""
        target = lazy("tokenspeed_sdk.testkit.scripted:EntryClass")
        context.offer(Offer("model", SCRIPTED, target, facts={"architectures": (SCRIPTED,)}))


plugin = SdkPlugin()
