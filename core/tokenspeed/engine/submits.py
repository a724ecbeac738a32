"""Makes the Submit of a request, checked against the model; for API processes and `LLM` alike."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenspeed.engine.messages import ModelInfo, Submit, Terms
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed.sampling.params import SamplingParams


MAX_TIMEOUT_S = 24 * 3600.0


def make_submit(
    model: ModelInfo,
    prompt_ids: Sequence[int] | NDArray[np.int32],
    params: SamplingParams,
    request_id: str,
    *,
    epoch: int = 0,
    terms: Terms | None = None,
) -> Submit:
    """Check a request against the model and make its Submit; a missing seed is drawn here.

    Args:
        terms: priority, tenant, time limit, ...; None: the usual ones.
    Raises:
        RequestError: a parameter or token id is out of range; names it.
    """
    params.validate(model.vocab_size)
    ids = np.asarray(prompt_ids)  # narrowed below, when every id is known to fit
    if ids.size and not (ids.min() >= 0 and ids.max() < model.vocab_size):
        wrong = int(ids.min() if ids.min() < 0 else ids.max())
        raise RequestError(
            f"prompt holds token id {wrong}, allowed is [0, {model.vocab_size - 1}]; "
            "encode the prompt with this model's tokenizer",
            param="prompt",
        )
    check_fits(model, ids.size, params.max_tokens)
    if params.seed is None:
        params = msgspec.structs.replace(params, seed=secrets.randbits(63))
    eos = () if params.ignore_eos else model.eos_token_ids
    return Submit(
        request_id=request_id,
        epoch=epoch,
        prompt_ids=ids.astype("<i4", copy=False).tobytes(),
        params=params,
        stop_token_ids=tuple(dict.fromkeys((*eos, *params.stop_token_ids))),
        **_checked(terms or Terms(), ids.size),
    )


def resumed(submit: Submit, output_ids: array[int], *, waited_s: float) -> Submit:
    """Return the Submit of a request that goes on after tokens that were delivered.

    Args:
        waited_s: time since it arrived: its time limit is one for all of it.
    """
    params, timeout_s = submit.params, submit.timeout_s
    if timeout_s is not None:
        timeout_s = max(0.001, timeout_s - waited_s)
    if output_ids and params.prompt_logprobs is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=None)
    return msgspec.structs.replace(
        submit, output_ids=output_ids.tobytes(), params=params, timeout_s=timeout_s
    )


def _checked(terms: Terms, num_prompt: int) -> dict[str, Any]:
    """Return the terms' fields; reuse points outside of the prompt do not count.

    Raises:
        RequestError: the time limit is out of range.
    """
    if terms.timeout_s is not None and not 0 < terms.timeout_s <= MAX_TIMEOUT_S:
        raise RequestError(
            f"timeout_s is {terms.timeout_s}, allowed is more than 0 to {MAX_TIMEOUT_S:.0f}; "
            "change or omit it",
            param="timeout_s",
        )
    points = tuple(dict.fromkeys(p for p in terms.reuse_points if 0 < p < num_prompt))
    return {**msgspec.structs.asdict(terms), "reuse_points": points}


def check_fits(
    model: ModelInfo, num_prompt_tokens: int, max_tokens: int | None, param: str = "max_tokens"
) -> None:
    """Refuse an answer length that cannot fit beside the prompt.

    Raises:
        RequestError: names `param` and the numbers.
    """
    room = model.max_context_tokens - num_prompt_tokens
    if max_tokens is not None and max_tokens > room:
        raise RequestError(
            f"{param} is {max_tokens}, but the context is {model.max_context_tokens} tokens and "
            f"the prompt takes {num_prompt_tokens}, so at most {max(0, room)} fit; "
            f"lower {param}, omit it, or shorten the prompt",
            param=param,
            code="context_length_exceeded",
        )
