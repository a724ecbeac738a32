"""Fields of a body that say how a request is treated, not what it asks; all APIs share them.

They are this server's own: every API takes them beside its usual fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tokenspeed.engine.submits import MAX_TIMEOUT_S
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.http.schema import Body, Strict

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SESSION_CHARS = 512
MAX_RETENTION_S = 24 * 3600
MAX_SALT_CHARS = 256
"""Of `cache_salt`: the engine keeps it beside each session's and each block's place."""
TTL_S = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43_200.0}
_DAY_S = 86_400.0


class CacheControl(Strict):
    """Anthropic's mark: keep the prompt up to here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class CacheOptions(Strict):
    """OpenAI's options of the prompt cache."""

    mode: Literal["implicit"] = "implicit"
    ttl: Literal["30m"] = "30m"


class TermFields(Body):
    """What every API takes."""

    priority: Integer = Field(0, ge=-(2**31), le=2**31 - 1)
    cache_salt: str = Field("", max_length=MAX_SALT_CHARS)
    cache_retention_s: float = Field(0.0, ge=0, le=MAX_RETENTION_S)
    timeout_s: float | None = Field(None, gt=0, le=MAX_TIMEOUT_S)
    prompt_cache_key: str = Field("", max_length=MAX_SESSION_CHARS)

    def retentions_s(self) -> Iterator[float]:
        """Yield every time for which the request asks to keep its prompt; the longest counts."""
        yield self.cache_retention_s


class OpenAiTermFields(TermFields):
    """What both OpenAI APIs take beside."""

    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] = "in_memory"
    prompt_cache_options: CacheOptions | None = None

    def retentions_s(self) -> Iterator[float]:
        """Yield the times of OpenAI's fields too."""
        yield from super().retentions_s()
        if self.prompt_cache_retention == "24h":
            yield _DAY_S
        if self.prompt_cache_options is not None:
            yield TTL_S[self.prompt_cache_options.ttl]


def ttl_s(control: CacheControl | None) -> float:
    """Return for how long a mark keeps the prompt."""
    return 0.0 if control is None else TTL_S[control.ttl]
