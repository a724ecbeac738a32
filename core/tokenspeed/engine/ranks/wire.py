"""Frames on the control socket between rank 0 and one worker: 4 bytes of length, then the message.

Towards rank 0 each frame is a control message; from it the first is the settings, and each other
one a RankGoOn.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from tokenspeed.engine.ranks.messages import FromRank

_LENGTH = struct.Struct("<I")
_CHUNK_BYTES = 1 << 16


def send_frame(sock: socket.socket, data: bytes) -> None:
    """Send one frame.

    Raises:
        OSError: the other end is gone.
    """
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(sock: socket.socket) -> bytes:
    """Receive one frame.

    Raises:
        EOFError: the other end is gone.
    """
    return _receive(sock, _LENGTH.unpack(_receive(sock, _LENGTH.size))[0])


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = sock.recv(size - len(data))
        except OSError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def encoded(message: FromRank) -> bytes:
    """Return a control message as the body of a frame."""
    return msgspec.msgpack.encode(message)


class FrameReader:
    """Takes what has arrived of a worker's messages, whole frames at a time; never blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._decoder = msgspec.msgpack.Decoder(FromRank)
        self.is_over = False

    def take(self) -> list[FromRank]:
        """Return the messages that are complete; sets `is_over` at the end of the stream."""
        while not self.is_over:
            try:
                part = self._sock.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                part = b""
            self.is_over = not part
            self._data += part
        messages = []
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                break
            messages.append(self._decoder.decode(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return messages
