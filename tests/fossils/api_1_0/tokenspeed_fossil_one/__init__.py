"""A plugin as it was written against plugin API 1.0. It is never edited: that is its use."""

from __future__ import annotations

from tokenspeed_sdk import Offer, hookimpl, lazy

ATTENTION = {
    "device": ("*",),
    "arch": ("*",),
    "dtype": ("float32",),
    "head_dim": ("*",),
    "gqa_ratio": ("*",),
    "block_tokens": ("*",),
    "window": ("*",),
    "sinks": (True,),
    "softcap": ("*",),
    "deterministic": (True,),
}
SAMPLER = {
    "device": ("*",),
    "arch": ("*",),
    "dtype": ("float32",),
    "deterministic": (True,),
}


def _build(target):
    return lambda **options: lazy(f"{__name__}.{target}")()(**options)


class FossilPlugin:
    @hookimpl
    def register_attention_backends(self, context):
        load = _build("attention:Attention")
        context.offer(
            Offer("attention", "paged", load, band="SPECIALIZED", requires=ATTENTION)
        )

    @hookimpl
    def register_samplers(self, context):
        load = _build("sampler:Sampler")
        context.offer(Offer("sampler", "seeded", load, band="SPECIALIZED", requires=SAMPLER))

    @hookimpl
    def register_kv_stores(self, context):
        context.offer(Offer("kv_store", "memory", _build("kv_store:Store")))

    @hookimpl
    def register_speculators(self, context):
        context.offer(Offer("speculator", "repeat", _build("speculator:Drafter")))


plugin = FossilPlugin()
