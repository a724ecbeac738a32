"""A long list of token ids is read in pieces, and whatever else stands there as the body is."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from tokenspeed.errors import RequestError
from tokenspeed.server.http.body import _parse
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.long_ids import MIN_BYTES, take_out
from tokenspeed.server.openai.schemas import CompletionRequest, TokenizeRequest

LIMITS = FieldLimits(max_prompt_tokens=1_000_000, max_context_tokens=1_000_001)
IDS = [(7 * i) % 50_000 for i in range(40_000)]


def parsed(prompt: str, **fields: Any) -> CompletionRequest:
    rest = "".join(f", {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    raw = f'{{"model": "m", "prompt": {prompt}{rest}}}'.encode()
    return _parse(raw, CompletionRequest, LIMITS)


@pytest.mark.parametrize("separator", [",", ", ", " ,\n\t"])
def test_ids_arrive_as_they_were_sent(separator: str) -> None:
    body = parsed(f"[ {separator.join(map(str, IDS))} ]", max_tokens=3)
    assert isinstance(body.prompt, array)
    assert body.prompt.tolist() == IDS
    assert body.max_tokens == 3


def test_a_short_list_stays_a_list() -> None:
    assert parsed("[1, 2, 3]").prompt == [1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"prompt": IDS}, "prompt": "text"},
        {"user": 'a "prompt": [1, 2]', "prompt": "text"},
        {"user": "prompt", "prompt": "text"},
        {"prompt": [IDS, IDS]},
        {"prompt": ["a, 1] b" * MIN_BYTES]},
        {"prompt": [*IDS, 1 << 40]},
        {"prompt": [*IDS, True]},
        {"prompt": [*IDS, 1.0]},
    ],
)
def test_everything_else_is_read_with_the_body(fields: dict[str, Any]) -> None:
    raw = json.dumps({"model": "m", **fields}).encode()
    assert _parse(raw, CompletionRequest, LIMITS).prompt == fields["prompt"]


@pytest.mark.parametrize("bad", ["1,,2", "1 2", "01", ",", "1,", "+1", "1e", "--1"])
@pytest.mark.parametrize("is_first", [False, True])
def test_what_is_no_json_is_refused(bad: str, is_first: bool) -> None:
    good = ",".join(map(str, IDS))
    with pytest.raises(RequestError, match="is not valid JSON"):
        parsed(f"[{bad},{good}]" if is_first else f"[{good},{bad}]")


def test_two_commas_between_pieces_are_refused() -> None:
    filler = "1," * (MIN_BYTES // 2)  # the first piece ends at its last comma
    with pytest.raises(RequestError, match="is not valid JSON"):
        parsed(f"[{filler},{filler}1]")


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    ids = json.dumps(IDS)
    raw = f'{{"model": "m", "prompt": {ids}, "prompt": "text"}}'.encode()
    assert _parse(raw, CompletionRequest, LIMITS).prompt == "text"


def test_a_list_longer_than_any_prompt_is_refused_before_it_is_read() -> None:
    raw = b'{"prompt": [%b]}' % b",".join(b"%d" % token for token in IDS)
    with pytest.raises(RequestError, match="prompt is too long: 40000 tokens > 39999 maximum"):
        take_out(raw, "prompt", FieldLimits(39_999, 40_000))


def test_a_text_field_of_the_same_name_takes_no_ids() -> None:
    raw = json.dumps({"prompt": IDS}).encode()
    with pytest.raises(RequestError, match=r"prompt is .*valid string"):
        _parse(raw, TokenizeRequest, LIMITS)
