"""Plans between hosts: whatever length, whole and in order; a rank that is gone is an error."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tokenspeed.engine.ranks.plan_channels import PlanChannels
from tokenspeed.engine.ranks.plan_group import FRAME_BYTES, HEAD_BYTES, PlanGroup, PlansLost
from tokenspeed_reference.communicator import ThreadCommunicator

ROOM = FRAME_BYTES - HEAD_BYTES
MESSAGES = [bytes(index % 251 for index in range(size)) for size in (1, ROOM, ROOM + 1, 90_000, 7)]


def groups(size: int, *, timeout_s: float = 10.0) -> list[PlanGroup]:
    rendezvous = uuid.uuid4().hex
    return [
        PlanGroup(
            ThreadCommunicator(
                rank=rank,
                size=size,
                rendezvous=rendezvous,
                device=torch.device("cpu"),
                timeout_s=timeout_s,
            )
        )
        for rank in range(size)
    ]


def test_messages_of_any_length_come_whole_and_in_order() -> None:
    first, *others = groups(3)

    def receive(group: PlanGroup) -> list[bytes]:
        found = []
        while message := group.receive():
            found.append(message)
        return found

    with ThreadPoolExecutor(2) as pool:
        received = [pool.submit(receive, group) for group in others]
        for message in (*MESSAGES, b""):
            first.send(message)
        assert [future.result(10.0) for future in received] == [MESSAGES, MESSAGES]
    for group in (first, *others):
        group.close()


def test_a_rank_that_leaves_is_an_error_at_both_ends() -> None:
    first, second, third = groups(3)
    third.close()
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(second.receive)
        with pytest.raises(OSError, match="left"):
            first.send(b"plan")
        with pytest.raises(PlansLost, match=r"no plan comes any more: .*left"):
            received.result(10.0)


def test_ranks_of_this_host_read_the_ring_and_others_the_group() -> None:
    channels = PlanChannels(lambda: None)
    channels.reach(["a", "b", "a", "b", "a"])
    assert channels.plan_ranks == (0, 1, 3)
    assert [channels.reader_of(rank) for rank in range(1, 5)] == [-1, 0, -1, 1]
    assert channels.path.startswith("/proc/")
    channels.close()
    alone = PlanChannels(lambda: None)
    alone.reach(["a", "b"])
    assert (alone.path, alone.plan_ranks) == ("", (0, 1))
