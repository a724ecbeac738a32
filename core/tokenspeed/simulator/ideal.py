"""What a prefix cache could reach on a trace: the plain way, block by block, to compare with."""

from __future__ import annotations

from collections import OrderedDict

from tokenspeed.simulator.trace import Arrivals, Trace


def ideal_hit_rate(
    trace: Trace, *, pool_tokens: int | None, num_places: int, max_pause_s: float
) -> float:
    """Return the share of prompt tokens that a block cache would have had, in order of arrival.

    Blocks are the trace's own. With a bound the least recently used goes first, tails before
    heads; None is unlimited memory. At least one token of a prompt is always computed.
    """
    arrivals = Arrivals(trace, num_places=num_places, max_pause_s=max_pause_s)
    capacity = None if pool_tokens is None else pool_tokens // trace.block_tokens
    cached: OrderedDict[int, None] = OrderedDict()
    hit = total = 0
    while arrivals:
        for now_s, number, index in list(arrivals.due(arrivals.next_s)):
            turn = trace.conversations[number].turns[index]
            ids = [i for first, count in turn.runs for i in range(first, first + count)]
            found = next((n for n, item in enumerate(ids) if item not in cached), len(ids))
            hit += min(found, (turn.prompt_tokens - 1) // trace.block_tokens) * trace.block_tokens
            total += turn.prompt_tokens
            for item in reversed(ids):
                cached[item] = None
                cached.move_to_end(item)
            while capacity is not None and len(cached) > capacity:
                cached.popitem(last=False)
            arrivals.ended(number, index, now_s + turn.service_s)
    return hit / total
