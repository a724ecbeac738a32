"""A layout in words: what was solved and what it wastes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.kv.layout import GIB

if TYPE_CHECKING:
    from tokenspeed.kv.layout import ArenaLayout, GroupLayout


def describe(layout: ArenaLayout) -> str:
    """Return a line for the arena and one a group: bytes, waste, tokens per GiB."""
    slabs = f" in {layout.num_slabs} slabs" if layout.num_slabs > 1 else ""
    head = (
        f"arena {layout.total_bytes / GIB:.1f} GiB, {layout.num_physical_blocks:,} physical blocks "
        f"x {layout.physical_bytes:,} bytes, {layout.order}{slabs}, "
        f"{layout.tokens_per_gib:,} tokens/GiB"
    )
    return "\n".join([head, *(_line(layout, group) for group in layout.groups)])


def _line(layout: ArenaLayout, group: GroupLayout) -> str:
    holds = {
        "full": f"{layout.block_tokens} tokens",
        "window": f"{layout.block_tokens} tokens, window {group.group.window}",
        "state": "one snapshot",
    }[group.kind]
    fields = " + ".join(
        f"{field.name} {'x'.join(map(str, field.shape))} {field.dtype}" for field in group.fields
    )
    return (
        f"  {group.name}: {group.packing} x {group.logical_bytes:,} bytes of {holds}, "
        f"{len(group.layers)} layers of {fields}, waste {group.waste:.1%}"
    )
