"""Output items of a response: each part of an answer in the form of this API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.server.conversation.sealed import pack
from tokenspeed.server.responses.item_ids import item_id

if TYPE_CHECKING:
    from tokenspeed.server.parts_of_answer import Part
    from tokenspeed.server.responses.tools import ToolTable

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


class ItemWriter:
    """Writes the items of one response; an item keeps its id from its opening to its end.

    Args:
        packs_reasoning: thinking is given in its packed form too.
    """

    def __init__(self, response_id: str, tools: ToolTable, *, packs_reasoning: bool) -> None:
        self._response_id = response_id
        self._tools = tools
        self._packs_reasoning = packs_reasoning

    def id_of(self, part: Part) -> str:
        """Return the id of a part's item."""
        return item_id(_PREFIXES[part.kind], self._response_id, part.number)

    def item(self, part: Part, status: str) -> dict[str, Any]:
        """Return a part as it stands; in progress it is empty, as an opening shows it."""
        is_open = status == IN_PROGRESS
        head = {"id": self.id_of(part), "status": status}
        if part.kind == "call":
            return {**head, **self._call(part, "" if is_open else part.text)}
        content = [] if is_open else [content_part(part, part.text)]
        if part.kind == "text":
            return {**head, "type": "message", "role": "assistant", "content": content}
        packed = pack(part.text) if self._packs_reasoning and not is_open else None
        return {
            **head,
            "type": "reasoning",
            "summary": [],
            "content": content,
            "encrypted_content": packed,
        }

    def _call(self, part: Part, arguments: str) -> dict[str, Any]:
        namespace, name = self._tools.place_of(part.name)
        call = {
            "type": "function_call",
            "call_id": part.call_id,
            "name": name,
            "arguments": arguments,
        }
        return {**call, "namespace": namespace} if namespace else call


def content_part(part: Part, text: str) -> dict[str, Any]:
    """Return the content of an item."""
    if part.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
