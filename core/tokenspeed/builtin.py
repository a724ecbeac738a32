"""What ships in the core, offered through the same hooks as everyone's: plugin id `core`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.registration import Offer
from tokenspeed.hookspecs import hookimpl
from tokenspeed.parsers.formats import FORMATS
from tokenspeed.plugins.targets import lazy, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.registration import Registration

MODELS = {
    "DeepseekV2ForCausalLM": "tokenspeed.models.deepseek_v2:EntryClass",
    "DeepseekV3ForCausalLM": "tokenspeed.models.deepseek_v3:EntryClass",
    "GptOssForCausalLM": "tokenspeed.models.gpt_oss:EntryClass",
    "LlamaForCausalLM": "tokenspeed.models.llama:EntryClass",
    "MixtralForCausalLM": "tokenspeed.models.mixtral:EntryClass",
    "Qwen2ForCausalLM": "tokenspeed.models.qwen2:EntryClass",
    "Qwen3ForCausalLM": "tokenspeed.models.qwen3:EntryClass",
    "Qwen3MoeForCausalLM": "tokenspeed.models.qwen3_moe:EntryClass",
    "Qwen3NextForCausalLM": "tokenspeed.models.qwen3_next:EntryClass",
    "Qwen3_5ForCausalLM": "tokenspeed.models.qwen3_5:EntryClass",
    "Qwen3_5MoeForCausalLM": "tokenspeed.models.qwen3_5:EntryClass",
}

POLICIES = {
    "return_time": "tokenspeed.scheduler.policies:ReturnTimePolicy",
    "lru": "tokenspeed.scheduler.policies:LruPolicy",
}

XGRAMMAR = "tokenspeed.grammar.xgrammar_engine:XGrammarEngine"

CLIENT_RULES = {
    "attribution": "attribution:Attribution",
    "cache_markers": "cache_markers:CacheMarkers",
    "system_in_place": "system_in_place:SystemInPlace",
    "blocks": "blocks:Blocks",
    "order": "order:Order",
}
"""In the order in which they run."""


class BuiltinPlugin:
    """The core's operators, policies, parsers and client rules; the index of its architectures."""

    @hookimpl
    def register_operators(self, context: Registration) -> None:
        """Declare every operator of `ops/`."""
        from tokenspeed.ops import OPERATORS

        for operator in OPERATORS.values():
            context.offer(operator)

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer each architecture; its file is imported when it is chosen."""
        for architecture, target in MODELS.items():
            context.offer(
                Offer("model", architecture, lazy(target), facts={"architectures": (architecture,)})
            )

    @hookimpl
    def register_policies(self, context: Registration) -> None:
        """Offer the policies of `scheduler/policies.py`."""
        for name, target in POLICIES.items():
            context.offer(Offer("policy", name, _make(target)))

    @hookimpl
    def register_grammars(self, context: Registration) -> None:
        """Offer the engine for languages of answers; its library is imported by the first one."""
        context.offer(Offer("grammar", "xgrammar", _make(XGRAMMAR), band="PORTABLE"))

    @hookimpl
    def register_parsers(self, context: Registration) -> None:
        """Offer the parsers of answers."""
        for name, form in FORMATS.items():
            context.offer(Offer("parser", name, _make(form.path), facts=form.facts))

    @hookimpl
    def register_client_rules(self, context: Registration) -> None:
        """Offer the rules against client noise."""
        for place, (name, target) in enumerate(CLIENT_RULES.items()):
            load = _make(f"tokenspeed.server.conversation.client_rules.{target}")
            context.offer(Offer("client_rule", name, load, facts={"place": place}))


def _make(target: str) -> Callable[..., Any]:
    """Return a function that imports `target` when it is called, and hands its arguments on."""
    return lambda **arguments: resolve(target)(**arguments)


plugin = BuiltinPlugin()
