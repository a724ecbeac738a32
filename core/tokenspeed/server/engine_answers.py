"""What the routes about the engine answer, as types."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from tokenspeed.engine.messages import TenantState
from tokenspeed.server.http.answers import Answer

Part = dict[str, Any]


class Health(Answer, frozen=True):
    """Whether steps are completed, for how long nothing was, and what is wrong since when.

    Of several replicas the largest figures, and in `replicas` the health of each; "degraded": some
    of them are well.
    """

    status: Literal["ok", "degraded", "unhealthy"]
    model: str
    engine_epoch: int
    heard_s: float
    step_running_s: float
    no_step_completed_s: float
    reason: str | UnsetType = UNSET
    since: str | UnsetType = UNSET
    replicas: list[Part] | UnsetType = UNSET


class EngineState(Answer, frozen=True):
    """A picture of the engine's inside; `tokenspeed top` draws it."""

    time: float
    epoch: int
    uptime_s: float
    model: str
    limits: dict[str, int]
    rates: Part
    steps: Part
    last_plan: Part | None
    step_model: Part | None
    counters: dict[str, int]
    cache: Part
    match_ends: dict[str, int]
    sessions: list[Part]
    roots: list[Part]
    tenants: list[Part]
    speculation: Part | None
    blocks: Part
    tiers: Any
    alerts: list[Part]
    transfers: list[Part]
    states: dict[str, int]
    requests: list[Part]
    queue: list[Part]
    experts: Part | None
    """Loads and places of experts that move by their load."""
    partitions: list[Part] | UnsetType = UNSET
    """Of data-parallel attention: the counts of each."""
    replicas: list[Part] | UnsetType = UNSET
    """Of several: the figures of each, which the rest sums up."""


class Tenants(Answer, frozen=True):
    """All tenants with figures."""

    tenants: list[TenantState]


class Session(Answer, frozen=True):
    """A session, its family, and what its turns cost."""

    session: str
    parent: str | None
    root: str
    children: list[str]
    live_requests: int
    turns: int
    prompt_tokens: int
    cached_tokens: int
    created_tokens: int
    recomputed_tokens: int
    output_tokens: int


class ReleasedSession(Answer, frozen=True):
    """What a session alone had left in the cache."""

    session: str
    tokens: int
    bytes: int
    host_bytes: int


class Released(Answer, frozen=True):
    """The sessions that were released, children before their parents."""

    session: str
    released: list[ReleasedSession]
