"""Debug aid: blocks that a step takes anew are filled with NaN before it writes them.

A freed block is dangerous once somebody else has it. Whoever still reads it, or reads cells of its
own that nothing wrote yet, then gets NaN logits, and the request fails by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.kv import Arena


def poison_fresh(arena: Arena, plan: StepPlan) -> None:
    """Fill the blocks and state rows that this step writes for the first time.

    Runs before the plan's copies: a copy's target is fresh too. Blocks that a request was given
    because their content matched lie before its context, and are left alone.
    """
    context_tokens = dict(zip(plan.slots.tolist(), plan.context_tokens.tolist(), strict=True))
    copied = {(group, target) for group, _, target, _ in plan.copies.tolist()}
    fresh: dict[int, set[int]] = {}
    for slot, group, index, block in plan.block_updates.tolist():
        starts_after = index * arena.layout.block_tokens >= context_tokens.get(slot, 1 << 62)
        if block and (starts_after or (group, block) in copied):
            fresh.setdefault(group, set()).add(block)
    states = [index for index, group in enumerate(arena.layout.groups) if group.kind == "state"]
    for place, group in enumerate(states):
        rows = plan.state_rows[:, place]
        written = set(rows[:, 1:].ravel().tolist()) - {-1}
        fresh[group] = written - set(rows[:, 0].tolist())  # a row updated in place is not fresh
    for group, blocks in fresh.items():
        arena.poison(group, sorted(blocks))
