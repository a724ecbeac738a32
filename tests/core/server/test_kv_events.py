"""KV events of a real server, as a router sees them."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.kv_consumer import AllBlocksCleared, BlockStored, Consumer
from tests.support.scripted import ids_of, write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 16
PROMPT = "The quick brown fox jumps over the lazy dog, and back again."


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    model = write_scripted_model(tmp_path / "model", script="ok")
    flags = ("--kv-events", f"ipc://{tmp_path}/pub", "--kv-events-replay", f"ipc://{tmp_path}/rep")
    with ServerProcess(model, tmp_path, *flags, "--kv-events-topic", "kv@here") as server:
        yield server


@pytest.fixture
def router(server: ServerProcess, tmp_path: Path) -> Iterator[Consumer]:
    consumer = Consumer(f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/rep", topic="kv@")
    yield consumer
    consumer.close()


def test_an_idle_engine_answers_a_replay(router: Consumer) -> None:
    assert router.catch_up(0) == 1
    assert router.events == [AllBlocksCleared()]


def test_a_router_learns_the_chain_of_a_prompt_and_of_its_extension(
    server: ServerProcess, router: Consumer
) -> None:
    router.catch_up(0)
    ids = ids_of(PROMPT)
    for text in (PROMPT, PROMPT, PROMPT + " Then it sleeps for a very long time."):
        server.call("/v1/completions", {"model": "model", "prompt": text})
    router.catch_up(router.last + 1)
    chain = [event for event in router.events if isinstance(event, BlockStored)]
    assert chain[0].parent_block_hash is None
    assert (chain[0].block_size, chain[0].medium) == (BLOCK, "GPU")
    tokens = [token for event in chain for token in event.token_ids]
    assert tokens[: len(ids) // BLOCK * BLOCK] == ids[: len(ids) // BLOCK * BLOCK]
    hashes = [value for event in chain for value in event.block_hashes]
    assert len(hashes) == len(set(hashes)), "what is shared is stored once"
    for before, after in itertools.pairwise(chain):
        assert after.parent_block_hash in before.block_hashes


def test_salts_make_other_chains_and_are_told(server: ServerProcess, router: Consumer) -> None:
    for salt in ("", "a", "b"):
        body = {"model": "model", "prompt": PROMPT, "cache_salt": salt}
        server.call("/v1/completions", body)
    router.catch_up(0)
    heads = [
        event
        for event in router.events
        if isinstance(event, BlockStored) and event.parent_block_hash is None
    ]
    assert len({event.block_hashes[0] for event in heads}) == 3
    assert [event.extra_keys[0] if event.extra_keys else None for event in heads] == [
        None, ("a",), ("b",),
    ]  # fmt: skip


def test_blocks_are_told_in_every_tier_and_group(tmp_path: Path) -> None:
    """A hybrid model, a host tier and a store behind a small device cache."""
    model = write_scripted_model(tmp_path / "model", window=24, state_layers=1)
    flags = ("--kv-events", f"ipc://{tmp_path}/pub", "--kv-events-replay", f"ipc://{tmp_path}/rep")
    tiers = ("--kv-gib", "0.0001", "--host-kv-gib", "0.001", "--kv-store", "memory")
    context = ("--max-context-tokens", "200", "--max-running", "1")
    with ServerProcess(model, tmp_path, *flags, *tiers, *context) as server:
        subscriber = Consumer(f"ipc://{tmp_path}/pub", f"ipc://{tmp_path}/rep")
        # Whole blocks, so that the state at the end of a prompt has a name.
        prompts = [f"{index}" * 16 + ("The quick brown fox jumps. " * 4)[:96] for index in range(8)]
        for _ in range(2):
            for prompt in prompts:
                body = {"model": "model", "prompt": prompt, "max_tokens": 4, "cache_salt": "s"}
                assert server.call("/v1/completions", body).status == 200
        state = _settled(server)
        for name in ("evictions", "loaded_tokens"):
            server.wait_metric(f"tokenspeed_{name}_total", state["counters"][name])
        server.wait_metric("tokenspeed_store_records", state["counters"]["store_keys"])
        server.wait_metric("tokenspeed_tier_failures_total", 0)
        subscriber.catch_up(0)
        subscriber.close()
    groups = state["blocks"]["groups"]
    kinds = {"full": "full_attention", "window": "sliding_window", "state": "mamba"}
    for index, group in enumerate(groups):
        told = {
            event.kv_cache_spec_kind
            for event in subscriber.events
            if isinstance(event, BlockStored) and event.group_idx == index
        }
        assert told == {kinds[group["kind"]]}
    assert state["counters"]["evictions"] > 0
    full = next(index for index, group in enumerate(groups) if group["kind"] == "full")
    # Every block was written on commit; the first ones have left the device since.
    assert subscriber.stored("GPU", full) < subscriber.stored("STORAGE", full)
    (store,) = [tier for tier in state["tiers"] if tier["name"] == "store"]
    told = sum(len(subscriber.stored("STORAGE", index)) for index in range(len(groups)))
    assert 0 < told <= store["records"], "records of parts of blocks have no name"
    assert subscriber.stored("CPU", full), "and the host has the latest"
    heads = [
        event
        for event in subscriber.events
        if isinstance(event, BlockStored) and event.parent_block_hash is None
    ]
    assert {event.medium for event in heads} == {"GPU", "CPU", "STORAGE"}
    assert all(event.extra_keys and event.extra_keys[0] == ("s",) for event in heads)


def _settled(server: ServerProcess) -> dict[str, Any]:
    """Return the engine's state when nothing is on its way any more."""
    deadline_s = time.monotonic() + 60
    while True:
        time.sleep(0.15)  # a picture may be a tenth of a second old
        state: dict[str, Any] = server.call("/v1/engine/state").json()
        if not any(item["count"] for item in state["transfers"]):
            return state
        assert time.monotonic() < deadline_s


def test_after_a_crash_the_numbers_begin_again_with_all_cleared(
    server: ServerProcess, router: Consumer
) -> None:
    server.call("/v1/completions", {"model": "model", "prompt": PROMPT})
    router.catch_up(0)
    (engine,) = [pid for pid in server.children() if _is_engine(pid)]
    os.kill(engine, signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while server.call("/health").json()["engine_epoch"] != 2:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    router.last = -1
    assert router.catch_up(0) == 1
    assert router.stored() == set()


def _is_engine(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"tokenspeed.engine.process" in file.read()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--kv-events", "tcp://999.1.1.1:5"), "--kv-events is 'tcp://999.1.1.1:5', which cannot"),
        (("--kv-events", "tcp://*:99999"), "ports are 0 to 65535"),
        (("--kv-events-replay", "tcp://*:0"), "kv_events is empty"),
        (("--kv-events", "x", "--kv-events-format", "json"), "named"),
    ],
)
def test_a_wrong_setting_stops_the_start(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    model = write_scripted_model(tmp_path / "model")
    done = run_cli("serve", str(model), "--port", "0", "--plugins", "sdk", *flags)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
