"""From a request's fields and headers to its Terms: priority, tenant, session, time, retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.engine.messages import Terms
from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.sessions import session_of
from tokenspeed.server.http.fields import shorten
from tokenspeed.server.openai.schemas import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from tokenspeed.server.openai.schemas import CacheControl, CompletionRequest

TENANT_HEADER = "x-tenant"
MAX_TENANT_CHARS = 64
KEY_TENANT = "tokenspeed.tenant"
"""Scope entry in which `guard.py` leaves the tenant of the API key."""
_TTL_S = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43_200.0}
_DAY_S = 86_400.0


def read_terms(body: ChatRequest | CompletionRequest, request: Request) -> Terms:
    """Return the terms of a request.

    Raises:
        RequestError: the tenant's name is not acceptable, or not the API key's.
    """
    return Terms(
        priority=body.priority,
        salt=body.cache_salt.encode(),
        tenant=_tenant(request),
        session=session_of(body, request.headers),
        owner=_owner(request),
        timeout_s=body.timeout_s,
        retain_s=max(_retentions(body), default=0.0),
    )


def _tenant(request: Request) -> str:
    """Return the tenant of the API key, else the one that the header names."""
    given = request.headers.get(TENANT_HEADER, "").strip()
    of_key = str(request.scope.get(KEY_TENANT, ""))
    if of_key and given not in ("", of_key):
        raise RequestError(
            f"the header X-Tenant is {shorten(given)}, but the API key is that of tenant "
            f"{of_key!r}; drop the header",
            param="X-Tenant",
        )
    if len(given) > MAX_TENANT_CHARS or not given.isascii() or not given.isprintable():
        raise RequestError(
            f"the header X-Tenant is {shorten(given)}, up to {MAX_TENANT_CHARS} printable ASCII "
            "characters are allowed; shorten it",
            param="X-Tenant",
        )
    return of_key or given


def _owner(request: Request) -> str:
    """Return who names the sessions: the key's tenant, else the key's holder, else the tenant.

    A key without a tenant may speak for many tenants; its holder sees what becomes of them all.
    """
    of_key = request.scope.get(KEY_TENANT)
    if of_key is None:
        return f"tenant:{_tenant(request)}"
    return f"key-of:{of_key}"


def _retentions(body: ChatRequest | CompletionRequest) -> Iterator[float]:
    """Yield every time for which the request asks to keep its prompt; the longest one counts."""
    yield body.cache_retention_s
    if body.prompt_cache_retention == "24h":
        yield _DAY_S
    if body.prompt_cache_options is not None:
        yield _TTL_S[body.prompt_cache_options.ttl]
    if isinstance(body, ChatRequest):
        yield from _marks(body)


def _marks(body: ChatRequest) -> Iterator[float]:
    for message in body.messages:
        yield _ttl_s(message.cache_control)
        for part in message.content if isinstance(message.content, list) else ():
            yield _ttl_s(part.cache_control)
            if part.prompt_cache_breakpoint is not None:
                yield _TTL_S[part.prompt_cache_breakpoint.ttl or "30m"]


def _ttl_s(control: CacheControl | None) -> float:
    return 0.0 if control is None else _TTL_S[control.ttl]
