"""The text of one answer while its tokens arrive: whole characters, stop strings applied.

One rule for HTTP and for `LLM`: what ends an answer is not part of it unless asked for, and no
stop string counts before `min_tokens`. One object per answer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tokenspeed.tokenizer.detokenizer import Detokenizer
from tokenspeed.tokenizer.stop import StopMatcher
from tokenspeed.tokenizer.tokenizer import Tokenizer


class AnswerText:
    """Builds one text.

    Args:
        tokenizer: of the model.
        stop: strings that end the text.
        include_stop_text: keep the stop string, or the text of the stop token.
        min_tokens: stop strings are looked for from this many tokens on.
        stop_token_ids: ids that show nothing when they end the answer.
        shown_ids: special tokens that stand in the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_text: bool = False,
        min_tokens: int = 0,
        stop_token_ids: Collection[int] = (),
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.is_stopped = False
        self.stop_text = ""
        self._detokenizer = Detokenizer(tokenizer, shown_ids=shown_ids)
        self._matcher = StopMatcher(stop, include_stop_text=include_stop_text)
        self._min_tokens = min_tokens
        self._hidden_ids = frozenset() if include_stop_text else frozenset(stop_token_ids)
        self._num_tokens = 0

    def push(self, tokens: Sequence[int], *, finish_reason: str | None = None) -> tuple[str, int]:
        """Take the next tokens.

        Args:
            finish_reason: given with the last tokens; "stop" when a token ended the answer.
        Returns:
            The text that is now certain, and how many of the tokens it took: fewer than all when a
            stop string was found in the text of one (`is_stopped` is set then).
        """
        text = ""
        for used, token in enumerate(tokens, start=1):
            is_end = finish_reason == "stop" and used == len(tokens)
            is_hidden = is_end and token in self._hidden_ids
            self._num_tokens += 1
            text += self._matched("" if is_hidden else self._detokenizer.push((token,)))
            if self.is_stopped:
                return text, used
        if finish_reason is not None:
            text += self._matched(self._detokenizer.flush()) + self._matcher.flush()
        return text, len(tokens)

    def _matched(self, text: str) -> str:
        if self._num_tokens < self._min_tokens:
            return text
        emitted, stop = self._matcher.push(text)
        self.is_stopped = stop is not None
        self.stop_text = stop or ""
        return emitted
