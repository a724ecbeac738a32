"""The declared domain of an offer: samples inside it, and requests one step outside."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from tokenspeed_sdk import TRAITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ANY = "*"
SAMPLES: Mapping[str, tuple[object, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "head_dim": (16, 64, 80, 128, 256),
    "block_tokens": (16, 128),
    "window": (0, 1, 17, 128),
    "sinks": (False, True),
    "softcap": (0.0, 30.0),
    "num_experts": (4, 8, 60),
    "top_k": (1, 2, 4),
    "hidden_size": (32, 48),
    "expert_features": (16, 40),
    "expert_gate": ("silu", "clamped_swiglu"),
    "expert_bias": (False, True),
    "routing": ("softmax", "sigmoid", "softmax_grouped", "sigmoid_grouped"),
}
"""What stands for "any value" of a trait: small and large, round and odd."""


def inside(requires: Mapping[str, tuple[object, ...]], trait: str) -> tuple[object, ...]:
    """Return values of a trait that the offer allows.

    Listed ones, the samples for "*", and the neutral value alone where the trait is not declared.
    """
    neutral = TRAITS[trait].neutral
    declared = requires.get(trait)
    if declared is None:
        return (neutral,) if neutral is not None else ()
    if ANY in declared:
        return SAMPLES.get(trait, (neutral,))
    listed = [value for value in declared if value != neutral]
    return tuple(listed) if neutral is None else (neutral, *listed)


def sampled(
    requires: Mapping[str, tuple[object, ...]], traits: tuple[str, ...], *, seed: int, count: int
) -> Iterator[dict[str, object]]:
    """Yield `count` combinations of allowed values, or all if there are fewer; reproducible.

    Every allowed value of every trait occurs in at least one of them, if `count` reaches.
    """
    choices = [inside(requires, trait) for trait in traits]
    everything = list(itertools.islice(itertools.product(*choices), 100_000))
    rng = random.Random(seed)
    rng.shuffle(everything)
    uncovered = {(i, value) for i, values in enumerate(choices) for value in values}
    chosen: list[tuple[object, ...]] = []
    for combination in everything:
        if len(chosen) < count and uncovered & set(enumerate(combination)):
            chosen.append(combination)
            uncovered -= set(enumerate(combination))
    rest = [combination for combination in everything if combination not in chosen]
    chosen += rest[: max(0, count - len(chosen))]
    for combination in chosen:
        yield dict(zip(traits, combination, strict=True))


def outside(requires: Mapping[str, tuple[object, ...]]) -> Iterator[tuple[str, object]]:
    """Yield (trait, value) just outside the domain: unlisted values, traits not declared."""
    for name, trait in TRAITS.items():
        declared = requires.get(name)
        if declared is not None and ANY in declared:
            continue
        for value in (*SAMPLES.get(name, ()), f"no-such-{name}"):
            if value != trait.neutral and value not in (declared or ()):
                yield name, value
                break
