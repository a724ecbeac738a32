"""What is chosen on a GPU, found out without one: each slot's request among all that is offered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.kernels.selection import select
from tokenspeed_reference import offers as reference
from tokenspeed_sdk import portable

if TYPE_CHECKING:
    from collections.abc import Mapping

GPU: Mapping[str, object] = {"device": "cuda", "arch": ("sm_90a",), "dtype": "bfloat16"}
GQA = {"head_dim": 128, "gqa_ratio": 4, "block_tokens": 128}
LATENT = {"cache": "mla", "head_dim": 576, "v_head_dim": 512, "gqa_ratio": 16, "block_tokens": 128}


def attention() -> list[RegisteredOffer[Any]]:
    given = {
        "nvidia": portable.offers("attention", device="cuda"),
        "reference": reference.attention_offers(),
    }
    return [
        RegisteredOffer(plugin_id, "0.1.0", offer)
        for plugin_id, offers in given.items()
        for offer in offers
    ]


@pytest.mark.parametrize(
    ("request_traits", "objective", "winner"),
    [
        (GQA, "latency", "nvidia/paged_triton"),
        (GQA, "throughput", "nvidia/paged_triton"),
        (GQA, "determinism", "nvidia/paged_triton"),
        ({**GQA, "window": 128, "sinks": True}, "latency", "nvidia/paged_triton"),
        (LATENT, "latency", "nvidia/paged_latent"),
        (LATENT, "determinism", "nvidia/paged_latent_invariant"),
    ],
)
def test_attention_is_that_which_is_made_for_the_cache(
    request_traits: Mapping[str, object], objective: str, winner: str
) -> None:
    decision = select("attention", attention(), {**GPU, **request_traits}, objective=objective)
    assert decision.winner.pin == winner
