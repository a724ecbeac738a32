"""The channel: both directions, a client that is gone, and messages nobody can read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from tokenspeed.engine.channel import ServerChannel
from tokenspeed.engine.messages import Abort, Hello, TokensOut, Unhealthy

HELLO = Hello(wire_version=1, seen_epoch=0)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/engine.sock"


@pytest.fixture
def channel(address: str) -> Iterator[ServerChannel]:
    channel = ServerChannel(address)
    yield channel
    channel.close()


@pytest.fixture
def client(address: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        yield socket


def test_messages_arrive_in_order_with_their_client(
    channel: ServerChannel, client: zmq.Socket[bytes]
) -> None:
    for request_id in ("a", "b", "c"):
        client.send(msgspec.msgpack.encode(Abort(request_id)))
    received = []
    while len(received) < 3:
        received += channel.receive(5000)
    assert [message for _, message in received] == [Abort("a"), Abort("b"), Abort("c")]
    assert len({name for name, _ in received}) == 1


def test_an_answer_reaches_the_client(channel: ServerChannel, client: zmq.Socket[bytes]) -> None:
    client.send(msgspec.msgpack.encode(HELLO))
    ((name, _),) = channel.receive(5000)
    assert channel.send(name, TokensOut((), 4))
    assert msgspec.msgpack.decode(client.recv(), type=TokensOut) == TokensOut((), 4)


def test_sending_to_a_client_that_is_gone_says_so(channel: ServerChannel) -> None:
    assert not channel.send(b"nobody", TokensOut((), 1))


def test_unreadable_messages_give_the_peer_a_reason_and_the_next_is_read(
    channel: ServerChannel, client: zmq.Socket[bytes]
) -> None:
    client.send(b"\xc1not msgpack")
    client.send_multipart((b"three", b"frames", b"here"))
    client.send(msgspec.msgpack.encode(HELLO))
    received: list[object] = []
    while not received:
        received += [message for _, message in channel.receive(5000)]
    assert received == [HELLO]
    for words in ("one version", "3 frames"):
        answer = msgspec.msgpack.decode(client.recv(), type=Unhealthy)
        assert words in answer.reason


def test_receive_without_waiting_returns_at_once(channel: ServerChannel) -> None:
    assert list(channel.receive(0)) == []
