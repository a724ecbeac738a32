"""Tenants with a floor or a cap: their figures in bytes, and what they have.

The scheduler counts whole blocks of numbered tenants; names, bytes and what outlives a crash are
known here. One truth for all API processes. Thread: the engine's only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.messages import TenantFigures, TenantState
from tokenspeed.engine.requests import number_of
from tokenspeed.engine.tenant_file import MAX_NAME_CHARS, is_name
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenspeed.kv import ArenaLayout
    from tokenspeed.scheduler import Scheduler

MAX_TENANTS = 64
"""With figures, at once: the scheduler looks at each when it makes room."""


class Tenants:
    """Figures by name.

    Args:
        block_bytes: of one block of all cache groups.
        uncounted: names of cache groups that are no full ones: their blocks and rows are not
            counted by tenant, so that no figures can be kept.
    """

    def __init__(
        self, scheduler: Scheduler, *, block_bytes: int, uncounted: tuple[str, ...] = ()
    ) -> None:
        self._scheduler = scheduler
        self._block_bytes = block_bytes
        self._uncounted = uncounted
        self._pool_bytes = scheduler.num_sets() * block_bytes
        self._figures: dict[str, TenantFigures] = {}
        self._file: Path | None = None

    def start(self, figures: Mapping[str, TenantFigures], *, now_us: int) -> None:
        """Take the figures of a start.

        Raises:
            RequestError: as `change`.
        """
        for name, wanted in figures.items():
            self.change(name, wanted, now_us=now_us)

    def keep_in(self, file: Path, *, now_us: int) -> None:
        """Keep the figures in a file from now on; what an earlier engine left there holds."""
        if file.exists():
            left = msgspec.json.decode(file.read_bytes(), type=dict[str, TenantFigures])
            for name in self._figures.keys() - left.keys():
                self.change(name, TenantFigures(), now_us=now_us)
            self.start(left, now_us=now_us)
        self._file = file

    def change(self, name: str, wanted: TenantFigures, *, now_us: int) -> list[int]:
        """Give a tenant other figures, or none; return keys of requests that can never fit now.

        Raises:
            RequestError: a figure is not as needed, or the model's cache cannot be counted by
                tenant; names it.
        """
        self._check(name, wanted)
        floor, cap = self._blocks(wanted)
        ended = self._scheduler.set_tenant_limits(
            number_of(name), floor_blocks=floor, cap_blocks=cap, now_us=now_us
        )
        if wanted.is_none:
            self._figures.pop(name, None)
        else:
            self._figures[name] = wanted
        self._save()
        return ended

    def states(self) -> tuple[TenantState, ...]:
        """Return figures and what each tenant has, by name."""
        if not self._figures:
            return ()
        known = {item["tenant"]: item for item in self._scheduler.tenants()}
        return tuple(
            self._state(name, known.get(number_of(name), {})) for name in sorted(self._figures)
        )

    def most_bytes(self, name: str) -> int:
        """Return the most that one request of a tenant may ever take."""
        own = self._figures.get(name, TenantFigures())
        others = self._floor_blocks_beside(name)
        beside_floors = self._pool_bytes - others * self._block_bytes
        return beside_floors if own.cap_bytes is None else min(own.cap_bytes, beside_floors)

    def _state(self, name: str, known: Mapping[str, int | None]) -> TenantState:
        figures = self._figures[name]
        return TenantState(
            name=name,
            floor_bytes=figures.floor_bytes,
            cap_bytes=figures.cap_bytes,
            held_bytes=(known.get("held_blocks") or 0) * self._block_bytes,
            cached_bytes=(known.get("cached_blocks") or 0) * self._block_bytes,
            running=known.get("running") or 0,
            waiting=known.get("waiting") or 0,
        )

    def _blocks(self, figures: TenantFigures) -> tuple[int, int | None]:
        """Return floor and cap in whole blocks: a floor holds what was asked for, a cap no more."""
        floor = -(-(figures.floor_bytes or 0) // self._block_bytes)
        if figures.cap_bytes is None:
            return floor, None
        cap = figures.cap_bytes // self._block_bytes
        return min(floor, cap), cap

    def _check(self, name: str, wanted: TenantFigures) -> None:
        if not is_name(name):
            raise RequestError(
                f"the tenant's name {name[:80]!r} has {len(name)} characters; 1 to "
                f"{MAX_NAME_CHARS} printable ASCII characters are allowed; choose another",
                param="name",
            )
        if wanted.is_none:
            return
        if self._uncounted:
            raise RequestError(
                f"tenant {name!r} cannot have a floor or a cap: the model keeps the cache groups "
                f"{', '.join(self._uncounted)}, which are not counted by tenant; allowed are "
                "models with full attention only; serve this one without figures",
                code="unsupported_parameter",
            )
        self._check_figures(name, wanted)

    def _check_figures(self, name: str, wanted: TenantFigures) -> None:
        floor, cap = wanted.floor_bytes or 0, wanted.cap_bytes
        if cap is not None and (cap < floor or cap < self._block_bytes):
            raise RequestError(
                f"tenant {name!r}: cap_bytes is {cap}; at least its floor of {floor} and one block "
                f"of {self._block_bytes} bytes are needed; raise it",
                param="cap_bytes",
            )
        others = sum(it.floor_bytes or 0 for key, it in self._figures.items() if key != name)
        if self._floor_blocks_beside(name) + self._blocks(wanted)[0] > self._scheduler.num_sets():
            raise RequestError(
                f"tenant {name!r}: floor_bytes is {floor}, and the floors of others are {others}; "
                f"the cache has {self._pool_bytes} bytes for all of them; lower one",
                param="floor_bytes",
            )
        if name not in self._figures and len(self._figures) >= MAX_TENANTS:
            raise RequestError(
                f"tenant {name!r} would be number {len(self._figures) + 1} with figures; at most "
                f"{MAX_TENANTS} may have some; take another's away first",
                param="name",
            )

    def _floor_blocks_beside(self, name: str) -> int:
        return sum(self._blocks(it)[0] for key, it in self._figures.items() if key != name)

    def _save(self) -> None:
        if self._file is None:
            return
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._figures))
        os.replace(fresh, self._file)


def tenants_of(scheduler: Scheduler, layout: ArenaLayout) -> Tenants:
    """Return the tenants of a scheduler over a cache that lies so."""
    return Tenants(
        scheduler,
        block_bytes=sum(layout.physical_bytes // group.packing for group in layout.groups),
        uncounted=tuple(group.name for group in layout.groups if group.kind != "full"),
    )
