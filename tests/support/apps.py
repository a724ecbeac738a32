"""The HTTP application in the test's own process, over an engine that says what it is told to.

Fast, for tests of what clients see: the prompt is rendered and encoded as in a server, parsers and
replies are the real ones, only the engine's part is played.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import httpx
from tests.support.client_rules import core_registry
from tests.support.dialogue import HERMES_TEMPLATE
from tests.support.scripted import write_scripted_model

from tokenspeed.config.schema import ServeConfig
from tokenspeed.contracts.parser import BadToolCall, ParsedDelta, ToolCallDelta
from tokenspeed.engine.messages import CacheReport, Delta, ModelInfo
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import TokenSpeedError
from tokenspeed.server.app import create_app
from tokenspeed.server.conversation.chat_prompts import make_chats
from tokenspeed.server.conversation.prompts import PromptReader
from tokenspeed.server.conversation.rules import load_rules
from tokenspeed.server.conversation.sessions import Sessions
from tokenspeed.server.conversation.template_facts import facts_of
from tokenspeed.server.engine_health import EngineHealth
from tokenspeed.server.http.api_keys import ApiKeys
from tokenspeed.server.metrics import Metrics
from tokenspeed.server.parsers import AnswerFormat, ChosenParsers
from tokenspeed.server.parts import ApiParts
from tokenspeed.tokenizer.chat import ChatTemplate
from tokenspeed.tokenizer.incremental import EncodeCache
from tokenspeed.tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tokenspeed.contracts.parser import AnswerStart
    from tokenspeed.engine.messages import Submit, Terms
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.conversation.rules import NamedRule
    from tokenspeed.tokenizer.tokenizer import Tokenizer

THINK, SAID, CALL, ARGS, END, BAD = "^", "$", "@", "#", "~", "!"
"""Marks of the tests' answer format: ^thinking$ @name#{"json": 1}~ and ! for what goes wrong."""


def answer(*, think: str = "", text: str = "", calls: Sequence[tuple[str, str]] = ()) -> str:
    """Return an answer in the tests' format."""
    thought = f"{THINK}{think}{SAID}" if think else ""
    return thought + text + "".join(f"{CALL}{name}{ARGS}{args}{END}" for name, args in calls)


class MarkParser:
    """Reads the tests' answer format, a character at a time."""

    markers: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    structures = False

    def start(self, start: AnswerStart) -> MarkAnswer:
        """Begin an answer; calls are looked for where there are tools."""
        return MarkAnswer(bool(start.tools) and start.tool_choice.mode != "none")


class MarkAnswer:
    """One answer."""

    def __init__(self, finds_calls: bool) -> None:
        self._finds_calls = finds_calls
        self._place = "text"
        self._name = ""
        self._index = -1

    @property
    def is_reasoning(self) -> bool:
        """Whether thinking comes next."""
        return self._place == "think"

    def feed(self, text: str) -> ParsedDelta:
        """Take the next text."""
        reasoning, content, calls, bad = "", "", [], None
        for character in text:
            if character == THINK:
                self._place = "think"
            elif character in (SAID, END):
                self._place = "text"
            elif character == CALL and self._finds_calls:
                self._place, self._name, self._index = "name", "", self._index + 1
            elif character == BAD:
                bad = BadToolCall("arguments are no JSON object", text)
            elif self._place == "name" and character == ARGS:
                self._place = "arguments"
                calls.append(ToolCallDelta(self._index, name=self._name))
            elif self._place == "name":
                self._name += character
            elif self._place == "arguments":
                calls.append(ToolCallDelta(self._index, arguments=character))
            elif self._place == "think":
                reasoning += character
            else:
                content += character
        return ParsedDelta(reasoning, content, tuple(calls), bad)

    def finish(self) -> ParsedDelta:
        """Nothing is held back."""
        return ParsedDelta()


@dataclass
class PlayedEngine:
    """Plays the engine: says `script`, one token at a time; notes what was submitted.

    Args:
        state: behind every prompt that is embedded.
    """

    model: ModelInfo
    tokenizer: Tokenizer
    script: str = "Hello."
    state: Sequence[float] = (3.0, 0.0, 4.0)
    cached: int = 0
    error: TokenSpeedError | None = None
    fails_after: int = 1 << 30
    pause_s: float = 0.0
    submits: list[Submit] = field(default_factory=list)
    terms: list[Terms] = field(default_factory=list)
    stats: None = None
    silent_s: float = 0.0
    unhealthy_s: float = 0.0
    epoch: int = 1
    unhealthy_reason: str | None = None

    @property
    def prompt(self) -> str:
        """Return the text of the last prompt."""
        ids = list(memoryview(self.submits[-1].prompt_ids).cast("i"))
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def submit(
        self, prompt_ids: Any, params: SamplingParams, *, request_id: str, terms: Terms
    ) -> PlayedStream:
        """Take a request."""
        if self.error is not None and self.fails_after == 0:
            raise self.error
        self.submits.append(make_submit(self.model, prompt_ids, params, request_id, terms=terms))
        self.terms.append(terms)
        return PlayedStream(self, len(prompt_ids), params)

    def stop(self, request_id: str) -> None:
        """Take a stop."""


class PlayedStream:
    """One answer, as deltas."""

    def __init__(self, engine: PlayedEngine, num_prompt: int, params: SamplingParams) -> None:
        self._engine = engine
        self._num_prompt = num_prompt
        self._params = params

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[Delta]:
        engine = self._engine
        ids = list(engine.tokenizer.backend.encode(engine.script, add_special_tokens=False).ids)
        ids.append(engine.model.eos_token_ids[0])
        for index, token in enumerate(ids, start=1):
            if index > engine.fails_after and engine.error is not None:
                raise engine.error
            await asyncio.sleep(engine.pause_s)
            reason = "stop" if index == len(ids) else None
            if self._params.max_tokens == index:
                reason = reason or "length"
            if self._params.embeds:
                state = array("f", engine.state).tobytes()
                yield Delta(request_id="r", tokens=(token,), finish_reason="length",
                            cached_tokens=engine.cached, embedding=state)  # fmt: skip
                return
            report = CacheReport(
                engine.cached, self._num_prompt - engine.cached, 0, engine.cached, "never_stored"
            )
            yield Delta(
                request_id="r",
                tokens=(token,),
                finish_reason=reason,
                cached_tokens=engine.cached if index == 1 else -1,
                cache=report if index == 1 else None,
            )
            if reason is not None:
                return


@dataclass
class Reply:
    """An HTTP answer."""

    status: int
    headers: httpx.Headers
    text: str

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.text)

    def events(self) -> list[tuple[str, Any]]:
        """Return (event name, data) of a stream; comments are left out."""
        found = []
        for block in self.text.split("\n\n"):
            lines = [line for line in block.splitlines() if not line.startswith(":")]
            fields = dict(line.split(": ", 1) for line in lines)
            if fields:
                data = fields["data"]
                found.append(
                    (fields.get("event", ""), data if data == "[DONE]" else json.loads(data))
                )
        return found


class App:
    """An application and the engine behind it.

    Args:
        turn_memory_mib: 0: every turn is rendered.
        rules: against client noise, behind the core's.
        record: flight record of the engine; None: there is none.
        parts: other ones than the usual.
    """

    def __init__(
        self,
        folder: Path,
        *,
        context: int = 4096,
        turn_memory_mib: int = 0,
        rules: tuple[NamedRule, ...] = (),
        record: Path | None = None,
        **parts: Any,
    ) -> None:
        path = write_scripted_model(folder / "m")
        told = {"eos_token": "<|im_end|>", "chat_template": HERMES_TEMPLATE}
        (path / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
        tokenizer = load_tokenizer(path)
        model = ModelInfo(
            name="m",
            path="",
            architecture="",
            vocab_size=tokenizer.backend.get_vocab_size(),
            max_context_tokens=context,
            max_prompt_tokens=context - 1,
            eos_token_ids=(tokenizer.backend.token_to_id("<|im_end|>"),),
        )
        self.engine = PlayedEngine(model, tokenizer)
        frontend: Any = self.engine
        report: Any = {"plan_digest": "d"}
        parses = ("reasoning", "tool_calls")
        form = AnswerFormat("test/marks", MarkParser(), parses=parses)
        template = ChatTemplate.of(tokenizer)
        prompts = PromptReader(
            tokenizer, template=template, cache=EncodeCache(tokenizer), model=model
        )
        self.metrics = Metrics(lambda: None)
        config = ServeConfig(turn_memory_mib=turn_memory_mib)
        rules = (
            *load_rules(config.client_rules, core_registry(), facts_of(template)),
            *rules,
        )
        self.chats = make_chats(config, prompts, tokenizer, model, rules, self.metrics)
        made = {
            "frontend": frontend,
            "tokenizer": tokenizer,
            "prompts": prompts,
            "chats": self.chats,
            "sessions": Sessions(),
            "metrics": self.metrics,
            "report": report,
            "keys": ApiKeys({}),
            "health": EngineHealth(frontend, record or folder / "no_record", stall_s=10.0),
            "parsers": ChosenParsers(form),
            **parts,
        }
        self.asgi = create_app(ApiParts(**made))

    def tokens(self, text: str) -> list[int]:
        """Return what the engine says for a script, without the token that ends it."""
        return list(self.engine.tokenizer.encode(text, add_special_tokens=False))

    def call(self, path: str, body: Any = None, *, method: str = "", **headers: str) -> Reply:
        """Send a request (POST when it has a body) and return the whole answer."""

        async def send() -> Reply:
            transport = httpx.ASGITransport(self.asgi)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answer = await client.request(
                    method or ("GET" if body is None else "POST"),
                    path,
                    json=body,
                    headers={name.replace("_", "-"): value for name, value in headers.items()},
                )
                return Reply(answer.status_code, answer.headers, answer.text)

        return asyncio.run(send())
