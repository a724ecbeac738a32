"""The experts of mixture-of-experts models, bitwise the same in every batch."""

from __future__ import annotations

from typing import Any

from tokenspeed_reference.moe import PlainExperts


class Experts(PlainExperts):
    """MoEBackend of rows multiplied one by one."""

    def __init__(self, group: Any, **options: Any) -> None:
        super().__init__(group, rowwise=True, **options)
