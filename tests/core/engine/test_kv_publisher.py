"""KV events on the wire: a public consumer reads them, fills gaps, and never slows the engine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
import zmq
from tests.support.kv_consumer import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Consumer,
    OldStored,
    PositionalBatch,
)
from tests.support.schedulers import make_scheduler

from tokenspeed.engine import kv_events, kv_publisher
from tokenspeed.engine.kv_events import EventGroup, events_of
from tokenspeed.engine.kv_publisher import KvEventSettings, KvPublisher
from tokenspeed.errors import ConfigError
from tokenspeed.scheduler import KV_EVENTS, KV_MEDIUMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Result = TypeVar("Result")

BLOCK = 16
ONE = (EventGroup(),)
Change = tuple[str, int, int, int]
"""kind, block number, parent's number (-1: none), tokens; hashes are made from the numbers."""


def key(number: int) -> bytes:
    """A chain hash; the high half only differs where nobody looks."""
    return (number + 1 << 40).to_bytes(8, "little") + b"\x77" * 8


def short(number: int) -> int:
    """The same as consumers see it."""
    return number + 1 << 40


def make_batch(changes: Sequence[Change], *, medium: str = "device", salt: bytes = b"") -> Any:
    """What `drain_events` returns for these changes."""
    lengths = [tokens if kind == "stored" else 0 for kind, _, _, tokens in changes]
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    hashes = [key(number) for _, number, _, _ in changes]
    parents = [key(parent) if parent >= 0 else bytes(16) for _, _, parent, _ in changes]
    return SimpleNamespace(
        kinds=np.array([KV_EVENTS.index(kind) for kind, *_ in changes], dtype=np.uint8),
        mediums=np.full(len(changes), KV_MEDIUMS.index(medium), dtype=np.uint8),
        groups=np.zeros(len(changes), dtype=np.int32),
        hashes=np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 16),
        parents=np.frombuffer(b"".join(parents), dtype=np.uint8).reshape(-1, 16),
        namespaces=np.array([0 if n else -1 for n in lengths], dtype=np.int32),
        token_start=start,
        tokens=np.arange(start[-1], dtype=np.int32),
        salts=[salt],
    )


def stored(number: int, parent: int = -1, tokens: int = BLOCK) -> Change:
    return ("stored", number, parent, tokens)


@pytest.fixture
def settings(tmp_path: Path) -> KvEventSettings:
    return KvEventSettings(
        endpoint=f"ipc://{tmp_path}/pub",
        replay_endpoint=f"ipc://{tmp_path}/replay",
        topic="kv-events",
        block_tokens=BLOCK,
    )


@pytest.fixture
def publisher(settings: KvEventSettings) -> Iterator[KvPublisher]:
    publisher = KvPublisher(settings)
    yield publisher
    publisher.close()


def connected(publisher: KvPublisher, settings: KvEventSettings, **options: Any) -> Consumer:
    """Subscribe, and wait until a published change arrives."""
    options = {"topic": settings.topic, **options}
    consumer = Consumer(settings.endpoint, settings.replay_endpoint, **options)
    deadline_s = time.monotonic() + 60
    while not consumer.sub.poll(20):
        assert time.monotonic() < deadline_s
        publisher.publish(make_batch([("removed", 999, -1, 0)]))
    while int.from_bytes(consumer.sub.recv_multipart()[1], "big") < publisher._number - 1:
        assert consumer.sub.poll(60_000), "what was published last is missing"
    consumer.last = publisher._number - 1
    return consumer


def test_neighbours_of_a_chain_are_one_event() -> None:
    changes = [stored(0), stored(1, 0), stored(2, 1), stored(9), ("removed", 4, -1, 0)]
    first, other, gone = events_of(make_batch(changes, salt=b"s"), BLOCK, ONE)
    assert first.block_hashes == (short(0), short(1), short(2))  # type: ignore[union-attr]
    assert first.parent_block_hash is None  # type: ignore[union-attr]
    assert first.token_ids == list(range(48))  # type: ignore[union-attr]
    assert first.extra_keys == (("s",), None, None)  # type: ignore[union-attr]
    assert other.block_hashes == (short(9),)  # type: ignore[union-attr]
    assert gone.block_hashes == (short(4),)  # type: ignore[union-attr]


def test_the_salt_is_told_with_the_first_block_of_a_prompt_only() -> None:
    (event,) = events_of(make_batch([stored(5, 4), stored(6, 5)], salt=b"s"), BLOCK, ONE)
    assert event.parent_block_hash == short(4)  # type: ignore[union-attr]
    assert event.extra_keys == (None, None)  # type: ignore[union-attr]


def test_the_namespace_of_a_named_tenant_is_told_with_its_number() -> None:
    scheduler = make_scheduler({"name": "full"}, kv_events=True)
    for request_id, tenant in ((1, 0), (2, 0xAB)):
        prompt = np.arange(17, dtype=np.int32)
        scheduler.submit(request_id, prompt, tenant=tenant, salt=b"s", max_new_tokens=1, now_us=1)
        plan = scheduler.plan(now_us=1)
        assert plan is not None
        scheduler.commit(plan.step_id, np.array([7], np.int32), now_us=1)
    batch = scheduler.drain_events()
    assert batch is not None
    keys = [event.extra_keys for event in events_of(batch, BLOCK, ONE)]  # type: ignore[union-attr]
    assert keys == [(("s",),), (("00000000000000ab/s",),)]


def test_tails_are_left_out_and_the_chain_goes_on_past_them() -> None:
    changes = [stored(0), stored(1, 0, tokens=5), stored(2, 0)]
    (event,) = events_of(make_batch(changes), BLOCK, ONE)
    assert event.block_hashes == (short(0), short(2))  # type: ignore[union-attr]
    assert event.token_ids == [*range(16), *range(21, 37)]  # type: ignore[union-attr]


def test_each_group_has_its_events_with_its_kind_and_none_goes_to_readers_of_the_old_shape() -> (
    None
):
    batch = make_batch([stored(0), stored(0), stored(1, 0), stored(1, 0), ("removed", 0, -1, 0)])
    batch.groups[:] = (0, 1, 0, 1, 1)
    groups = (EventGroup(), EventGroup("window", 24))
    full, window, gone = events_of(batch, BLOCK, groups)
    assert isinstance(full, kv_events.BlockStored)
    assert isinstance(window, kv_events.BlockStored)
    assert isinstance(gone, kv_events.BlockRemoved)
    assert full.block_hashes == window.block_hashes == (short(0), short(1))
    assert (full.group_idx, full.kv_cache_spec_kind) == (0, "full_attention")
    assert full.kv_cache_spec_sliding_window is None
    assert (window.group_idx, window.kv_cache_spec_kind) == (1, "sliding_window")
    assert window.kv_cache_spec_sliding_window == 24
    assert (gone.group_idx, gone.block_hashes) == (1, (short(0),))
    assert events_of(batch, BLOCK, groups, is_named=False) == [full]


def test_media_have_the_names_that_consumers_know() -> None:
    names = [
        events_of(make_batch([stored(0)], medium=medium), BLOCK, ONE)[0].medium  # type: ignore[union-attr]
        for medium in KV_MEDIUMS
    ]
    assert names == ["GPU", "CPU", "STORAGE"]


def test_a_consumer_reads_every_event_in_order(
    publisher: KvPublisher, settings: KvEventSettings
) -> None:
    consumer = connected(publisher, settings)
    publisher.publish(None)
    publisher.publish(make_batch([stored(0), stored(1, 0)], medium="host"))
    publisher.publish(make_batch([("removed", 1, -1, 0), ("removed", 0, -1, 0)]))
    publisher.publish(make_batch([("cleared", 0, -1, 0)]))
    assert all(consumer.receive() for _ in range(3))
    assert consumer.events == [
        BlockStored(
            [short(0), short(1)],
            None,
            list(range(32)),
            BLOCK,
            None,
            "CPU",
            None,
            [None, None],
            0,
            "full_attention",
        ),
        BlockRemoved([short(1), short(0)], "GPU", 0),
        AllBlocksCleared(),
    ]
    consumer.close()


def test_consumers_of_the_older_shape_read_it_with_its_setting(tmp_path: Path) -> None:
    old = KvEventSettings(
        endpoint=f"ipc://{tmp_path}/p",
        replay_endpoint=f"ipc://{tmp_path}/r",
        is_named=False,
        block_tokens=BLOCK,
    )
    publisher = KvPublisher(old)
    consumer = connected(publisher, old, batch=PositionalBatch)
    publisher.publish(make_batch([stored(3)]))
    assert consumer.receive()
    assert consumer.events == [OldStored([short(3)], None, list(range(16)), BLOCK, None, "GPU")]
    assert served(publisher, consumer.catch_up, 0) == publisher._number
    consumer.close()
    publisher.close()


def served(publisher: KvPublisher, work: Callable[..., Result], *args: Any) -> Result:
    """Run a consumer's work in a thread while the publisher's loop turns here."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, *args)
        deadline_s = time.monotonic() + 60
        while not future.done() and time.monotonic() < deadline_s:
            publisher.turn()
            time.sleep(0.001)
    return future.result()


def test_a_gap_is_filled_by_replay(
    publisher: KvPublisher, settings: KvEventSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "REPLAYED_A_TURN", 7)
    consumer = connected(publisher, settings)
    for number in range(40):
        publisher.publish(make_batch([stored(number, number - 1)]))
    for _ in range(30):  # as if a full queue had dropped them
        assert consumer.sub.poll(60_000)
        consumer.sub.recv_multipart()
    assert served(publisher, consumer.receive)
    assert consumer.gaps == 1
    assert consumer.last == publisher._number - 1
    assert consumer.stored() == {short(number) for number in range(40)}
    consumer.close()


def test_a_late_consumer_learns_what_was_before_it(
    publisher: KvPublisher, settings: KvEventSettings
) -> None:
    publisher.publish(make_batch([stored(0), stored(1, 0), ("removed", 1, -1, 0)]))
    late = Consumer(settings.endpoint, settings.replay_endpoint)
    assert served(publisher, late.catch_up, 0) == 2
    assert late.events[0] == AllBlocksCleared(), "of an engine before this one nothing is left"
    assert late.stored() == {short(0)}
    late.close()


def test_a_client_that_takes_one_answer_a_request_gets_the_next_batch_each_time(
    publisher: KvPublisher, settings: KvEventSettings
) -> None:
    """A REQ socket reads one answer and drops the rest."""
    publisher.publish(make_batch([stored(0)]))

    def ask(first: int) -> int:
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(settings.replay_endpoint)
            socket.send(first.to_bytes(8, "big"))
            assert socket.poll(60_000)
            topic, number, _ = socket.recv_multipart()
            assert topic == (b"kv-events" if first < 2 else b"")
            return int.from_bytes(number, "big", signed=True)

    assert [served(publisher, ask, first) for first in (0, 1, 2)] == [0, 1, -1]


def test_only_the_last_batches_are_kept(
    publisher: KvPublisher, settings: KvEventSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "KEPT_BATCHES", 10)
    for number in range(50):
        publisher.publish(make_batch([stored(number)]))
    late = Consumer(settings.endpoint, settings.replay_endpoint)
    assert served(publisher, late.catch_up, 0) == 10
    assert late.stored() == {short(number) for number in range(40, 50)}
    monkeypatch.setattr(kv_publisher, "KEPT_BYTES", 3 * publisher._kept.num_bytes // 10)
    publisher.publish(make_batch([stored(50)]))
    assert served(publisher, late.catch_up, 0) == 3
    late.close()


def test_a_subscriber_that_does_not_read_never_holds_the_engine_up(
    publisher: KvPublisher, settings: KvEventSettings
) -> None:
    slow = connected(publisher, settings, high_water=1)
    num_batches = 3 * kv_publisher.QUEUED_BATCHES
    batch = make_batch([stored(number, number - 1) for number in range(8)])
    longest_s = 0.0
    for _ in range(num_batches):
        started_s = time.perf_counter()
        publisher.publish(batch)
        longest_s = max(longest_s, time.perf_counter() - started_s)
    assert longest_s < 10, "nobody waits; what is left of this is the machine's noise"
    first = slow.last
    count = 0
    while slow.sub.poll(500):
        slow.last = int.from_bytes(slow.sub.recv_multipart()[1], "big")
        count += 1
    assert 0 < count < num_batches, "it lost some"
    missed = served(publisher, slow.catch_up, first + 1)
    assert missed == min(num_batches, kv_publisher.KEPT_BATCHES)
    slow.close()


def test_a_replay_that_is_not_read_waits_and_the_publisher_goes_on(
    settings: KvEventSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_publisher, "QUEUED_BATCHES", 4)
    publisher = KvPublisher(settings)
    # Larger than what the system's own buffers take.
    big = make_batch([stored(number, number - 1) for number in range(2000)])
    for _ in range(60):
        publisher.publish(big)
    lazy = Consumer(settings.endpoint, settings.replay_endpoint, high_water=1)
    lazy.replay.send_multipart((b"", bytes(8)))
    assert publisher.replay_socket is not None
    assert publisher.replay_socket.poll(60_000)
    started_s = time.perf_counter()
    assert publisher.turn(), "there is more to send"
    assert publisher.turn()
    assert time.perf_counter() - started_s < 10
    lazy.close()
    deadline_s = time.monotonic() + 60
    while publisher.turn():
        assert time.monotonic() < deadline_s, "a client that is gone is forgotten"
        time.sleep(0.005)
    publisher.close()


def test_an_unreadable_request_is_dropped(
    publisher: KvPublisher, settings: KvEventSettings
) -> None:
    consumer = Consumer(settings.endpoint, settings.replay_endpoint)
    for frames in ((b"",), (b"x", bytes(8)), (b"", b"1"), (b"", bytes(8), b"")):
        consumer.replay.send_multipart(frames)
    assert served(publisher, consumer.catch_up, 0) == 1
    consumer.close()


@pytest.mark.parametrize("address", ["tcp://999.1.1.1:1", "nonsense", "ipc:///no/such/folder/x"])
def test_an_address_that_cannot_be_bound_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--kv-events is .* cannot be bound"):
        KvPublisher(KvEventSettings(endpoint=address, block_tokens=BLOCK))


def test_the_setting_of_the_replay_address_is_named_too() -> None:
    with pytest.raises(ConfigError, match="kv-events-replay"):
        KvPublisher(
            KvEventSettings(
                endpoint="tcp://127.0.0.1:*",
                replay_endpoint="tcp://999.1.1.1:1",
                block_tokens=BLOCK,
            )
        )
