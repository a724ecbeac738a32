"""Text offsets of completions: positions in the returned text, whatever the tokens cut apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.scripted import END_OF_TEXT, ids_of, write_scripted_model

from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.server.openai.replies import CompletionLogprobs
from tokenspeed.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def entries(text: str) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id=token, logprob=-1.0, rank=1, top=()) for token in ids_of(text)]


def starts_of(text: str, *, base: int = 0) -> list[int]:
    """Return where the character of each byte begins: there is one token a byte."""
    return [base + index for index, char in enumerate(text) for _ in char.encode()]


def test_offsets_count_characters_of_the_text_also_across_chunks(tmp_path: Path) -> None:
    writer = CompletionLogprobs(load_tokenizer(write_scripted_model(tmp_path / "model")))
    text = "a\u00e9\U0001f600\u4e16!"
    tokens = entries(text)
    found = [offset for i in range(len(tokens)) for offset in writer.of([tokens[i]])["text_offset"]]
    assert found == starts_of(text)


def test_an_echoed_prompt_moves_the_answers_offsets_by_its_text(tmp_path: Path) -> None:
    writer = CompletionLogprobs(load_tokenizer(write_scripted_model(tmp_path / "model")))
    prompt, answer = "\u00e9x", "\u00fcy"
    ids = [END_OF_TEXT, *ids_of(prompt)]  # a token before the text that the text does not spell
    reply = writer.of([*entries(prompt), *entries(answer)], prompt_ids=ids, prompt_text=prompt)
    assert reply["text_offset"] == [0, *starts_of(prompt), *starts_of(answer, base=len(prompt))]
    assert len(reply["tokens"]) == len(reply["text_offset"])
