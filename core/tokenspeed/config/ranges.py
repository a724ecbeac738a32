"""The range of every setting, checked in one place and before anything heavy is loaded.

`load_config` calls this, so that flags, environment, YAML and `LLM(...)` are treated alike.
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any

from tokenspeed.config.schema import settings_of
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100


def shown(value: object) -> str:
    """Return a value as an error message quotes it: cut short, unprintable characters escaped."""
    return _REPR.repr(value)


def check_settings(config: Any, *, sources: Mapping[str, str] | None = None) -> None:
    """Check numbers against their ranges, and that every text can be passed on.

    Args:
        config: of a dataclass of `schema.py`.
        sources: setting -> where its value came from, such as "--max-running"; for messages.
    Raises:
        ConfigError: names source, value and what is allowed.
    """
    for name, item in settings_of(type(config)).items():
        value = getattr(config, name)
        source = (sources or {}).get(name, name)
        if item.metadata["range"] is not None:
            _check_number(source, value, *item.metadata["range"])
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                _check_text(source, text)
    _check_block_tokens((sources or {}).get("block_tokens", "block_tokens"), config.block_tokens)


def range_text(item: Any) -> str:
    """Return a setting's range for the reference page; "" where it has none."""
    bounds = item.metadata["range"]
    return "" if bounds is None else f"{bounds[0]} to {bounds[1]}"


def _check_number(source: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(
            f"{source} is {shown(value)}, allowed is {low} to {high}; change or omit it"
        )


def _check_text(source: str, text: str) -> None:
    is_unicode = text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
    if not is_unicode or "\0" in text:
        raise ConfigError(
            f"{source} is {shown(text)}, UTF-8 text without NUL is needed; change the value"
        )


def _check_block_tokens(source: str, value: int) -> None:
    if value & (value - 1):
        raise ConfigError(
            f"{source} is {value}, a power of two from 16 to 65536 is needed; change or omit it"
        )
