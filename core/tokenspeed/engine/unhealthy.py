"""Stands in for an engine that was given up: tells every API process so, in its place."""

from __future__ import annotations

from typing import Self

from tokenspeed.engine.channel import ServerChannel
from tokenspeed.engine.messages import Unhealthy


class UnhealthyResponder:
    """Binds the engine's address and answers each message with `Unhealthy`."""

    def __init__(self, address: str, reason: str) -> None:
        self._channel = ServerChannel(address)
        self._answer = Unhealthy(reason)

    def answer(self, *, wait_ms: int) -> None:
        """Answer what arrives within `wait_ms`."""
        for client in {client for client, _ in self._channel.receive(wait_ms)}:
            self._channel.send(client, self._answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._channel.close()
