"""From a conversation to its prompt: cleaned of client noise, continued from remembered turns.

A turn that comes back as it was is not written anew by the chat template: its prompt and its
sampled tokens are taken, and only what follows is rendered and encoded. Else the prompt is what
the template makes of the conversation, as for a stranger's.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.cleaned import cleaned
from tokenspeed.server.conversation.continuation import RestFinder, alone, marked
from tokenspeed.server.conversation.fingerprint import scope_print
from tokenspeed.server.conversation.next_turn import NextTurn
from tokenspeed.server.conversation.prompts import Prompt
from tokenspeed.server.conversation.rules import ClientRules
from tokenspeed.server.conversation.turn_memory import TurnMemory, memory_faults
from tokenspeed.tokenizer.reuse_points import MAX_REUSE_POINTS

if TYPE_CHECKING:
    from array import array
    from collections.abc import Collection, Sequence

    from tokenspeed.config.schema import ServeConfig
    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.engine.messages import ModelInfo, Terms
    from tokenspeed.server.conversation.cleaned import Chat
    from tokenspeed.server.conversation.prompts import PromptReader
    from tokenspeed.server.conversation.rules import NamedRule
    from tokenspeed.server.conversation.turn_memory import Place, Turn
    from tokenspeed.server.metrics import Metrics, TurnMetrics
    from tokenspeed.tokenizer.tokenizer import Tokenizer

_TAIL_TOKENS = 16
"""Of a turn: more than any template closes one with."""


class ChatPrompts:
    """Makes the prompts of chats for one model.

    Args:
        reader: renders and encodes.
        rules: against client noise.
        memory: of turns; None: every prompt is rendered.
        end_texts: of the tokens that end the model's answers.
    """

    def __init__(
        self,
        reader: PromptReader,
        *,
        rules: ClientRules,
        memory: TurnMemory | None,
        model: ModelInfo,
        end_texts: Collection[str],
        metrics: TurnMetrics,
    ) -> None:
        self._reader = reader
        self._rules = rules
        self._memory = memory
        self._model = model
        self._finder = RestFinder(end_texts, reader.begins_special)
        self._metrics = metrics

    async def clean(self, conversation: Conversation) -> Chat:
        """Apply the client rules.

        Raises:
            EngineError: a rule failed.
        """
        return await asyncio.to_thread(cleaned, conversation, self._rules)

    async def read(self, chat: Chat, terms: Terms) -> Prompt:
        """Return the prompt of a chat."""
        conversation, memory = chat.conversation, self._memory
        if memory is None:
            return await self._reader.chat(conversation)
        scope = await asyncio.to_thread(scope_print, conversation, terms)
        with memory_faults():
            place = memory.find(scope, chat.prints)
        if place.refused:
            self._refuse(place.refused)
        prompt = await self._continued(conversation, place)
        if prompt is not None:
            self._metrics.continued.inc()
            return replace(prompt, next_turn=NextTurn(memory, place, continues=True))
        prompt = await self._reader.chat(conversation)
        return replace(prompt, next_turn=NextTurn(memory, place, continues=False))

    async def _continued(self, conversation: Conversation, place: Place) -> Prompt | None:
        """Return the prompt that goes on from a remembered turn; None: it must be rendered."""
        if place.turn is None:
            return None
        ids = place.turn.token_ids()
        mark = f"turn{secrets.token_hex(8)}end"
        with_mark = marked(conversation, place.index, mark)
        text = await self._rendered(with_mark)
        rest = await self._rest(conversation, place.index, ids, text, mark)
        if rest is None:
            self._refuse("template")
            return None
        ids.extend(await self._reader.encode(rest, add_special_tokens=False))
        if len(ids) > self._model.max_prompt_tokens:
            self._refuse("context")
            return None
        return Prompt(ids, rest, await self._reuse_points(with_mark, place.turn, text, rest))

    async def _rest(
        self, conversation: Conversation, index: int, ids: array[int], text: str, mark: str
    ) -> str | None:
        """Return what the template adds behind the turn."""
        find = partial(
            self._finder.rest,
            text,
            mark,
            written=self._reader.decode(ids[-_TAIL_TOKENS:]),
            has_calls=bool(conversation.messages[index].tool_calls),
        )
        rest = find()
        if rest is not None or mark not in text:
            return rest
        last = await self._rendered(alone(conversation, index, mark), add_generation_prompt=False)
        return find(last=last)

    async def _rendered(
        self, conversation: Conversation, *, add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation of ours; "": the template refuses it, which is nobody's mistake."""
        try:
            return await self._reader.render(
                conversation, add_generation_prompt=add_generation_prompt
            )
        except RequestError:
            return ""

    async def _reuse_points(
        self, with_mark: Conversation, turn: Turn, text: str, rest: str
    ) -> tuple[int, ...]:
        """Return where later prompts may start: the places in the rest, and the first before it."""
        if not self._model.has_snapshots:
            return ()
        start = len(text) - len(rest)
        found = await self._reader.reuse_offsets(with_mark, text)
        offsets = [offset - start for offset in found if offset > start]
        return _points(turn, self._reader.token_positions(rest, offsets))

    def _refuse(self, reason: str) -> None:
        self._metrics.refused.labels(reason).inc()


def _points(turn: Turn, in_rest: tuple[int, ...]) -> tuple[int, ...]:
    behind = {turn.num_tokens + position for position in in_rest if position > 0}
    latest = sorted(behind)[-(MAX_REUSE_POINTS - 1) :]
    return (*turn.reuse_points[:1], *latest)


def make_chats(
    config: ServeConfig,
    reader: PromptReader,
    tokenizer: Tokenizer,
    model: ModelInfo,
    rules: Sequence[NamedRule],
    metrics: Metrics,
) -> ChatPrompts:
    """Put the parts together as the settings say."""
    changes = {item.pin: metrics.rule_changes.labels(item.pin) for item in rules}
    memory = TurnMemory(config.turn_memory_mib << 20, metrics.turns.note_memory)
    ends = {tokenizer.added_tokens.get(token, "") for token in model.eos_token_ids}
    return ChatPrompts(
        reader,
        rules=ClientRules(rules, lambda pin: changes[pin].inc()),
        memory=memory if config.turn_memory_mib else None,
        model=model,
        end_texts=ends - {""},
        metrics=metrics.turns,
    )
