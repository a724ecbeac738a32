"""`LLM`: the same engine in the caller's process, for scripts, tests and benchmarks."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tokenspeed.config import load_config
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.completion import Completion, RequestOutput
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.kv_publisher import open_kv_publisher
from tokenspeed.engine.messages import Abort, Refused, Stop, Terms, TokensOut
from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.script_input import params_of, prompt_ids, prompts_of
from tokenspeed.engine.streams import error_of
from tokenspeed.engine.submits import make_submit
from tokenspeed.engine.vectors import EMBED, unit_vector
from tokenspeed.errors import ConfigError, EngineError
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.tokenizer import ChatTemplate, EncodeCache, load_tokenizer
from tokenspeed.tokenizer.reuse_points import reuse_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from tokenspeed.engine.messages import EngineStats, Submit
    from tokenspeed.engine.reports import ProgressCallback
    from tokenspeed.engine.script_input import Prompt
    from tokenspeed.tokenizer import Tokenizer

    Message = Mapping[str, Any]

EPOCH = 1


class LLM:
    """An engine without server. Thread: one at a time.

    Args:
        model: Hugging Face folder or .gguf file; "": the default model.
        progress: told how far loading is.
        settings: any setting of the engine, such as `max_running=8`; see docs/settings.md.
    """

    def __init__(
        self, model: str = "", *, progress: ProgressCallback | None = None, **settings: Any
    ) -> None:
        flags = {"model": os.fspath(model), **settings}
        self.config = load_config(EngineConfig, flags=flags, environ=os.environ)
        if self.config.replicas > 1:
            raise ConfigError(
                f"replicas is {self.config.replicas}, in one process there is 1; leave it out, or "
                "use `tokenspeed serve --replicas`"
            )
        self.engine = build_engine(self.config, progress=progress)
        self.tokenizer: Tokenizer = load_tokenizer(self.engine.info.path)
        self._encodings = EncodeCache(self.tokenizer)
        self._channel = LocalChannel()
        self._kv_publisher = open_kv_publisher(self.engine.kv_events)
        self._loop = EventLoop(
            self.engine, self._channel, epoch=EPOCH, kv_publisher=self._kv_publisher
        )
        self._ids = itertools.count()
        self._live: dict[str, Completion] = {}
        self._ran = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all at once, and return the answers in order.

        Args:
            prompts: one text or list of token ids, or several.
            params: one for all, or one each; None: the defaults.
            timeout_s: seconds after which what still runs ends with "timeout".
        Raises:
            RequestError, CapacityError: a prompt or parameter is not acceptable; nothing runs on.
        """
        many = prompts_of(prompts)
        each = params_of(len(many), params)
        return self._answer(
            [self._prepare(*item, timeout_s=timeout_s) for item in zip(many, each, strict=True)]
        )

    def _answer(self, completions: list[tuple[Submit, Completion]]) -> list[RequestOutput]:
        try:
            for submit, completion in completions:
                self._submit(submit, completion)
            while self._live:
                self._turn()
        finally:
            self._abort_all()
        return [completion.output() for _, completion in completions]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template_variables: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several; messages have `role` and `content`.

        Raises:
            ConfigError: the model has no chat template.
        """
        conversations: Any = messages if _is_several(messages) else [messages]
        template = ChatTemplate.of(self.tokenizer)
        if template is None:
            raise ConfigError(
                f"model {self.engine.info.name} has no chat template, chat needs one; use "
                "generate() with a prompt, or a model made for chat"
            )
        each = params_of(len(conversations), params)
        completions = []
        for conversation, own_params in zip(conversations, each, strict=True):
            text = template.render(conversation, **template_variables)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            points: tuple[int, ...] = ()
            if self.engine.info.has_snapshots:
                offsets = reuse_offsets(template, conversation, text, **template_variables)
                points = self._encodings.token_positions(text, offsets)
            completions.append(self._prepare(ids, own_params, reuse_points=points))
        return self._answer(completions)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, dimensions: int | None = None
    ) -> list[NDArray[np.float32]]:
        """Return the hidden state behind each prompt, as a vector of length 1.

        Args:
            prompts: one text or list of token ids, or several.
            dimensions: how many of the first elements; None: all.
        Raises:
            RequestError: a prompt is not acceptable, or there are fewer dimensions.
            EngineError: the engine failed one of them.
        """
        asked = [self._prepare(prompt, EMBED) for prompt in prompts_of(prompts)]
        outputs = self._answer(asked)
        vectors = []
        for output, (_, completion) in zip(outputs, asked, strict=True):
            if completion.embedding is None:
                raise EngineError(output.error or "the engine returned no hidden state; ask again")
            vectors.append(unit_vector(completion.embedding, dimensions))
        return vectors

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield one answer's text as it comes; leaving the loop early ends the request.

        Raises:
            EngineError: the engine failed the request.
        """
        (own_params,) = params_of(1, params)
        submit, completion = self._prepare(prompt, own_params)
        try:
            self._submit(submit, completion)
            while completion.finish_reason is None:
                if text := self._turn().get(completion.request_id, ""):
                    yield text
            if completion.finish_reason == "error":
                raise EngineError(completion.output().error or "the engine failed the request")
        finally:
            self._abort_all()

    def stats(self) -> EngineStats:
        """Return the engine's counters and gauges."""
        return self._loop.stats()

    def close(self) -> None:
        """End what runs; the object cannot be used afterwards, and its memory goes with it."""
        try:
            self._abort_all()
            self._loop.flush()
        except RankFailure:
            pass  # said when it happened
        self._channel.close()
        self.engine.close()
        if self._kv_publisher is not None:
            self._kv_publisher.close()
        del self._loop, self.engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        timeout_s: float | None = None,
        reuse_points: tuple[int, ...] = (),
    ) -> tuple[Submit, Completion]:
        ids = prompt_ids(prompt, self.tokenizer)
        request_id = f"llm-{next(self._ids)}"
        submit = make_submit(
            self.engine.info,
            ids,
            params,
            request_id,
            epoch=EPOCH,
            terms=Terms(timeout_s=timeout_s, reuse_points=reuse_points),
        )
        return submit, Completion(submit, tuple(map(int, ids)), self.tokenizer)

    def _submit(self, submit: Submit, completion: Completion) -> None:
        self._live[submit.request_id] = completion
        self._channel.inbox.append(submit)

    def _turn(self) -> dict[str, str]:
        """Run one turn of the loop; return the new text of each request."""
        self._check_ranks()
        with _DeferredInterrupt():
            ran = self._ran = self._loop.turn(self._loop.wait_ms(self._ran))
        texts: dict[str, str] = {}
        heard = bool(self._channel.outbox)
        while self._channel.outbox:
            message = self._channel.outbox.popleft()
            if isinstance(message, Refused):
                self._live.pop(message.request_id, None)
                raise error_of(message)
            if isinstance(message, TokensOut):
                self._deliver(message, texts)
        is_waiting = self._loop.waits_for_transfers() or self._loop.waits_for_grammars()
        if self._live and not ran and not heard and not is_waiting:
            raise EngineError(
                f"{len(self._live)} requests are live and the scheduler has nothing to run; this "
                "is a mistake of the engine, please report it"
            )
        return texts

    def _deliver(self, message: TokensOut, texts: dict[str, str]) -> None:
        for delta in message.deltas:
            completion = self._live.get(delta.request_id)
            if completion is None:
                continue
            text = completion.push(delta)
            texts[delta.request_id] = texts.get(delta.request_id, "") + text
            if completion.finish_reason is not None:
                del self._live[delta.request_id]
                if delta.finish_reason is None:
                    self._channel.inbox.append(Stop(delta.request_id))

    def _check_ranks(self) -> None:
        """Raise if the engine has lost a rank: nothing that runs can end."""
        if self.engine.group is not None:
            self.engine.group.check()

    def _abort_all(self) -> None:
        """End live requests, and let the engine act on what was sent to it."""
        self._channel.inbox.extend(Abort(request_id) for request_id in self._live)
        self._live.clear()
        while self._channel.inbox or len(self._loop.requests):
            self._check_ranks()
            self._loop.turn(0)
        self._channel.outbox.clear()


class _DeferredInterrupt:
    """Holds Ctrl-C back while a step runs, so that the engine stays usable after it."""

    def __enter__(self) -> None:
        self._is_interrupted = False
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._previous = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *exc_info: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._previous)
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _note(self, signal_number: int, frame: object) -> None:
        self._is_interrupted = True


def _is_several(messages: Any) -> bool:
    return bool(messages) and isinstance(messages[0], Sequence)
