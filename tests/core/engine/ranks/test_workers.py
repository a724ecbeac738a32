"""Ranks that connect: only those with the token, each once; and what they must have alike."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.ranks.messages import RankBeat, RankHello
from tokenspeed.engine.ranks.place import degrees_of, mesh_text, world_of
from tokenspeed.engine.ranks.source import RankAddress, is_loopback, listen_for_ranks, source_of
from tokenspeed.engine.ranks.wire import FrameReader, encoded, receive_frame, send_frame
from tokenspeed.engine.ranks.workers import accept_workers, difference
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def meeting() -> Iterator[tuple[socket.socket, RankAddress]]:
    listener, address = listen_for_ranks("127.0.0.1")
    with listener:
        yield listener, address


def connect(address: RankAddress, *data: bytes) -> socket.socket:
    sock = socket.create_connection((address.host, address.port))
    for item in data:
        send_frame(sock, item)
    return sock


def hello(rank: int, token: str) -> bytes:
    return encoded(RankHello(rank=rank, pid=rank * 10, host=f"host{rank}", token=token))


def test_only_ranks_of_this_server_are_taken_and_each_once(
    meeting: tuple[socket.socket, RankAddress], caplog: pytest.LogCaptureFixture
) -> None:
    listener, address = meeting
    right = hello(2, address.token)
    socks = [
        connect(address, hello(1, "guessed")),
        connect(address, b"\xc1 no message"),
        connect(address, encoded(RankBeat(steps=1, calls=2))),
        connect(address, hello(3, address.token)),
        connect(address, hello(0, address.token)),
        connect(address, right),
        connect(address, right),
    ]
    late = threading.Timer(0.3, lambda: socks.append(connect(address, hello(1, address.token))))
    late.start()
    workers = accept_workers(listener, 3, address.token, lambda: None)
    late.join()
    assert [worker.rank for worker in workers] == [1, 2]
    assert [worker.name for worker in workers] == [
        "rank 1 (pid 10 on host1)",
        "rank 2 (pid 20 on host2)",
    ]
    assert caplog.text.count("is no rank of this server") == 3
    assert "rank 3, which is none of 1 to 2" in caplog.text
    assert "rank 2, which is there already" in caplog.text
    for sock in (*socks[:5], socks[6]):
        assert sock.recv(1) == b"", "it is told by the end of its connection"
    for worker in workers:
        worker.close()
    for sock in socks:
        sock.close()


def test_waiting_for_ranks_ends_when_nobody_waits_any_more(
    meeting: tuple[socket.socket, RankAddress],
) -> None:
    def refuse() -> None:
        raise EngineError("enough")

    with pytest.raises(EngineError, match="enough"):
        accept_workers(meeting[0], 2, meeting[1].token, refuse)


def test_messages_cut_anywhere_are_read_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(ours)
        beats = [RankBeat(steps=number, calls=2 * number) for number in range(3)]
        frames = b"".join(len(body).to_bytes(4, "little") + body for body in map(encoded, beats))
        found = []
        for byte in frames:
            theirs.send(bytes((byte,)))
            found += reader.take()
        assert found == beats
        assert not reader.is_over
        theirs.close()
        assert reader.take() == []
        assert reader.is_over
        with pytest.raises(EOFError):
            receive_frame(ours)


def test_the_first_difference_between_ranks_is_named_with_both_values() -> None:
    ours = {"cache": "8 blocks", "slot moe.experts": "reference/moe", "only here": "x"}
    assert difference("rank 1", ours, {"cache": "8 blocks"}) is None
    error = difference("rank 1 (pid 7 on b)", ours, {"cache": "9 blocks"})
    assert "rank 1 (pid 7 on b) has cache 9 blocks, rank 0 has 8 blocks" in str(error)
    assert difference("rank 1", ours, {"kernel of its own stage": "a/b"}) is None


@pytest.mark.parametrize(
    ("settings", "world", "text"),
    [
        ({}, 1, "tp=1 dp=1 ep=1"),
        ({"tp": 2}, 2, "tp=2 dp=1 ep=1"),
        ({"tp": 2, "ep": 4, "pp": 2}, 8, "tp=2 dp=1 ep=4 pp=2"),
        ({"tp": 4, "dense_tp": 8}, 8, "tp=4 dp=1 ep=1 dense_tp=8"),
    ],
)
def test_the_degrees_make_the_ranks(settings: dict[str, int], world: int, text: str) -> None:
    config = EngineConfig(**settings)
    assert world_of(config) == world
    assert mesh_text(degrees_of(config)) == text


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.7", False), ("head", False)],
)
def test_a_loopback_address_means_one_host(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_engine_is_told_the_host_only_where_others_need_it(
    meeting: tuple[socket.socket, RankAddress],
) -> None:
    listener, address = meeting
    assert source_of(listener, address).host == ""
    elsewhere = RankAddress(host="head", port=address.port, token=address.token)
    assert source_of(listener, elsewhere, device_index=3).host == "head"
