"""Logits to tokens."""

from __future__ import annotations

from tokenspeed_reference.sampler import PhiloxSampler


class Sampler(PhiloxSampler):
    """Sampler; the methods that are not here are the reference's.

    Replace first: `sample` for rows that are all greedy, an argmax. Draws must stay Philox numbers
    keyed by (seed, output position, purpose): a seeded request then answers the same everywhere.
    """
