"""A long list of token ids in a JSON body, read in pieces: one scan of a million would hold the
interpreter, and with it the event loop, for tens of milliseconds.

    {"model": "m", "prompt": [1, 2, ... 3], "stream": true}
                             [-- ids ----]                    cut out, a mark stands in its place

Everything that is not plainly such a list is left to the whole body's parser and its errors.
"""

from __future__ import annotations

import re
import secrets
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tokenspeed.server.http.field_limits import FieldLimits

MIN_BYTES = 1 << 16
"""A shorter list is read with the body."""
PIECE_BYTES = 1 << 16
COUNTED_BYTES = 1 << 20
_VALUE = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*\[")
_decoder = msgspec.json.Decoder(list[int])


@dataclass(frozen=True, slots=True)
class LongIds:
    """A list of ids that was taken out of a body.

    Args:
        rest: the body with `mark` in the list's place.
        mark: JSON text that stands nowhere else.
        ids: int32.
    """

    rest: bytes
    mark: bytes
    ids: array[int]


def take_out(raw: bytes, name: str, limits: FieldLimits) -> LongIds | None:
    """Take a long list of ids out of the first field of that name; None: there is none.

    The field may be a nested one: then the mark is not found as the value of the body's own.

    Raises:
        RequestError: it is longer than any prompt may be.
    """
    key = b'"%s"' % name.encode()
    opening = _VALUE.match(raw, raw.find(key) + len(key))
    if opening is None:
        return None
    start, end = opening.end(), raw.find(b"]", opening.end())
    if end - start < MIN_BYTES:
        return None
    limits.check_prompt_tokens(_commas(raw, start, end) + 1)
    ids = _read(raw, start, end)
    if ids is None:
        return None
    mark = b'"%s"' % secrets.token_hex(16).encode()
    return LongIds(raw[: start - 1] + mark + raw[end + 1 :], mark, ids)


def _commas(raw: bytes, start: int, end: int) -> int:
    windows = range(start, end, COUNTED_BYTES)
    return sum(raw.count(b",", at, min(at + COUNTED_BYTES, end)) for at in windows)


def _read(raw: bytes, start: int, end: int) -> array[int] | None:
    """Return the ids between two brackets; None: something else stands there."""
    ids = array("i")
    while start <= end:
        comma = raw.find(b",", min(start + PIECE_BYTES, end), end)
        stop = comma if comma >= 0 else end
        try:
            piece = _decoder.decode(b"[%b]" % raw[start:stop])
            ids.extend(piece)
        except (msgspec.DecodeError, OverflowError):
            return None
        if not piece:  # two commas, or one at the end
            return None
        start = stop + 1
    return ids
