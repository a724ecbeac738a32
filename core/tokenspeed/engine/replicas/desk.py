"""What is asked of all replicas at once: sessions, tenants, the picture; answers made one.

A replica whose engine is gone for now has nothing of any session. Figures of tenants are changed on
all replicas or, where one cannot be asked, on none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tokenspeed.engine.messages import SessionReply, TenantState
from tokenspeed.engine.questions import RELEASE_TIMEOUT_S, STATE_TIMEOUT_S
from tokenspeed.engine.replicas.picture import merged
from tokenspeed.errors import EngineAwayError, EngineGoneError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.engine.frontend import Frontend
    from tokenspeed.engine.messages import TenantFigures

SUMS = (
    "live_requests", "turns", "prompt_tokens", "cached_tokens", "created_tokens",
    "recomputed_tokens", "output_tokens",
)  # fmt: skip
"""What a session has on all replicas together."""


class Asked(Protocol):
    """A replica as it is asked."""

    number: int
    frontend: Frontend

    @property
    def is_here(self) -> bool:
        """Whether it can answer."""
        ...


class FleetDesk:
    """The questions' half of a fleet."""

    def __init__(self, replicas: Sequence[Asked]) -> None:
        self._asked = replicas

    async def state(self, *, timeout_s: float = STATE_TIMEOUT_S) -> dict[str, Any]:
        """Return one picture of all replicas; those that do not answer are named in it.

        Raises:
            EngineError: none of them answers.
        """
        pictures = await asyncio.gather(
            *(replica.frontend.state(timeout_s=timeout_s) for replica in self._asked),
            return_exceptions=True,
        )
        failures = [item for item in pictures if isinstance(item, BaseException)]
        if len(failures) == len(pictures):
            raise failures[0]
        return merged(
            {
                replica.number: str(item) if isinstance(item, BaseException) else item
                for replica, item in zip(self._asked, pictures, strict=True)
            }
        )

    async def tenants(self, *, timeout_s: float = STATE_TIMEOUT_S) -> tuple[TenantState, ...]:
        """Ask what tenants with a floor or a cap have, on all replicas together.

        Raises:
            EngineError: one does not answer in `timeout_s`.
        """
        here = self._here()
        states = await asyncio.gather(*(one.tenants(timeout_s=timeout_s) for one in here))
        return summed_tenants(states)

    async def change_tenant(
        self, name: str, figures: TenantFigures, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> tuple[TenantState, ...]:
        """Give a tenant other figures: each replica gets its share.

        Raises:
            RequestError: as `Frontend.change_tenant`; nothing was changed.
            EngineError: a replica is away, and nothing was changed; or one did not answer in
                `timeout_s`, and it is not known whether it was.
        """
        first, *others = self._all_here()
        share = figures.share(1 + len(others))
        # Replicas are alike: what one takes the others take.
        states = [await first.change_tenant(name, share, timeout_s=timeout_s)]
        states += await asyncio.gather(
            *(one.change_tenant(name, share, timeout_s=timeout_s) for one in others)
        )
        return summed_tenants(states)

    async def session(
        self, owner: str, session: str, *, timeout_s: float = STATE_TIMEOUT_S
    ) -> SessionReply:
        """Ask for a session's family and sums, on all replicas together.

        Raises:
            EngineError: one does not answer in `timeout_s`.
        """
        replies = await asyncio.gather(
            *(one.session(owner, session, timeout_s=timeout_s) for one in self._here())
        )
        bodies = [msgspec.msgpack.decode(it.body) for it in replies if it.outcome == "done"]
        if not bodies:
            return replies[0]
        children = dict.fromkeys(child for body in bodies for child in body["children"])
        body = {
            **bodies[0],
            "children": list(children),
            **{name: sum(body[name] for body in bodies) for name in SUMS},
        }
        return SessionReply(query_id=0, outcome="done", body=msgspec.msgpack.encode(body))

    async def release_session(
        self,
        owner: str,
        session: str,
        *,
        group: bool = False,
        abort: bool = False,
        timeout_s: float = RELEASE_TIMEOUT_S,
    ) -> SessionReply:
        """Ask that what a session alone left in the caches be dropped.

        Raises:
            EngineError: one does not answer in `timeout_s`.
        """
        replies = await asyncio.gather(
            *(
                one.release_session(owner, session, group=group, abort=abort, timeout_s=timeout_s)
                for one in self._here()
            )
        )
        return joined_releases(replies)

    def _here(self) -> list[Frontend]:
        """Return the front ends of those that can answer.

        Raises:
            EngineError: none can.
        """
        here = [replica.frontend for replica in self._asked if replica.is_here]
        if here:
            return here
        reasons = [replica.frontend.unhealthy_reason for replica in self._asked]
        if all(reasons):
            raise EngineGoneError(reasons[0] or "")
        raise EngineAwayError("all replicas are being started again; ask again in some seconds")

    def _all_here(self) -> list[Frontend]:
        """Return the front ends of all but those that were given up.

        Raises:
            EngineError: one of them is away.
        """
        here = self._here()
        for replica in self._asked:
            if not replica.is_here and replica.frontend.unhealthy_reason is None:
                raise EngineAwayError(
                    f"replica {replica.number} is being started again, and all must take the "
                    "change; nothing was changed; send it again in some seconds"
                )
        return here


def summed_tenants(states: Sequence[Sequence[TenantState]]) -> tuple[TenantState, ...]:
    """Return what each tenant has on all replicas together, by name."""
    by_name: dict[str, TenantState] = {}
    for state in (state for one in states for state in one):
        known = by_name.get(state.name)
        by_name[state.name] = state if known is None else _sum_of(known, state)
    return tuple(by_name[name] for name in sorted(by_name))


def _sum_of(one: TenantState, other: TenantState) -> TenantState:
    def added(name: str) -> int | None:
        values = (getattr(one, name), getattr(other, name))
        return None if values[0] is None or values[1] is None else values[0] + values[1]

    names = (field for field in TenantState.__struct_fields__ if field != "name")
    return msgspec.structs.replace(one, **{name: added(name) for name in names})


def joined_releases(replies: Sequence[SessionReply]) -> SessionReply:
    """Make one answer: busy where one is, unknown where all are, else done."""
    outcomes = {reply.outcome for reply in replies}
    if outcomes == {"unknown"}:
        return replies[0]
    bodies = [msgspec.msgpack.decode(reply.body) for reply in replies]
    released: dict[str, dict[str, Any]] = {}
    live: dict[str, int] = {}
    for body in bodies:
        for item in body.get("released", ()):
            sums = released.setdefault(item["session"], dict.fromkeys(item, 0))
            released[item["session"]] = {
                name: value if name == "session" else sums[name] + value
                for name, value in item.items()
            }
        for name, count in body.get("live_requests", {}).items():
            live[name] = live.get(name, 0) + count
    joined: dict[str, Any] = {"released": list(released.values())}
    if "busy" in outcomes:
        joined = {"live_requests": live, **joined}
    outcome = "busy" if "busy" in outcomes else "done"
    return SessionReply(query_id=0, outcome=outcome, body=msgspec.msgpack.encode(joined))
