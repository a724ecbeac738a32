"""What torchrun's variables must be: anything else is refused at once, by name and value."""

from __future__ import annotations

import socket
import time

import pytest

from tokenspeed.engine.ranks.torchrun import TorchrunMeeting, torchrun_place
from tokenspeed.errors import ConfigError, EngineError

GOOD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def set_all(monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    for name, value in {**GOOD, **changed}.items():
        monkeypatch.setenv(name, value)


def test_the_variables_of_a_start_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch)
    found = torchrun_place(2)
    assert (found.rank, found.world, found.master_port) == (1, 2, 29500)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "x", "RANK is 'x', a whole number is needed"),
        ("RANK", "2", "RANK is 2, allowed is 0 to 1"),
        ("RANK", "-1", "RANK is -1, allowed is 0 to 1"),
        ("WORLD_SIZE", "two", "WORLD_SIZE is 'two', a whole number is needed"),
        ("WORLD_SIZE", "3", "torchrun started 3 ranks, the settings ask for 2"),
        ("MASTER_PORT", "99999", "MASTER_PORT is 99999, allowed is 0 to 65535"),
        ("MASTER_PORT", "1e3", "MASTER_PORT is '1e3', a whole number is needed"),
        ("MASTER_ADDR", "", "are not all set"),
        ("RANK", "", "are not all set"),
    ],
)
def test_wrong_variables_are_named(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, **{name: value})
    with pytest.raises(ConfigError, match=words):
        torchrun_place(2)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_rank_0_that_does_not_come_is_named_with_its_address(
    is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if is_served:  # torchrun is there, and rank 0 says nothing
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    else:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
    set_all(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    started_s = time.monotonic()
    with pytest.raises(
        EngineError,
        match=rf"rank 1 does not meet rank 0 at 127.0.0.1:{port} within 1 s .*--master-addr",
    ):
        TorchrunMeeting(torchrun_place(2), 1.0).address()
    assert time.monotonic() - started_s < 60.0
