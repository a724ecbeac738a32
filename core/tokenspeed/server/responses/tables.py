"""Fields of the responses API that are ignored or not built, as `docs/http-api.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

INERT: Mapping[str, str] = {
    "user": "an end-user label for the caller's own records",
    "safety_identifier": "an end-user label for the caller's own records",
    "client_metadata": "labels for the caller's own records",
    "service_tier": "there is one tier",
    "max_tool_calls": "it bounds tools that only the vendor runs",
}
"""Field -> why ignoring it changes nothing the caller could see."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "background_options": (),
    "conversation": (),
    "context_management": ([],),
    "prompt": (),
    "moderation": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "access_programs": (),
    "image": (),
}
"""Field that is not built -> the values (beside null) that ask for nothing."""
