"""Fields of the messages API that are ignored or not built, as `docs/http-api.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

INERT: Mapping[str, str] = {
    "metadata": "labels for the caller's own records",
    "context_management": "nothing is edited: answers say that no edit was applied",
    "service_tier": "there is one tier",
    "inference_geo": "there is one place",
    "user_profile_id": "a label for the caller's own records",
    "diagnostics": "usage and /v1/engine/state say why a cached prefix ended",
}
"""Field -> why ignoring it changes nothing the caller could see."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "container": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "fallbacks": (),
    "fallback_credit_token": (),
    "billing_policy": (),
    "compaction": (),
    "thread": (),
}
"""Field that is not built -> the values (beside null) that ask for nothing."""
