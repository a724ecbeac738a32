"""How much a model is to think, in the words of chat templates, whichever API asked.

Templates read a switch (`enable_thinking`, in some families `thinking`) or a level
(`reasoning_effort`); one that reads neither ignores them.
"""

from __future__ import annotations

from typing import Any, Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

_LEVELS = {"minimal": "low", "low": "low", "medium": "medium"}


def thinking_variables(
    effort: Effort | None = None, *, is_enabled: bool | None = None
) -> dict[str, Any]:
    """Return template variables; empty where nothing was asked for.

    Args:
        effort: "none" switches thinking off; levels that templates do not know are the next one.
        is_enabled: switches it on or off; None: as the template does by itself.
    """
    if effort == "none":
        is_enabled = False
    variables: dict[str, Any] = {}
    if is_enabled is not None:
        variables |= {"enable_thinking": is_enabled, "thinking": is_enabled}
    if effort is not None and effort != "none":
        variables["reasoning_effort"] = _LEVELS.get(effort, "high")
    return variables
