"""A server of two attention partitions: to clients it is one engine with one cache."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.kv_consumer import BlockStored, Consumer
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = 16
PROMPTS = [f"{number}: this is what request {number} asks. " * 3 for number in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("partitions")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    model = write_scripted_model(folder / "model", step_ms=2)
    flags = ("--dp", "2", "--rank-timeout-s", "20", "--kv-events", f"ipc://{folder}/pub")
    with ServerProcess(
        model, folder, *flags, "--kv-events-replay", f"ipc://{folder}/rep", "--kv-gib", "0.001"
    ) as server:
        yield server


def answers_of(server: ServerProcess) -> list[str]:
    def ask(prompt: str) -> str:
        body = {"model": "model", "prompt": prompt, "max_tokens": 20, "temperature": 0}
        answer = server.call("/v1/completions", body)
        assert answer.status == 200, answer.body
        text: str = answer.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(ask, PROMPTS))


def test_two_partitions_answer_as_one_rank_and_share_the_load(
    server: ServerProcess, folder: Path
) -> None:
    found = answers_of(server)
    assert answers_of(server) == found
    time.sleep(0.3)
    state = server.call("/v1/engine/state").json()
    first, second = state["partitions"]
    for name in ("blocks_total", "blocks_cached", "prompt_tokens", "cached_tokens"):
        assert state["counters"][name] == first[name] + second[name]
        assert min(first[name], second[name]) > 0, name
    assert state["blocks"]["total"] == 2 * first["blocks_total"]
    server.wait_metric("tokenspeed_blocks_total", state["blocks"]["total"])
    assert "mesh       tp=1 dp=2 ep=1" in server.log.read_text()
    (folder / "one").mkdir()
    with ServerProcess(folder / "model", folder / "one") as one:
        assert answers_of(one) == found


def test_a_router_hears_of_a_block_once_whichever_partitions_have_it(
    server: ServerProcess, folder: Path
) -> None:
    consumer = Consumer(f"ipc://{folder}/pub", f"ipc://{folder}/rep")
    answers_of(server)
    consumer.catch_up(0)
    stored = [
        block
        for event in consumer.events
        if isinstance(event, BlockStored)
        for block in event.block_hashes
    ]
    consumer.close()
    assert len(stored) == len(set(stored)) > 0


def test_a_session_is_released_wherever_it_was(server: ServerProcess) -> None:
    headers = {"x-claude-code-session-id": "released"}
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": "Look well. " * 20}],
        "max_tokens": 12,
    }
    answer = server.call("/v1/chat/completions", body, headers=headers)
    assert answer.status == 200, answer.body
    answer = server.call("/v1/sessions/released", method="DELETE")
    assert answer.status == 200, answer.body
    (freed,) = answer.json()["released"]
    assert freed["tokens"] >= 200 // BLOCK * BLOCK
