"""From a request's fields and headers to its Terms: priority, tenant, session, time, retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.engine.messages import Terms
from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from starlette.requests import Request

    from tokenspeed.server.conversation.cleaned import Chat
    from tokenspeed.server.conversation.sessions import Sessions
    from tokenspeed.server.conversation.term_fields import TermFields

TENANT_HEADER = "x-tenant"
MAX_TENANT_CHARS = 64
KEY_TENANT = "tokenspeed.tenant"
"""Scope entry in which `guard.py` leaves the tenant of the API key."""


def read_terms(
    body: TermFields, request: Request, sessions: Sessions, chat: Chat | None = None
) -> Terms:
    """Return the terms of a request.

    Args:
        chat: what a chat is known by when nobody names its session; None: a plain text.
    Raises:
        RequestError: the tenant's name is not acceptable, or not the API key's.
    """
    owner = owner_of(request)
    identity = sessions.identify(body, request.headers, owner, chat)
    return Terms(
        priority=body.priority,
        salt=body.cache_salt.encode(),
        tenant=_tenant(request),
        session=identity.session,
        parent=identity.parent,
        root=identity.root,
        owner=owner,
        timeout_s=body.timeout_s,
        retain_s=max(body.retentions_s(), default=0.0),
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


def owner_of(request: Request) -> str:
    """Return who names the sessions: the key's tenant, else the key's holder, else the tenant.

    A key without a tenant may speak for many tenants; its holder sees what becomes of them all.
    """
    of_key = request.scope.get(KEY_TENANT)
    if of_key is None:
        return f"tenant:{_tenant(request)}"
    return f"key-of:{of_key}"
