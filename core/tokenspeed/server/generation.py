"""All choices of one HTTP request while they run: submits, pumps, stops and aborts.

One task a choice reads the engine's Deltas and puts Pieces into a shared Mailbox, so reading
never waits for the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.contracts.conversation import Conversation
from tokenspeed.contracts.parser import looks_for_calls
from tokenspeed.errors import EngineError
from tokenspeed.server.call_ids import CallIds
from tokenspeed.server.http.stream import Mailbox
from tokenspeed.server.piece_sum import PieceSum
from tokenspeed.server.pieces import TextAssembler
from tokenspeed.server.sampling import choice_seed
from tokenspeed.server.structured import language_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.contracts.thinking import ThinkingBudget
    from tokenspeed.engine.clients import EngineClient
    from tokenspeed.engine.messages import Terms
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.conversation.next_turn import TurnRecorder
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.http.unread import Unread
    from tokenspeed.server.metrics import RequestTimer
    from tokenspeed.server.parsers import AnswerFormat, GuardedAnswer
    from tokenspeed.server.pieces import Piece
    from tokenspeed.tokenizer.tokenizer import Tokenizer


class Generation:
    """The running choices of a request: `n` for each prompt, numbered prompt by prompt.

    Args:
        request_id: of the HTTP request; choice i runs in the engine as `<request_id>-<i>`.
        terms: as in the engine's Submit; the time limit is one for all choices.
        parser: splits reasoning and calls off each choice; None: answers are left as they are.
        conversation: what the prompt was rendered from, for the parser; None: a plain text.
        thinking_tokens: how many tokens each choice may think; None: as many as it likes.
        unread: counts what the client has not taken; None: by itself.
        note_answer: called when a choice is whole, before the client hears of it.
    """

    def __init__(
        self,
        frontend: EngineClient,
        tokenizer: Tokenizer,
        *,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        n: int = 1,
        terms: Terms,
        timer: RequestTimer,
        parser: AnswerFormat | None = None,
        conversation: Conversation | None = None,
        thinking_tokens: int | None = None,
        unread: Unread | None = None,
        note_answer: Callable[[], None] | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompts = prompts
        self.params = params
        self.num_choices = len(prompts) * n
        self.mailbox = Mailbox(unread)
        self.timer = timer
        self.parser = parser
        self._conversation = conversation or Conversation(())
        self._thinking_tokens = thinking_tokens
        self._n = n
        self._frontend = frontend
        self._tokenizer = tokenizer
        self._terms = terms
        self._note_answer = note_answer
        eos = () if params.ignore_eos else frontend.model.eos_token_ids
        self._stop_ids = frozenset((*eos, *params.stop_token_ids))
        said = self._conversation
        self._reads_calls = looks_for_calls(said.tools, said.tool_choice)
        self._shown_ids = (
            parser.shown_ids(tokenizer, reads_calls=self._reads_calls)
            if parser
            else frozenset[int]()
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Submit every choice; pieces arrive in the mailbox."""
        self._tasks = [asyncio.create_task(self._run(i)) for i in range(self.num_choices)]

    async def close(self) -> bool:
        """Abort what still runs and wait until the engine was told; True: something still ran."""
        running = [task for task in self._tasks if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.mailbox.close()
        return bool(running)

    def prompt_of(self, choice: int) -> Prompt:
        """Return the prompt that a choice answers."""
        return self.prompts[choice // self._n]

    async def collect(self) -> list[Piece]:
        """Wait for the end and return each choice's whole Piece."""
        sums = [PieceSum() for _ in range(self.num_choices)]
        while not all(choice.has_ended for choice in sums):
            for index, piece in await self.mailbox.take():
                sums[index].add(piece)
        return [choice.total() for choice in sums]

    def _terms_of(self, choice: int) -> Terms:
        points = self.prompt_of(choice).reuse_points
        return msgspec.structs.replace(self._terms, reuse_points=points) if points else self._terms

    def _params_of(self, choice: int) -> SamplingParams:
        """Return the parameters of a choice: its own seed, and no more tokens than fit."""
        room = self._frontend.model.max_context_tokens - len(self.prompt_of(choice).token_ids)
        asked = self.params.max_tokens
        limit = None if asked is None else min(asked, room)
        return msgspec.structs.replace(
            self.params,
            grammar=self._grammar_of(choice),
            thinking=self._thinking_of(choice),
            seed=choice_seed(self.params.seed, choice % self._n),
            max_tokens=limit,
            min_tokens=min(self.params.min_tokens, room),
        )

    def _grammar_of(self, choice: int) -> GrammarSpec | None:
        """Return the language of a choice: what a parser splits off as thinking is free."""
        grammar, of_calls = language_of(self.params.grammar, self._conversation, self.parser)
        if grammar is None or self.parser is None:
            return grammar
        mark = self.parser.language_start(self.prompt_of(choice).text, of_calls=of_calls)
        after = self._tokenizer.encode(mark, add_special_tokens=False) if mark else ()
        return msgspec.structs.replace(grammar, after=tuple(after))

    def _thinking_of(self, choice: int) -> ThinkingBudget | None:
        if self._thinking_tokens is None or self.parser is None:
            return self.params.thinking
        return self.parser.budget(
            self._thinking_tokens,
            self.prompt_of(choice).text,
            self._tokenizer,
            reads_calls=self._reads_calls,
        )

    def _parser_of(self, choice: int) -> GuardedAnswer | None:
        if self.parser is None:
            return None
        return self.parser.start(
            self.prompt_of(choice).text,
            tools=self._conversation.tools,
            tool_choice=self._conversation.tool_choice,
        )

    def _recorder_of(self, choice: int) -> TurnRecorder | None:
        prompt = self.prompt_of(choice)
        if prompt.next_turn is None:
            return None
        return prompt.next_turn.recorder(prompt.token_ids, prompt.reuse_points, self._stop_ids)

    async def _run(self, index: int) -> None:
        try:
            await self._pump(index)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.mailbox.fail(error)

    async def _pump(self, index: int) -> None:
        engine_id = f"{self.request_id}-{index}"
        params = self._params_of(index)
        text = TextAssembler(
            self._tokenizer,
            params,
            self._stop_ids,
            parser=self._parser_of(index),
            shown_ids=self._shown_ids,
        )
        call_ids = CallIds()
        recorder = self._recorder_of(index)
        stream = self._frontend.submit(
            self.prompt_of(index).token_ids,
            params,
            request_id=engine_id,
            terms=self._terms_of(index),
        )
        async with stream:
            async for delta in stream:
                piece = call_ids.filled(text.push(delta))
                self.timer.observe(piece)
                if recorder is not None:  # before the client hears of the end and comes back
                    recorder.push(delta.tokens, piece)
                if piece.finish_reason is not None and self._note_answer is not None:
                    self._note_answer()
                self.mailbox.put(index, piece)
                if piece.finish_reason is not None:
                    self._frontend.stop(engine_id)
                    return
        raise EngineError("the engine ended the request without a reason; send it again")
