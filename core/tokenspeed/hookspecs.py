"""Every hook a plugin may implement. Hooks run only while an engine is built.

Each takes one context object, so that a new field breaks nobody. What a hook registers is staged
and committed only when the plugin's whole registration succeeded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tokenspeed.contracts.registration import Registration

PROJECT = "tokenspeed"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# fmt: off
@hookspec
def register_devices(context: Registration) -> None: """Offer DeviceRuntimes."""
@hookspec
def register_operators(context: Registration) -> None: """Declare namespaced operators."""
@hookspec
def register_kernels(context: Registration) -> None: """Offer kernels for operators."""
@hookspec
def register_attention_backends(context: Registration) -> None: """Offer AttentionBackends."""
@hookspec
def register_moe_backends(context: Registration) -> None: """Offer MoE backends."""
@hookspec
def register_samplers(context: Registration) -> None: """Offer Samplers."""
@hookspec
def register_kv_stores(context: Registration) -> None: """Offer KV stores behind the host tier."""
@hookspec
def register_transfers(context: Registration) -> None: """Offer KV transfers between machines."""
@hookspec
def register_speculators(context: Registration) -> None: """Offer drafters."""
@hookspec
def register_communicators(context: Registration) -> None: """Offer collectives."""
@hookspec
def register_weight_formats(context: Registration) -> None: """Offer checkpoint formats."""
@hookspec
def register_models(context: Registration) -> None: """Offer architectures (EntryClass)."""
@hookspec
def register_tokenizers(context: Registration) -> None: """Offer tokenizer formats."""
@hookspec
def register_parsers(context: Registration) -> None: """Offer tool-call and reasoning parsers."""
@hookspec
def register_client_rules(context: Registration) -> None: """Offer rules against client noise."""
@hookspec
def register_grammars(context: Registration) -> None: """Offer structured-output engines."""
@hookspec
def register_policies(context: Registration) -> None: """Offer scheduling and eviction keys."""
@hookspec
def register_placement_rules(context: Registration) -> None: """Offer operator placement rules."""
@hookspec
def register_cli(context: Registration) -> None: """Add sub-commands."""
@hookspec
def register_endpoints(context: Registration) -> None: """Add HTTP routes under an own prefix."""
# fmt: on
