"""The sdk's own plugin: the authors' commands, and the scripted model of the test kit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Offer, Registration, hookimpl, lazy

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPTED = "ScriptedForCausalLM"


class SdkPlugin:
    """Loaded when one of its commands is called, or when `--plugins sdk` names it."""

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer the scripted model; its file is imported when it is chosen."""
        target = lazy("tokenspeed_sdk.testkit.scripted:EntryClass")
        context.offer(Offer("model", SCRIPTED, target, facts={"architectures": (SCRIPTED,)}))

    @hookimpl
    def register_weight_formats(self, context: Registration) -> None:
        """Offer the formats of folders without weights: models that need none, and random ones."""
        context.offer(Offer("weight_format", "none", _no_weights))
        context.offer(Offer("weight_format", "random", _random_weights))

    @hookimpl
    def register_cli(self, context: Registration) -> None:
        """Add the authors' commands; each file is imported when its command is called."""
        for verb, name in (("new", "New"), ("validate", "Validate"), ("test", "Test")):
            target = f"tokenspeed_sdk.commands.{verb}:{name}"
            context.offer(Offer("cli", f"plugins {verb}", _command(target)))


def _command(target: str) -> Callable[[], Any]:
    return lambda: lazy(target)()()


def _no_weights() -> Any:
    from tokenspeed_sdk.testkit.no_weights import NoWeights

    return NoWeights()


def _random_weights() -> Any:
    from tokenspeed_sdk.testkit.random_weights import RandomWeights

    return RandomWeights()


plugin = SdkPlugin()
