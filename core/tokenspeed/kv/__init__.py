"""Where keys and values lie in device memory: the layout solver and the arena."""

from __future__ import annotations

from tokenspeed.kv.arena import Arena
from tokenspeed.kv.layout import ArenaLayout, GroupLayout, solve_layout

__all__ = ["Arena", "ArenaLayout", "GroupLayout", "solve_layout"]
