"""The four forms of a completion's `prompt` and an embedding's `input`, told apart and checked."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenspeed.errors import RequestError
from tokenspeed.server.http.field_limits import MAX_PROMPTS
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.server.http.field_limits import FieldLimits

Ids: TypeAlias = "list[int] | array[int]"


def split_prompts(
    prompt: Any, limits: FieldLimits, *, param: str = "prompt", most: int = MAX_PROMPTS
) -> Sequence[str | Ids]:
    """Tell the four forms of `prompt` apart and return the prompts in it.

    Args:
        param: name of the field.
        most: prompts that it may hold.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, array):
        limits.check_prompt_tokens(len(prompt), param)
        return [prompt]
    if not isinstance(prompt, list):
        raise _bad_prompt(prompt, param)
    if prompt and type(prompt[0]) is int:
        limits.check_prompt_tokens(len(prompt), param)
        if all(type(item) is int for item in prompt):
            return [prompt]
    if not prompt or len(prompt) > most:
        raise RequestError(
            f"{param} is a list of {len(prompt)}, 1 to {most} prompts are allowed; change it",
            param=param,
        )
    if all(isinstance(item, str) for item in prompt):
        return prompt
    for index, item in enumerate(prompt):
        if not isinstance(item, list):
            raise _bad_prompt(item, f"{param}.{index}")
        limits.check_prompt_tokens(len(item), param)
        if not all(type(token) is int for token in item):
            raise _bad_prompt(item, f"{param}.{index}")
    return prompt


def num_prompts(prompt: Any) -> int:
    """Return how many prompts there are, if they are well-formed."""
    is_several = isinstance(prompt, list) and prompt and type(prompt[0]) is not int
    return len(prompt) if is_several else 1


def _bad_prompt(value: Any, param: str) -> RequestError:
    return RequestError(
        f"{param} is {shorten(value)}: a string, a list of strings, a list of token ids or a list "
        "of lists of token ids is needed; change it",
        param=param,
    )
