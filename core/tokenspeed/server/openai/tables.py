"""Fields of the chat and completions API that are ignored or not built, as `docs/http-api.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

INERT: Mapping[str, str] = {
    "user": "an end-user label for the caller's own records",
    "safety_identifier": "an end-user label for the caller's own records",
    "metadata": "labels for the caller's own records",
}
"""Field -> why ignoring it changes nothing the caller could see."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "best_of": (1,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "length_penalty": (1.0,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "bad_words": ([],),
    "lora_path": (),
    "images": ([],),
}
"""Field that is not built yet -> the values (beside null) that ask for nothing."""

NEUTRAL_MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "function_call": (),
    "audio": (),
    "refusal": (),
    "annotations": ([],),
}
"""The same for the fields of one message, so that an answer can be sent back as it came."""
