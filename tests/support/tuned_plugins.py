"""Plugins whose backends are slower than they say by a known time, or that fail; for `--tune`."""

from __future__ import annotations

SLOW_S = 0.004
_PARTS = f"""
import time

class Slow:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def attend(self, *args, **options):
        time.sleep({SLOW_S})
        return self._inner.attend(*args, **options)

    def forward(self, *args):
        time.sleep({SLOW_S})
        return self._inner.forward(*args)

class Fused:
    fuses_routing = True

    def __init__(self, inner, routing):
        self._inner, self._routing = inner, routing
        self.prepare, self.forward = inner.prepare, inner.forward

    def route_and_forward(self, x, logits, prepared):
        from tokenspeed_reference.kernels.moe import route
        weights, experts = route(logits, routing=self._routing)
        return self._inner.forward(x, experts, weights, prepared)

class Failing:
    fuses_routing = False

    def plan(self, batch):
        raise RuntimeError("no such tile")

    prepare = write = attend = forward = plan

def attention(**options):
    from tokenspeed_reference.attention_native import NativePagedAttention
    return NativePagedAttention(**options)

def experts(**options):
    from tokenspeed_reference.moe import PlainExperts
    return PlainExperts(**options)

ANY = {{name: ("*",) for name in (
    "device", "arch", "dtype", "head_dim", "block_tokens", "gqa_ratio", "window", "sinks",
    "softcap", "num_experts", "top_k", "hidden_size", "expert_features", "expert_gate",
    "expert_bias", "routing")}}
PAGED = {{"cache": CacheDemand(page_tokens=8, packed=True)}}
"""
ATTENTION = (
    _PARTS
    + """
class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        slow = lambda **options: Slow(attention(**options))
        context.offer(Offer("attention", "slow", slow, band="SPECIALIZED", requires=ANY))
        broken = lambda **options: Failing()
        context.offer(Offer("attention", "broken", broken, band="PERFORMANT", requires=ANY))

plugin = Plugin()
"""
)
EXPERTS = (
    _PARTS
    + """
class Plugin:
    @hookimpl
    def register_moe_backends(self, context):
        slow = lambda **options: Slow(experts(**options))
        context.offer(Offer("moe", "slow", slow, band="SPECIALIZED", requires=ANY))
        broken = lambda **options: Failing()
        context.offer(Offer("moe", "broken", broken, band="PERFORMANT", requires=ANY))
        fused = lambda group, **options: Fused(experts(group=group, **options), group.routing)
        context.offer(Offer("moe", "fused", fused, band="PORTABLE", requires=ANY))

plugin = Plugin()
"""
)
