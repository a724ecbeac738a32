"""Reasoning between tags at the head of an answer: DeepSeek-R1, Qwen3, GLM, Kimi, MiniMax and kin.

The block may have been opened by the chat template. White space before it, and newlines around the
reasoning and before the content, belong to the format, not to the text: chat templates write them
again.
Source: the chat templates of deepseek-ai/DeepSeek-R1, Qwen/Qwen3-8B, zai-org/GLM-4.6,
moonshotai/Kimi-K2-Thinking and MiniMaxAI/MiniMax-M2 (<think>), moonshotai/Kimi-VL-A3B-Thinking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import ThinkingForm
from tokenspeed.parsers.script import ScriptedAnswer, Stretch
from tokenspeed.parsers.source import Marks

if TYPE_CHECKING:
    from tokenspeed.contracts.parser import AnswerParser, AnswerStart
    from tokenspeed.parsers.script import Told
    from tokenspeed.parsers.source import Source, Steps

NEWLINES = "\r\n"
TAGS = ("<think>", "</think>")
KIMI_TAGS = ("\u25c1think\u25b7", "\u25c1/think\u25b7")


class ThinkParser:
    """Makes the parser of an answer.

    Args:
        pairs: opening and closing tags; the opening one says which pair an answer uses. Budgets
            are kept for the first.
    """

    opens: tuple[str, ...] = ()
    structures = False

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._closes = dict(pairs or (TAGS,))
        opens, self.reasoning_end = next(iter(self._closes.items()))
        self.thinking = ThinkingForm(opens, (self.reasoning_end,), self.reasoning_end)
        self.markers = tuple(tag for pair in self._closes.items() for tag in pair)

    def start(self, start: AnswerStart) -> AnswerParser:
        """Begin inside the block where the prompt ends with an open one."""
        end = start.prompt_end.rstrip()
        tag = next((tag for tag in self._closes if end.endswith(tag)), "")
        return ScriptedAnswer(lambda source, told: self._read(source, told, tag))

    def _read(self, source: Source, told: Told, tag: str) -> Steps[None]:
        told.is_reasoning = bool(tag)
        if not tag:
            source.pin()
            yield from source.skip_space()
            tag = yield from source.choose(*self._closes)
            if not tag:
                source.rewind()
                yield from source.rest(told.content)
                return
            source.unpin()
        told.is_reasoning = True
        reasoning = Stretch(told.reasoning, head=NEWLINES, tail=NEWLINES)
        yield from source.until(Marks(self._closes[tag]), reasoning.feed)
        reasoning.end()
        told.is_reasoning = source.is_ended
        yield from source.rest(Stretch(told.content, head=NEWLINES).feed)


def kimi_think() -> ThinkParser:
    """Return the parser that takes the tags of Kimi's first thinking models too."""
    return ThinkParser(TAGS, KIMI_TAGS)
