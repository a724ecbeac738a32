"""The turn that will answer a prompt: written down while it grows, remembered when it is whole.

Remembered is what a client can send back as it was: a turn that ended by itself, or was cut by its
length in the middle of its text. Left out are turns that a stop string ended (their tokens say
more than the client was shown), that were cut while thinking or within a call (their tokens leave
it open), and those that the client or the engine gave up.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Message, ToolCall
from tokenspeed.server.conversation.fingerprint import message_print
from tokenspeed.server.conversation.turn_memory import memory_faults

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tokenspeed.server.conversation.turn_memory import Place, TurnMemory
    from tokenspeed.server.pieces import Piece

_CUT = "length"


class NextTurn:
    """Where the answers to a prompt belong in the memory.

    Args:
        place: of the conversation that the prompt was made of.
        continues: the prompt begins with the tokens of the place's turn.
    """

    def __init__(self, memory: TurnMemory, place: Place, *, continues: bool) -> None:
        self._memory = memory
        self._place = place
        self._continues = continues

    def recorder(
        self, prompt_ids: array[int], reuse_points: tuple[int, ...], stop_ids: Collection[int]
    ) -> TurnRecorder:
        """Begin to write an answer down.

        Args:
            prompt_ids, reuse_points: of the prompt that it answers.
            stop_ids: tokens that end it.
        """
        return TurnRecorder(self, prompt_ids, reuse_points, stop_ids)

    def remember(
        self,
        prompt_ids: array[int],
        reuse_points: tuple[int, ...],
        output: Sequence[int],
        answer: Message,
    ) -> None:
        """Keep a whole answer."""
        with memory_faults():
            self._memory.remember(
                self._place,
                prompt_ids,
                output,
                message_print(answer),
                continues=self._continues,
                reuse_points=reuse_points,
            )


class TurnRecorder:
    """Writes one answer down; told of all its tokens and pieces in order."""

    def __init__(
        self,
        turn: NextTurn,
        prompt_ids: array[int],
        reuse_points: tuple[int, ...],
        stop_ids: Collection[int],
    ) -> None:
        self._turn = turn
        self._prompt_ids = prompt_ids
        self._reuse_points = reuse_points
        self._stop_ids = stop_ids
        self._output = array("i")
        self._num_shown = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[str, str, list[str]]] = {}

    def push(self, tokens: Sequence[int], piece: Piece) -> None:
        """Take what one step brought; the piece with a finish reason is the last."""
        self._output.extend(tokens)
        self._num_shown += piece.num_tokens
        self._text.append(piece.text)
        self._reasoning.append(piece.reasoning)
        for call in piece.tool_calls:
            call_id, name, arguments = self._calls.get(call.index, ("", "", []))
            arguments.append(call.arguments)
            self._calls[call.index] = (call_id or call.call_id, name or call.name, arguments)
        if piece.finish_reason is not None:
            self._finish(is_cut=piece.finish_reason == _CUT)

    def _finish(self, *, is_cut: bool) -> None:
        answer = self._answer()
        if is_cut:
            is_whole = bool(answer.text) and not answer.tool_calls
        else:
            is_whole = self._take_end() and bool(answer.text or answer.tool_calls)
        if is_whole and self._num_shown:
            self._turn.remember(self._prompt_ids, self._reuse_points, self._output, answer)

    def _take_end(self) -> bool:
        """Take the token off that ended the answer; False: it was not a token that did."""
        if self._num_shown != len(self._output) or not self._output:
            return False
        return self._output.pop() in self._stop_ids

    def _answer(self) -> Message:
        calls = (self._calls[index] for index in sorted(self._calls))
        return Message(
            "assistant",
            content=("".join(self._text),),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                ToolCall(call_id, name, "".join(pieces)) for call_id, name, pieces in calls
            ),
        )
