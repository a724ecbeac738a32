"""What each figure is compared with: the peer's of the same work on the same card, and the target.

The peer is vLLM 0.24.0 (torch 2.11, CUDA graphs, FA3) on one H200, measured with the same lengths
and random weights of the same configs.
"""

from __future__ import annotations

from dataclasses import dataclass

PEER, PEER_DATE = "vLLM 0.24.0", "2026-11-29"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure's unit and comparison.

    Args:
        peer: the peer's value; None: not measured there.
        target: the least that counts, in the unit; None: none was set.
        aim: what is hoped for.
    """

    unit: str
    better: str = "higher"
    peer: float | None = None
    target: float | None = None
    aim: float | None = None

    def ratio(self, value: float) -> float | None:
        """Return how much better than the peer a value is; None: the peer has none."""
        if self.peer is None:
            return None
        return value / self.peer if self.better == "higher" else self.peer / value

    def is_reached(self, value: float) -> bool:
        """Say whether a value reaches the target."""
        if self.target is None:
            return True
        return value >= self.target if self.better == "higher" else value <= self.target


def _decode(*values: tuple[float, float, float | None]) -> dict[str, Figure]:
    batches = (1, 8, 32, 128)
    return {
        f"decode, batch {batch}": Figure("tok/s", "higher", *value)
        for batch, value in zip(batches, values, strict=True)
    }


def _ms(peer: float | None = None, target: float | None = None, aim: float | None = None) -> Figure:
    return Figure("ms", "lower", peer, target, aim)


FIGURES: dict[str, dict[str, Figure]] = {
    "qwen3-8b": {
        **_decode((191, 215, 225), (1422, 1600, 1750), (5177, 5900, 6500), (13576, 15500, 17500)),
        "prefill, 32 x 4096": Figure("tok/s", "higher", 40400, 42000, 45000),
        "first token alone, 512 tokens": _ms(17.5),
        "first token alone, 4096 tokens": _ms(102),
        "first token alone, 16384 tokens": _ms(504),
        "token at 8k": _ms(5.53, 5.0),
        "token at 32k": _ms(6.40, 5.8),
        "token at 128k": _ms(9.78, 9.2),
        "agents, one prefix: tokens/s per user": Figure("tok/s", "higher", 54.4, 80, 110),
        "agents, one prefix: first token": _ms(881, 450),
        "agents, one prefix: prompt tokens from the cache": Figure("share", "higher", 0.978),
        "agents, 16 prefixes: tokens/s per user": Figure("tok/s", "higher", 37.4, 40),
        "agents, 16 prefixes: first token": _ms(163, 120),
        "agents, 16 prefixes: prompt tokens from the cache": Figure("share"),
        "host time of a decode step, batch 64": Figure("us", "lower", None, 150),
        "share of a decode step without a kernel, batch 64": Figure("share", "lower", None, 0.02),
    },
    "qwen3-30b-a3b": _decode(
        (229, 260, None), (846, 950, None), (1952, 2050, None), (6263, 6600, None)
    ),
    "deepseek-v2-lite": _decode(
        (285, 320, None), (1992, 2100, None), (6791, 7000, None), (21848, 22500, None)
    ),
    "qwen3-next-12l": {
        "token at 8k": _ms(),
        "token at 128k": _ms(),
        "second turn at 32k": _ms(),
        "second turn at 32k, share of the first": Figure("share", "lower", None, 0.1),
    },
}
"""Model -> what is measured of it."""

OF_MODEL = {
    "qwen3-8b": ("decode", "prefill", "long", "agents"),
    "qwen3-30b-a3b": ("decode",),
    "deepseek-v2-lite": ("decode",),
    "qwen3-next-12l": ("long", "second_turn"),
}
"""Model -> the workloads that its figures come from."""
