"""What a script gives to `LLM`, checked by type: HTTP requests are checked by their schemas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenspeed.checkpoint.json_file import shown
from tokenspeed.errors import RequestError
from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed.tokenizer import Tokenizer

    Prompt = str | Sequence[int] | NDArray[np.int32]


def prompts_of(prompts: Any) -> list[Prompt]:
    """Return one or several prompts as a list.

    Raises:
        RequestError: what is given is no prompt.
    """
    if isinstance(prompts, str) or getattr(prompts, "ndim", 0) == 1:
        return [prompts]
    if not isinstance(prompts, Sequence | np.ndarray):
        raise _no_prompt(prompts)
    if len(prompts) and isinstance(prompts[0], int | np.integer):
        return [prompts]
    return list(prompts)


def prompt_ids(prompt: Prompt, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Return the tokens of a prompt.

    Raises:
        RequestError: it is empty, or neither text nor token ids.
    """
    if isinstance(prompt, str):  # "" is empty even where a tokenizer would put a token before it
        ids: Any = tokenizer.encode(prompt) if prompt else ()
    elif isinstance(prompt, Sequence | np.ndarray):
        ids = prompt
    else:
        raise _no_prompt(prompt)
    if not len(ids):
        raise RequestError(
            "prompt is empty: 0 tokens, at least 1 is needed; give some text", param="prompt"
        )
    try:
        array = np.asarray(ids)
    except ValueError:
        raise _no_prompt(prompt) from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _no_prompt(prompt)
    return array


def params_of(
    count: int, params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    """Return the parameters of each of `count` prompts.

    Raises:
        RequestError: as many as prompts are needed, or a field has another type; names it.
    """
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams) or not isinstance(params, Sequence):
        return [typed_params(params)] * count
    if len(params) != count:
        raise RequestError(
            f"{len(params)} SamplingParams for {count} prompts; give one, or one each",
            param="params",
        )
    return [typed_params(item) for item in params]


def typed_params(params: object) -> SamplingParams:
    """Return parameters whose fields have the types that they declare; lists become tuples.

    Raises:
        RequestError: a field has another type; names it.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(
            f"params is {shown(params)}, a SamplingParams is needed; give "
            "SamplingParams(max_tokens=16), for example",
            param="params",
        )
    values = msgspec.structs.asdict(params)
    try:
        return msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at ")
        names = re.findall(r"\w+", path)
        name = next((item for item in names if item in values), "params")
        raise RequestError(
            f"{name} is {shown(values.get(name))}: {expected}; change or omit it", param=name
        ) from error


def _no_prompt(prompt: object) -> RequestError:
    return RequestError(
        f"prompt is {shown(prompt)}, a text or a list of token ids (whole numbers) is needed; give "
        "one, or a list of them",
        param="prompt",
    )
