"""Text to tokens and back, for API processes: no torch, no model. Names load lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.tokenizer.chat import ChatTemplate
    from tokenspeed.tokenizer.detokenizer import Detokenizer
    from tokenspeed.tokenizer.incremental import EncodeCache
    from tokenspeed.tokenizer.load import load_tokenizer
    from tokenspeed.tokenizer.stop import StopMatcher
    from tokenspeed.tokenizer.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "EncodeCache",
    "StopMatcher",
    "Tokenizer",
    "load_tokenizer",
]

_HOMES = {
    "ChatTemplate": "chat",
    "Detokenizer": "detokenizer",
    "EncodeCache": "incremental",
    "StopMatcher": "stop",
    "Tokenizer": "tokenizer",
    "load_tokenizer": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenspeed.tokenizer' has no attribute {name!r}")
    return getattr(import_module(f"tokenspeed.tokenizer.{_HOMES[name]}"), name)
