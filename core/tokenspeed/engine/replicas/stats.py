"""The figures of several replicas as those of one: sums, and of times and starts the largest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.messages import EngineStats
from tokenspeed.engine.replicas.desk import summed_tenants

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST = frozenset({"epoch", "step_us_p50", "overhead_us_p50", "kv_number"})


def summed_stats(each: Sequence[EngineStats]) -> EngineStats | None:
    """Return the figures of all replicas together; None where there are none."""
    if not each:
        return None
    values: dict[str, Any] = {
        name: (max if name in LARGEST else sum)(getattr(one, name) for one in each)
        for name, value in msgspec.structs.asdict(each[0]).items()
        if isinstance(value, int | float)
    }
    ends: Counter[str] = Counter()
    for one in each:
        ends.update(one.match_ends)
    tenants = summed_tenants([one.tenants for one in each])
    return EngineStats(**values, match_ends=dict(ends), tenants=tenants)
