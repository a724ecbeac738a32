"""Plays a workload against a server: chat completions over HTTP, streamed, timed at the client.

Standard library only; a thread a session, and one a sub-agent. What a server does not understand
ends a request, not the run.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.agentic.workload import History, messages_of
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.cli.agentic.workload import Kind, Part, Session, Turn, Workload
    from tokenspeed.cli.connection import ServerAddress

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end.

    Args:
        session, turn: which one.
        sent_s, first_s, last_s: since the start of the run: sent, first token, last token.
        asked_tokens, num_tokens: output tokens asked for and generated.
        error: why there is no answer; "": there is one.
    """

    session: str
    turn: int
    kind: Kind
    sent_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    asked_tokens: int = 0
    num_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The server, and how it is asked.

    Args:
        own_replies: the history holds what the server answered, not what the script says: as real
            agents do it; prompts then differ from server to server.
        ignores_eos: ask for exactly as many tokens (an extension that most servers know).
    """

    server: ServerAddress
    model: str
    own_replies: bool = False
    ignores_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


def play(
    workload: Workload,
    target: Target,
    *,
    at_once: int,
    on_done: Callable[[int], None],
) -> tuple[list[Answer], float]:
    """Run all sessions, `at_once` of them at a time; return the answers and wall seconds.

    The threads are daemons: an interrupt must not wait for answers that still run.

    Args:
        on_done: told how many requests have ended, about twice a second.
    """
    done: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[Session] = queue.SimpleQueue()
    for session in workload.sessions:
        waiting.put(session)
    started_s = time.perf_counter()
    player = _Player(target, started_s, done)
    for _ in range(min(at_once, len(workload.sessions))):
        threading.Thread(target=player.play_all, args=(waiting,), daemon=True).start()
    answers: list[Answer] = []
    while len(answers) < workload.num_requests:
        try:
            answers.append(done.get(timeout=_POLL_S))
        except queue.Empty:
            on_done(len(answers))
    return answers, time.perf_counter() - started_s


class _Player:
    """Plays sessions; shared by the threads."""

    def __init__(self, target: Target, started_s: float, done: queue.SimpleQueue[Answer]) -> None:
        self._target = target
        self._started_s = started_s
        self._done = done

    def play_all(self, waiting: queue.SimpleQueue[Session]) -> None:
        """Play sessions until none waits."""
        while True:
            try:
                session = waiting.get_nowait()
            except queue.Empty:
                return
            self.play(session)

    def play(self, session: Session) -> None:
        """Play one session; its sub-agents run at the same time, and it waits for them."""
        history = History()
        for index, turn in enumerate(session.turns):
            time.sleep(turn.pause_s)
            reply = self._ask(session, index, turn, history.prompt(turn))
            history.answered(reply if self._target.own_replies else turn.reply)
            children = [
                threading.Thread(target=self.play, args=(child,), daemon=True)
                for child in session.children.get(index, ())
            ]
            for child in children:
                child.start()
            for child in children:
                child.join()

    def _ask(self, session: Session, index: int, turn: Turn, prompt: tuple[Part, ...]) -> str:
        sent_s = time.perf_counter() - self._started_s
        reply: list[str] = []
        try:
            answer = self._stream(session, index, turn, prompt, sent_s, reply)
        except Exception as error:  # a thread that ended would leave its requests uncounted
            text = str(error) if isinstance(error, EngineError) else repr(error)
            answer = Answer(session.name, index, turn.kind, sent_s, error=text)
        self._done.put(answer)
        return "".join(reply)

    def _stream(
        self,
        session: Session,
        index: int,
        turn: Turn,
        prompt: tuple[Part, ...],
        sent_s: float,
        reply: list[str],
    ) -> Answer:
        """Send a request and read its stream; the text goes to `reply`."""
        body = self._body(turn, prompt)
        headers = {"X-Session-Id": session.name}
        connection, response = self._target.server.send(
            "POST", "/v1/chat/completions", body, headers
        )
        first_s = last_s = 0.0
        usage: dict[str, Any] | None = None
        with connection:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise EngineError(str(event["error"].get("message", event["error"])))
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    text = choice["delta"].get("content") or ""
                    is_news = text or choice["delta"].get("reasoning_content")
                    if is_news or choice.get("finish_reason"):
                        last_s = time.perf_counter() - self._started_s
                        first_s = first_s or last_s
                    reply.append(text)
        if usage is None:
            raise EngineError("the stream ended without its usage")
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            session.name,
            index,
            turn.kind,
            sent_s,
            first_s,
            last_s,
            turn.output_tokens,
            usage["completion_tokens"],
            usage["prompt_tokens"],
            details.get("cached_tokens") or 0,
        )

    def _body(self, turn: Turn, prompt: tuple[Part, ...]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._target.model,
            "messages": messages_of(prompt),
            "max_tokens": turn.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._target.extra,
        }
        if self._target.ignores_eos:
            body["ignore_eos"] = True
        return body
