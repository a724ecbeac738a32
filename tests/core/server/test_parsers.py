"""A parser is chosen by name, sees what it looks for, and fails one request at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import byte_tokenizer, write_scripted_model
from tokenizers import AddedToken

from tokenspeed.contracts.parser import PARSES, AnswerStart, ParsedDelta
from tokenspeed.engine.messages import Delta
from tokenspeed.errors import CapabilityError, EngineError, PluginError
from tokenspeed.parsers.harmony import Harmony
from tokenspeed.parsers.mistral import Mistral
from tokenspeed.parsers.think import ThinkParser
from tokenspeed.parsers.together import Together
from tokenspeed.plugins import load_plugins
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.server.parser_choice import ParserChooser
from tokenspeed.server.parsers import AnswerFormat
from tokenspeed.server.pieces import Piece, TextAssembler
from tokenspeed.tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.tokenizer.tokenizer import Tokenizer

THINK = AnswerFormat("core/think", ThinkParser())
ANSWER = "<think>\nI add.\n</think>\n\nFour."
BODY = """
class Loud:
    markers = ()
    is_reasoning = False

    def start(self, start):
        return self

    def feed(self, text):
        return ParsedDelta(content=text.upper())

    def finish(self):
        return ParsedDelta(content="!")

class Plugin:
    @hookimpl
    def register_parsers(self, context):
        context.offer(Offer("parser", "NAME", Loud, facts={"parses": PARSES}))

plugin = Plugin()
"""


@pytest.fixture(scope="module", params=["spelled", "special"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    """One token a byte; the tags are spelled in bytes, or special tokens of their own."""
    backend = byte_tokenizer()
    if request.param == "special":
        tags = [AddedToken(tag, special=True) for tag in ThinkParser().markers]
        backend.add_special_tokens(tags)
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return load_tokenizer(write_scripted_model(folder, tokenizer=backend))


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.backend.encode(text, add_special_tokens=False).ids)


def assembled(
    tokenizer: Tokenizer, text: str, step: int, *, prompt: str = "", **params: Any
) -> Piece:
    """Return the whole Piece of an answer whose tokens come `step` at a time."""
    assembler = TextAssembler(
        tokenizer,
        SamplingParams(**params),
        frozenset(),
        parser=THINK.start(prompt),
        shown_ids=THINK.shown_ids(tokenizer),
    )
    ids, whole = ids_of(tokenizer, text), Piece()
    for at in range(0, len(ids), step):
        reason = "length" if at + step >= len(ids) else None
        tokens = tuple(ids[at : at + step])
        whole += assembler.push(Delta(request_id="r", tokens=tokens, finish_reason=reason))
        if whole.finish_reason is not None:
            break
    return whole


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_reasoning_and_its_tokens_do_not_depend_on_the_deltas(
    tokenizer: Tokenizer, step: int
) -> None:
    piece = assembled(tokenizer, ANSWER, step)
    assert (piece.reasoning, piece.text) == ("I add.", "Four.")
    assert piece.num_tokens == len(ids_of(tokenizer, ANSWER))
    opening = len(ids_of(tokenizer, "<think>")) - 1  # a tag counts where it is complete
    through_close = len(ids_of(tokenizer, "<think>\nI add.\n</think>"))
    assert piece.reasoning_tokens == through_close - opening


def test_a_block_that_the_template_opened_counts_from_the_first_token(
    tokenizer: Tokenizer,
) -> None:
    piece = assembled(tokenizer, "I add.\n</think>Four.", 4, prompt="<|im_start|>\n<think>\n")
    assert (piece.reasoning, piece.text) == ("I add.", "Four.")
    assert piece.reasoning_tokens == len(ids_of(tokenizer, "I add.\n</think>"))


@pytest.mark.parametrize("step", [1, 5, 100])
@pytest.mark.parametrize(
    ("stop", "reasoning", "content"),
    [
        ("add", "I ", ""),
        ("our", "I add.", "F"),
        ("</think>", "I add.", ""),
        ("\n\nF", "I add.", ""),
    ],
)
def test_a_stop_string_ends_reasoning_as_it_ends_content(
    tokenizer: Tokenizer, step: int, stop: str, reasoning: str, content: str
) -> None:
    piece = assembled(tokenizer, ANSWER, step, stop=(stop,))
    assert (piece.reasoning, piece.text) == (reasoning, content)
    assert piece.finish_reason == "stop"


def test_an_unclosed_block_is_reasoning_to_its_end(tokenizer: Tokenizer) -> None:
    piece = assembled(tokenizer, "<think>\nI add and add", 3)
    assert (piece.reasoning, piece.text, piece.finish_reason) == ("I add and add", "", "length")


def chosen(name: str, *plugins: str) -> AnswerFormat:
    registry = load_plugins(plugins, role="api", experimental=plugins)
    found = ParserChooser(registry, template=None).choose(tools="none", reasoning=name)
    assert found.form is not None
    return found.form


@pytest.mark.parametrize("name", ["think", "core/think"])
def test_the_cores_parser_is_chosen_by_name(name: str) -> None:
    assert chosen(name).pin == "core/think"


def test_an_unknown_parser_is_refused_with_those_there_are() -> None:
    with pytest.raises(CapabilityError, match=r"'thnk' is not offered.* mean 'core/think'"):
        chosen("thnk")


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path / "site", monkeypatch)


def install(space: PluginSpace, *, name: str = "loud", parses: str = '("reasoning",)') -> None:
    body = BODY.replace("NAME", name).replace("PARSES", parses)
    space.install("acme", body, slots='parser = "1.0"', roles='["api"]')


def test_a_strangers_parser_comes_through_the_hook(space: PluginSpace) -> None:
    install(space)
    answer = chosen("loud", "acme").start("prompt")
    assert answer.feed("hi") == (ParsedDelta(content="HI"), False)
    assert answer.finish() == ParsedDelta(content="!")


def test_two_parsers_of_one_name_need_their_plugin(space: PluginSpace) -> None:
    install(space, name="think")
    with pytest.raises(CapabilityError, match="offered by acme/think, core/think; name one"):
        chosen("think", "acme")
    assert chosen("core/think", "acme").pin == "core/think"


@pytest.mark.parametrize(
    ("parses", "said"),
    [
        ('("reasonning",)', "did you mean 'reasoning'"),
        ('"reasoning"', "a tuple of names is needed"),
        (
            '("reasoning",), "template_marks": "<think>"',
            r"\['template_marks'\] = '<think>', a tuple",
        ),
    ],
)
def test_what_a_parser_does_not_do_here_is_refused(
    space: PluginSpace, parses: str, said: str
) -> None:
    install(space, parses=parses)
    with pytest.raises(PluginError, match=said):
        chosen("loud", "acme")


class Failing:
    """Fails where it is told to."""

    markers = ()

    def __init__(self, place: str, error: type[BaseException]) -> None:
        self.place, self.error = place, error

    @property
    def is_reasoning(self) -> bool:
        return False

    def start(self, start: AnswerStart) -> Failing:
        return self._at("start", self)

    def feed(self, text: str) -> ParsedDelta:
        return self._at("feed", ParsedDelta(content=text))

    def finish(self) -> ParsedDelta:
        return self._at("finish", ParsedDelta())

    def _at(self, place: str, result: Any) -> Any:
        if place == self.place:
            raise self.error("out of order")
        return result if self.place != "text" else "text"


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("place", ["start", "feed", "finish", "text"])
def test_a_parser_that_fails_fails_its_request_and_is_named(
    place: str, error: type[BaseException]
) -> None:
    def answer() -> None:
        parser = AnswerFormat("acme/bad", Failing(place, error)).start("")
        parser.feed("x")
        parser.finish()

    with pytest.raises(EngineError, match="parser acme/bad failed at"):
        answer()


def test_marks_of_calls_are_shown_only_where_calls_are_looked_for(tmp_path: Path) -> None:
    backend = byte_tokenizer()
    marks = [*ThinkParser().markers, *Mistral().markers, *Harmony.markers]
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    tokenizer = load_tokenizer(write_scripted_model(tmp_path / "model", tokenizer=backend))

    def shown(form: AnswerFormat, *, reads_calls: bool) -> set[str]:
        ids = form.shown_ids(tokenizer, reads_calls=reads_calls)
        return {tokenizer.token_text(token) for token in ids}

    calls = AnswerFormat("core/mistral", Mistral(), parses=["tool_calls"])
    both = AnswerFormat("both", Together(ThinkParser(), Mistral()), parses=PARSES)
    assert shown(calls, reads_calls=False) == set()
    assert shown(calls, reads_calls=True) == set(Mistral().markers)
    assert shown(both, reads_calls=False) == set(ThinkParser().markers)
    assert shown(both, reads_calls=True) == {*ThinkParser().markers, *Mistral().markers}
    for parses in (["tool_calls"], ["reasoning"]):
        channels = AnswerFormat("core/gpt_oss", Harmony(), parses=parses)
        assert shown(channels, reads_calls=False) == set(Harmony.markers)
