"""Where everything cached lies in device memory: the layout solver and the arena."""

from __future__ import annotations

from tokenspeed.kv.arena import Arena
from tokenspeed.kv.describe import describe
from tokenspeed.kv.extents import Extent, layer_ranges
from tokenspeed.kv.layout import ArenaLayout, GroupLayout, PageIds
from tokenspeed.kv.solver import solve_layout

__all__ = [
    "Arena",
    "ArenaLayout",
    "Extent",
    "GroupLayout",
    "PageIds",
    "describe",
    "layer_ranges",
    "solve_layout",
]
