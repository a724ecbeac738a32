"""Logits to tokens, by calls that never look at a result: fit for graphs."""

from __future__ import annotations

from typing import Any

from tokenspeed_reference.sampler import PhiloxSampler


class Sampler(PhiloxSampler):
    """Sampler; the methods that are not here are the reference's.

    Draws must stay Philox numbers keyed by (seed, output position, purpose): a seeded request then
    answers the same everywhere.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"looks": False, **options})
