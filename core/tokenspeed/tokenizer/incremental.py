"""Encodes conversations that grow: text seen before is not encoded again, ids stay exact.

    text    <|im_start|>system ...  <|im_start|>user ...  <|im_start|>assistant ...
            [------ piece -------)  [----- piece -----)   [------- piece --------)

The library splits text at special tokens before anything else, so a piece that begins with one
has the same ids wherever it stands. Pieces of earlier prompts hang in a tree; a new prompt walks
it by comparing text, and only what lies behind the first new piece is encoded. Each step of the
walk re-verifies the piece's text and that a special token (or the end) really follows it.

Only cuts that hold in any surrounding are used (`boundaries.py`); inside a piece, long texts are
cut at line ends and words where that is exact too (`splits.py`).
Loop thread only, except where `encode_async` says otherwise.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenspeed.tokenizer.boundaries import Boundaries
from tokenspeed.tokenizer.id_arrays import extend_ids
from tokenspeed.tokenizer.splits import can_cut, chunks
from tokenspeed.tokenizer.tokenizer import Tokenizer

DEFAULT_MAX_BYTES = 256 << 20
_INLINE_CHARS = 4096
_NODE_BYTES = 600

# A stretch of text and its ids as int32 bytes.
_Piece = tuple[str, bytes]


@dataclass(slots=True, eq=False)
class _Node:
    """One piece behind its parent's; `recent` is the child that was used last."""

    text: str
    ids: bytes
    parent: _Node | None
    children: dict[str, _Node] = field(default_factory=dict)
    recent: _Node | None = None

    @property
    def num_bytes(self) -> int:
        return self.text.__sizeof__() + len(self.ids) + _NODE_BYTES


class EncodeCache:
    """Token-exact incremental encoding over one tokenizer.

    Args:
        tokenizer: does the encoding.
        max_bytes: bound on remembered text and ids; the least recently used tails go first.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._tokenizer = tokenizer
        self._max_bytes = max_bytes
        self._boundaries = Boundaries(tokenizer)
        self._can_cut = can_cut(tokenizer.backend)
        self._root = _Node("", b"", None)
        # Least recently used first. A child is always moved before its parent, so the first
        # node has no children.
        self._lru: OrderedDict[_Node, None] = OrderedDict()
        self.num_bytes = 0
        self.encoded_chars = 0
        """Characters that went through the tokenizer, for tests and metrics."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> array[int]:
        """Return the int32 ids of `text`, equal to `Tokenizer.encode`.

        Raises:
            RequestError: `text` is not valid Unicode; nothing is remembered then.
        """
        known, offset = self._walk(text)
        return self._finish(known, self._encode_pieces(text, offset), add_special_tokens)

    async def encode_async(self, text: str, *, add_special_tokens: bool = False) -> array[int]:
        """Like `encode`; more than a few thousand new characters are encoded in a thread.

        The library releases the interpreter there; the tree is touched on the loop's thread only.
        """
        known, offset = self._walk(text)
        if len(text) - offset <= _INLINE_CHARS:
            pieces = self._encode_pieces(text, offset)
        else:
            pieces = await asyncio.to_thread(self._encode_pieces, text, offset)
        return self._finish(known, pieces, add_special_tokens)

    def token_positions(self, text: str, offsets: Sequence[int]) -> tuple[int, ...]:
        """Return how many of the ids of `text` stand for its first characters, for each offset.

        An id that reaches over the offset, or is another when the text ends there, does not count.
        Offsets are increasing. Cheap after `encode(text)`: what was encoded is found again.
        """
        known, end = self._walk(text)
        pieces = known + self._encode_pieces(text, end)
        positions, start, count, index = [], 0, 0, 0
        for offset in offsets:
            while index < len(pieces) and start + len(pieces[index][0]) <= offset:
                start, count = start + len(pieces[index][0]), count + len(pieces[index][1]) // 4
                index += 1
            is_cut = start < offset and index < len(pieces)
            inside = self._common(pieces, index, text[start:offset]) if is_cut else 0
            positions.append(count + inside)
        return tuple(positions)

    def _common(self, pieces: list[_Piece], index: int, part: str) -> int:
        """Return how many ids piece `index` has in common with its beginning `part` alone.

        Negative where the text cut off there changes the piece before: inside a special token.
        """
        text, ids = "", b""
        if index and not self._boundaries.is_at(part, 0):
            text, ids = pieces[index - 1]
        shared = _common_ids(self._encode_piece(text + part), ids + pieces[index][1])
        return shared - len(ids) // 4

    def begins_piece(self, text: str) -> bool:
        """Say whether `text` begins with a token at which a longer text may be cut before it."""
        return self._boundaries.is_at(text, 0)

    # ---- walking

    def _walk(self, text: str) -> tuple[list[_Piece], int]:
        """Return the known pieces that `text` begins with, and the first unknown offset."""
        node, offset, known = self._root, 0, []
        while offset < len(text):
            child = self._child(node, text, offset)
            if child is None:
                break
            known.append((child.text, child.ids))
            node, offset = child, offset + len(child.text)
        return known, offset

    def _child(self, node: _Node, text: str, offset: int) -> _Node | None:
        """Return the child whose piece stands at `offset` of `text`."""
        recent = node.recent
        if recent is not None and self._stands_at(recent, text, offset):
            return recent
        if not node.children or (len(node.children) == 1 and recent is not None):
            return None
        end = self._boundaries.next_after(text, offset)
        return node.children.get(text[offset:end])

    def _stands_at(self, node: _Node, text: str, offset: int) -> bool:
        end = offset + len(node.text)
        return text.startswith(node.text, offset) and (
            end == len(text) or self._boundaries.is_at(text, end)
        )

    # ---- encoding

    def _encode_pieces(self, text: str, offset: int) -> list[_Piece]:
        pieces: list[_Piece] = []
        while offset < len(text):
            end = self._boundaries.next_after(text, offset)
            piece = text[offset:end]
            pieces.append((piece, self._encode_piece(piece)))
            offset = end
        return pieces

    def _encode_piece(self, piece: str) -> bytes:
        """Encode in chunks where possible: one huge result holds the interpreter for long."""
        ids = array("i")
        for chunk in chunks(piece) if self._can_cut else (piece,):
            extend_ids(ids, self._tokenizer.encode(chunk, add_special_tokens=False))
        return ids.tobytes()

    def _finish(
        self, known: list[_Piece], new: list[_Piece], add_special_tokens: bool
    ) -> array[int]:
        self.encoded_chars += sum(len(text) for text, _ in new)
        pieces = known + new
        self._remember(pieces)
        before, behind = self._tokenizer.affixes if add_special_tokens else ([], [])
        ids = array("i", before)
        ids.frombytes(b"".join([own for _, own in pieces]))
        ids.extend(behind)
        return ids

    # ---- remembering

    def _remember(self, pieces: list[_Piece]) -> None:
        """Hang the pieces on the tree; known ones may have been evicted during an await."""
        node, path = self._root, []
        for text, ids in pieces:
            child = node.children.get(text)
            if child is None:
                child = _Node(text, ids, node)
                node.children[text] = child
                self.num_bytes += child.num_bytes
            node.recent = child
            node = child
            path.append(child)
        for child in reversed(path):
            self._lru[child] = None
            self._lru.move_to_end(child)
        self._evict()

    def _evict(self) -> None:
        while self.num_bytes > self._max_bytes and self._lru:
            node, _ = self._lru.popitem(last=False)
            parent = node.parent
            assert parent is not None, "the root is not in the list"
            assert not node.children, "a child outlives its parent in the list"
            del parent.children[node.text]
            if parent.recent is node:
                parent.recent = None
            self.num_bytes -= node.num_bytes


def _common_ids(one: bytes, other: bytes) -> int:
    """Return how many int32 ids two buffers begin with in common."""
    pairs = zip(array("i", one), array("i", other), strict=False)
    return next(
        (index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)) // 4
    )
