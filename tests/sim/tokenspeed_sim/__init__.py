"""TokenSpeed plugin sim: a fake accelerator; nothing heavy is imported before it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import CacheDemand, Offer, hookimpl, lazy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import Registration

KIND = "sim"
PAGE_TOKENS = 16


def _build(target: str, **settings: Any) -> Callable[..., Any]:
    """Return a function that imports `target` of this package when it is called, and calls it."""
    return lambda **options: lazy(f"{__name__}.{target}")()(**settings, **options)


class SimPlugin:
    """Says what this wheel offers."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Offer the device."""
        settings = {name: context.config[name] for name in ("memory_mib", "graphs")}
        load = _build("device:make_runtime", **settings)
        context.offer(Offer("device", KIND, load, facts={"kind": KIND}))

    @hookimpl
    def register_attention_backends(self, context: Registration) -> None:
        """Offer attention that reads pages of 16 tokens, in blocks of up to 64."""
        requires = {
            "device": (KIND,),
            "arch": ("*",),
            "dtype": ("float32", "bfloat16"),
            "head_dim": ("*",),
            "gqa_ratio": ("*",),
            "block_tokens": (16, 32, 64),
            "window": ("*",),
            "sinks": (True,),
            "softcap": ("*",),
            "deterministic": (True,),
        }
        load = _build("attention:Attention", nan_every=context.config["nan_every"])
        facts = {"cache": CacheDemand(page_tokens=PAGE_TOKENS, packed=True)}
        context.offer(Offer("attention", "paged", load, "SPECIALIZED", requires, facts))

    @hookimpl
    def register_moe_backends(self, context: Registration) -> None:
        """Offer experts."""
        requires = {
            "device": (KIND,),
            "arch": ("*",),
            "dtype": ("float32", "bfloat16"),
            "num_experts": ("*",),
            "top_k": ("*",),
            "hidden_size": ("*",),
            "expert_features": ("*",),
            "expert_gate": ("silu", "clamped_swiglu"),
            "expert_bias": (True, False),
            "routing": ("*",),
            "deterministic": (True,),
            "graph_safe": (True, False),
        }
        load = _build("moe:Experts")
        context.offer(Offer("moe", "experts", load, "SPECIALIZED", requires))

    @hookimpl
    def register_weight_formats(self, context: Registration) -> None:
        """Offer the format of folders with a `weights.sim`."""
        context.offer(Offer("weight_format", KIND, _build("weight_format:Format")))

    @hookimpl
    def register_communicators(self, context: Registration) -> None:
        """Offer collectives between ranks."""
        requires = {
            "device": (KIND,),
            "arch": ("*",),
            "dtype": ("float32", "bfloat16", "float16"),
            "deterministic": (True,),
        }
        load = _build("communicator:Communicator")
        context.offer(Offer("communicator", "ranks", load, "SPECIALIZED", requires))

    @hookimpl
    def register_samplers(self, context: Registration) -> None:
        """Offer the sampler."""
        requires = {
            "device": (KIND,),
            "arch": ("*",),
            "dtype": ("float32",),
            "deterministic": (True,),
            "graph_safe": (True, False),
        }
        load = _build("sampler:Sampler")
        context.offer(Offer("sampler", "seeded", load, "SPECIALIZED", requires))

    @hookimpl
    def register_kv_stores(self, context: Registration) -> None:
        """Offer the store: `--kv-store sim/memory`."""
        names = ("seed", "store_fail_share", "store_corrupt_share")
        settings = {name.removeprefix("store_"): context.config[name] for name in names}
        context.offer(Offer("kv_store", "memory", _build("kv_store:make_store", **settings)))

    @hookimpl
    def register_speculators(self, context: Registration) -> None:
        """Offer the speculator: `--speculator sim/lookup`."""
        load = _build("speculator:Drafter", error_step=context.config["draft_error_step"])
        context.offer(Offer("speculator", "lookup", load))

    @hookimpl
    def register_models(self, context: Registration) -> None:
        """Offer the architecture; its file is imported when it is chosen."""
        name = "SimForCausalLM"
        target = lazy(f"{__name__}.model:EntryClass")
        context.offer(Offer("model", name, target, facts={"architectures": (name,)}))


plugin = SimPlugin()
