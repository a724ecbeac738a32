"""The engine's figures as metrics: names in `EngineStats`, and what each one means."""

from __future__ import annotations

GAUGES = {
    "running": "requests that run now",
    "waiting": "requests in the queue",
    "blocks_total": "KV blocks of the arena",
    "blocks_used": "KV blocks held by live requests",
    "grammar_bytes": "host memory of compiled grammars that are kept",
    "blocks_cached": "KV blocks that hold reusable prefixes and can be evicted",
    "host_blocks_total": "KV blocks of the host tier; 0: there is none",
    "host_blocks_free": "KV blocks of the host tier that hold nothing",
    "speculator_detached": "1: the speculator failed too often and is not asked any more",
    "graph_sizes_failed": "sizes of decode step that could not be captured as a device graph",
    "store_records": "records that the KV store behind the host tier keeps",
    "store_detached": "1: the KV store failed too often and is not asked any more",
    "step_us_p50": "median time of a step, microseconds",
    "overhead_us_p50": "median control and event-loop time of a step, microseconds",
    "epoch": "engine starts, from 1",
}
TENANT_GAUGES = {
    "floor_bytes": "KV cache that others never evict from a tenant, once it has it",
    "cap_bytes": "most KV cache that a tenant has at a time",
    "held_bytes": "KV cache that a tenant's live requests hold",
    "cached_bytes": "KV cache of a tenant that nobody holds and can be found again",
    "running": "a tenant's requests that run now",
    "waiting": "a tenant's requests in the queue",
}
"""Of tenants with a floor or a cap."""
EXPERT_GAUGES = {
    "imbalance": "choices of the busiest rank over the average one's, in the last interval, of the "
    "layer where that is most",
    "imbalance_mean": "choices of the busiest rank over the average one's, mean of the layers",
}
EXPERT_COUNTERS = {
    "looks": "times that the load of a layer's experts was looked at",
    "rebalances": "looks after which experts were moved between ranks",
    "moved": "experts' weights that went to another slot",
}
"""Of experts that move between ranks, by the layers of each pipeline stage."""
COUNTERS = {
    "steps": "steps run",
    "prompt_tokens": "prompt tokens of admitted requests",
    "cached_tokens": "prompt tokens taken from the cache",
    "created_tokens": "prompt tokens computed that were never in the cache",
    "recomputed_tokens": "prompt tokens computed again after their eviction",
    "output_tokens": "tokens sampled",
    "retractions": "requests retracted for lack of blocks",
    "evictions": "cached things that left the device to make room",
    "loaded_tokens": "prompt tokens whose cache came back from the host tier or the store",
    "tier_failures": "moves between device, host and store that failed; computed again instead",
    "drafted_tokens": "tokens that a speculator guessed and a step verified",
    "accepted_tokens": "guessed tokens that were right",
    "speculator_failures": "calls of the speculator that raised or returned what is not allowed",
    "store_failures": "calls of the KV store that raised or answered what is not allowed",
    "graph_steps": "decode steps replayed as a device graph",
    "tps_floor_violated": "steps in which running streams alone were below min_tps_per_user",
    "hook_calls_after_freeze": "plugin hook calls after the plan was frozen; must stay 0",
}
