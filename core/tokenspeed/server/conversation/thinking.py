"""How much a model is to think: in the words of chat templates, and as a budget of tokens.

Templates read a switch (`enable_thinking`, in some families `thinking`) or a level
(`reasoning_effort`). What a template has no word for becomes a budget, which the engine keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tokenspeed.errors import RequestError
from tokenspeed.server.http.numbers import Integer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Budget = Annotated[Integer, Field(ge=0, le=2**31 - 1)]

EFFORT_TOKENS: Mapping[str, int] = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}
"""Budgets where the template has no levels; above "high" nothing is bounded."""
BUDGET_FIELDS = ("thinking_budget", "thinking_token_budget")
"""Qwen's name of a budget, which SGLang has too, and vLLM's."""
_SWITCHES = ("enable_thinking", "thinking")
_LEVEL = "reasoning_effort"
_LEVELS = {"minimal": "low", "low": "low", "medium": "medium"}


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request says of its thinking, whichever API it came through.

    Args:
        effort: "none" switches thinking off.
        is_enabled: switches it on or off; None: as the template does by itself.
        budget: tokens at most.
        field: that gave the budget, and must be kept; "": it may go unheard where nothing thinks.
    """

    effort: Effort | None = None
    is_enabled: bool | None = None
    budget: int | None = None
    field: str = ""

    @property
    def is_off(self) -> bool:
        """Whether the answer is to come without thinking."""
        return self.effort == "none" or self.is_enabled is False

    def variables(self) -> dict[str, Any]:
        """Return template variables; empty where nothing was asked for.

        Levels that templates do not know are the next one.
        """
        variables: dict[str, Any] = {}
        if self.is_off or self.is_enabled is not None:
            variables |= dict.fromkeys(_SWITCHES, not self.is_off)
        if self.effort is not None and self.effort != "none":
            variables[_LEVEL] = _LEVELS.get(self.effort, "high")
        return variables

    def tokens(self, template_reads: Collection[str], *, can_bound: bool) -> int | None:
        """Return how many tokens the answer may think; None: nothing bounds it.

        Args:
            template_reads: names of the variables that the chat template uses.
            can_bound: the server's parsers know how thinking is written.
        Raises:
            RequestError: a budget must be kept and cannot.
        """
        if self.budget is not None and self.field and not can_bound:
            raise RequestError(
                f"{self.field} is {self.budget}: the parsers of this server know no thinking that "
                "could be bounded; omit it, or start the server with a reasoning parser",
                param=self.field,
                code="unsupported_parameter",
            )
        if self.budget is not None:
            return self.budget
        if self.is_off:
            return None if any(name in template_reads for name in _SWITCHES) else 0
        if self.effort is None or _LEVEL in template_reads:
            return None
        return EFFORT_TOKENS.get(self.effort)


def budget_of(fields: Mapping[str, int | None]) -> tuple[int | None, str]:
    """Return the budget that a request of the OpenAI APIs names, and its field.

    Args:
        fields: BUDGET_FIELDS -> value.
    Raises:
        RequestError: they differ.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if len(set(given.values())) > 1:
        first, second = BUDGET_FIELDS
        raise RequestError(
            f"{first} is {given[first]} and {second} is {given[second]}; give one, or equal values",
            param=second,
        )
    return next(((value, name) for name, value in given.items()), (None, ""))
