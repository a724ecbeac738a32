"""Turn n + 1 takes all of turn n from the cache, prompt and answer, over the real engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.families import FAMILIES, Family
from tests.support.scripted import byte_tokenizer, write_scripted_model
from tests.support.server import ServerProcess
from tokenizers import AddedToken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAID = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Fix it."}]
NEXT = {"role": "user", "content": "And now?"}


def write_model(folder: Path, family: Family, **fields: Any) -> Path:
    """Write a model that thinks and answers as its family does."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in family.specials])
    model = write_scripted_model(
        folder,
        tokenizer=tokenizer,
        script=family.answer.format(think="I think.", text="Done."),
        eos_token_id=tokenizer.token_to_id(family.ends[0]),
        **fields,
    )
    config = model / "tokenizer_config.json"
    told = {"eos_token": family.ends[0], "chat_template": family.template}
    config.write_text(json.dumps(told))
    return model


def ask(server: ServerProcess, said: list[Any], **fields: Any) -> tuple[Any, Any]:
    """Return the answer's message and the usage."""
    body = {"model": server.model, "messages": said, **fields}
    answer = server.call("/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    return answer.json()["choices"][0]["message"], answer.json()["usage"]


def cached(usage: Any) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module", params=FAMILIES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp(request.param)
    model = write_model(folder / "model", FAMILIES[request.param])
    with ServerProcess(model, folder, "--reasoning-parser", "think") as running:
        yield running


def test_cached_tokens_are_the_prompt_and_the_answer_of_the_turn_before(
    server: ServerProcess,
) -> None:
    """All but the token that ended it: what is sampled last is computed by nobody."""
    said, before = list(SAID), None
    for _ in range(4):
        message, usage = ask(server, said)
        if before is not None:
            assert cached(usage) == before["prompt_tokens"] + before["completion_tokens"] - 1
        before = usage
        said += [{"role": "assistant", "content": message["content"]}, NEXT]
    assert server.metric("tokenspeed_turns_continued_total") == 3
    assert server.metric("tokenspeed_turns_remembered") == 4
    assert server.metric("tokenspeed_turn_memory_bytes") > 4 * 700


def test_an_edited_answer_is_rendered_anew(server: ServerProcess) -> None:
    said = [SAID[0], {"role": "user", "content": "Edit it."}]
    _, usage = ask(server, said)
    continued = server.metric("tokenspeed_turns_continued_total")
    _, after = ask(server, [*said, {"role": "assistant", "content": "Undone."}, NEXT])
    assert cached(after) < usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert server.metric("tokenspeed_turns_continued_total") == continued
    assert server.metric('tokenspeed_turns_refused_total{reason="edited"}') == 1


def test_a_turn_that_streams_is_continued_too_and_n_choices_each(server: ServerProcess) -> None:
    said = [SAID[0], {"role": "user", "content": "Stream it."}]
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": 2}
    answer = server.call("/v1/chat/completions", {"model": "model", "messages": said, **options})
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    usage = chunks[-1]["usage"]
    deltas = [
        choice["delta"] for chunk in chunks for choice in chunk["choices"] if not choice["index"]
    ]
    content = "".join(delta.get("content") or "" for delta in deltas)
    _, after = ask(server, [*said, {"role": "assistant", "content": content}, NEXT])
    assert cached(after) == usage["prompt_tokens"] + usage["completion_tokens"] // 2 - 1


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Of a model that can be entered only where a snapshot was taken."""
    folder = tmp_path_factory.mktemp("recurrent")
    model = write_model(folder / "model", FAMILIES["strips"], mode="hash", state_layers=1)
    with ServerProcess(model, folder) as running:
        yield running


def test_a_recurrent_model_goes_on_from_where_the_turn_ended(recurrent: ServerProcess) -> None:
    said, before = list(SAID), None
    for _ in range(4):
        message, usage = ask(recurrent, said, max_tokens=12)
        if before is not None:
            assert cached(usage) == before["prompt_tokens"] + before["completion_tokens"] - 1
        before = usage
        said += [{"role": "assistant", "content": message["content"]}, NEXT]
    assert recurrent.metric("tokenspeed_turns_continued_total") == 3


def test_without_a_memory_the_template_writes_every_turn_anew(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", FAMILIES["strips"])
    flags = ("--turn-memory-mib", "0", "--reasoning-parser", "think")
    with ServerProcess(model, tmp_path, *flags) as server:
        message, usage = ask(server, SAID)
        _, after = ask(server, [*SAID, {"role": "assistant", "content": message["content"]}, NEXT])
        assert 0 < cached(after) < usage["prompt_tokens"] + usage["completion_tokens"] - 1
        assert server.metric("tokenspeed_turns_continued_total") == 0
