"""Tenants' floors and caps as a naive reader of the contract keeps them.

Counts blocks by walking every request's table, where the scheduler keeps sums.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.simulated_memory import require

from tokenspeed.scheduler import Scheduler

TENANTS = (0, 1, 2)


@dataclass(slots=True)
class NaiveTenants:
    """Figures by tenant, in blocks.

    Args:
        num_sets: blocks of the pool.
        num_kept: how often others took from an idle tenant what it had beyond its floor.
        idle_taken: what each had at the last look, of those who had nothing under way since.
    """

    num_sets: int
    block_tokens: int
    floors: dict[int, int] = field(default_factory=dict)
    caps: dict[int, int] = field(default_factory=dict)
    idle_taken: dict[int, int] = field(default_factory=dict)
    num_kept: int = 0

    def choose(self, chance: random.Random) -> tuple[int, int, int | None]:
        """Return (tenant, floor, cap) that may be set now."""
        tenant = chance.choice(TENANTS)
        most = self.num_sets - self._floors_beside(tenant)
        floor = chance.choice([0, 0, min(1, most), most // 3, most // 2, most])
        caps = [None, None, floor, floor + 2, self.num_sets // 2, self.num_sets]
        cap = chance.choice(caps)
        return tenant, floor, None if cap is None else max(cap, floor, 1)

    def set(self, tenant: int, floor: int, cap: int | None) -> None:
        """Note new figures."""
        self.floors.pop(tenant, None)
        self.caps.pop(tenant, None)
        if floor or cap is not None:
            self.floors[tenant] = floor
        if cap is not None:
            self.caps[tenant] = cap
        self.idle_taken.clear()

    def gave_up(self, tenants: Iterable[int]) -> None:
        """Note that tenants released a session: what they had of it is nobody's loss."""
        for tenant in tenants:
            self.idle_taken.pop(tenant, None)

    def capacity(self, tenant: int) -> int:
        """Return the tokens of the longest request of a tenant that can ever run."""
        beside_floors = self.num_sets - self._floors_beside(tenant)
        return min(self.caps.get(tenant, beside_floors), beside_floors) * self.block_tokens

    def check(
        self, scheduler: Scheduler, live: Mapping[int, int], busy: set[int], *, is_planned: bool
    ) -> None:
        """Look at what tenants with figures have.

        Args:
            live: tenant of each live request.
            busy: tenants whose requests live, or ended and are still under way.
            is_planned: a plan was just made: caps hold.
        """
        usages = {item["tenant"]: item for item in scheduler.tenants()}
        require(usages.keys() == self.floors.keys(), f"{usages} have figures, not {self.floors}")
        blocks = _blocks_by_tenant(scheduler, live)
        for tenant, usage in usages.items():
            floor, cap, held, cached = (
                usage["floor_blocks"], usage["cap_blocks"],
                usage["held_blocks"] or 0, usage["cached_blocks"] or 0,
            )  # fmt: skip
            require(floor == self.floors[tenant] and cap == self.caps.get(tenant), f"{usage}")
            # A step under way may hold what its request has let go, and a copy's source.
            require(held >= len(blocks.get(tenant, ())), f"{usage}: its requests hold {blocks}")
            require(
                not is_planned or cap is None or cached == 0 or held + cached <= cap,
                f"tenant {tenant} is above its cap: {usage}",
            )
            if tenant in busy:
                self.idle_taken.pop(tenant, None)
                continue
            before = self.idle_taken.get(tenant, 0)
            self.idle_taken[tenant] = held + cached
            least = min(before, self.floors[tenant])
            require(held + cached >= least, f"others took of the floor, from {before}: {usage}")
            self.num_kept += held + cached == floor < before

    def _floors_beside(self, tenant: int) -> int:
        return sum(floor for other, floor in self.floors.items() if other != tenant)


def _blocks_by_tenant(scheduler: Scheduler, live: Mapping[int, int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    requests: Iterable[dict[str, Any]] = scheduler.blocks()["requests"]
    for request in requests:
        if request["id"] in live:
            found.setdefault(live[request["id"]], set()).update(request["blocks"][0])
    return found
