"""What one vocabulary entry spells: the byte alphabet of byte-level BPE, SPM byte fallback.

Source: GPT-2 `bytes_to_unicode` (printable bytes stand for themselves, the other 68 are moved to
U+0100 and up), and SentencePiece's `<0xNN>` byte pieces.
"""

from __future__ import annotations

import re

SPM_SPACE = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_MOVED = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

BYTE_OF_CHAR: dict[str, int] = {chr(byte): byte for byte in _PRINTABLE}
BYTE_OF_CHAR.update({chr(0x100 + rank): byte for rank, byte in enumerate(_MOVED)})
CHAR_OF_BYTE: dict[int, str] = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def piece_bytes(piece: str, decoder_kind: str) -> bytes:
    """Return the bytes that a vocabulary entry adds to a text.

    Args:
        piece: the entry as the vocabulary spells it.
        decoder_kind: `Tokenizer.decoder_kind`; "other" takes the entry literally.
    """
    if decoder_kind == "bytes":
        return byte_level_bytes(piece)
    if decoder_kind == "spm":
        value = fallback_byte(piece)
        return piece.replace(SPM_SPACE, " ").encode() if value is None else bytes([value])
    return piece.encode()


def byte_level_bytes(piece: str) -> bytes:
    """Map an entry of a byte-level vocabulary; one with foreign characters spells itself."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in piece])
    except KeyError:
        return piece.encode()


def byte_level_spelling(text: str) -> str:
    """Spell `text` in the byte alphabet."""
    return "".join(CHAR_OF_BYTE[byte] for byte in text.encode())


def fallback_byte(piece: str) -> int | None:
    """Return the byte that an SPM piece such as `<0x0A>` stands for, or None."""
    match = _BYTE_PIECE.match(piece)
    return int(match.group(1), 16) if match else None
