"""Check 19: what a KV store returns truncated or corrupt is computed again; answers are unchanged.

The store says that all is well; it finds out nothing itself. Turns of many clients alternate, more
than device and host can hold, so that each second turn needs blocks that the store has.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

BODY = """
import os

class CorruptingStore:
    def __init__(self, *, namespace, folder, capacity_bytes):
        self.facts = StoreFacts(durable=False, capacity_bytes=capacity_bytes)
        self.records, self.done, self.tickets = {}, [], 0

    def put(self, key, tag, data):
        self.records[key] = bytes(data)
        return self.report()

    def get(self, key, tag, into):
        data = self.records[key]
        if os.environ["DAMAGE"] == "truncated":
            into[:] = bytes(len(into))
            into[:len(data) // 2] = data[:len(data) // 2]
        elif os.environ["DAMAGE"] == "corrupt":
            into[:] = data
            into[len(data) // 3] ^= 0x40
        else:
            into[:] = data
        return self.report()

    def report(self):
        self.tickets += 1
        self.done.append(StoreDone(self.tickets, ok=True))
        return self.tickets

    def poll(self):
        done, self.done = self.done, []
        return done

    def keys(self):
        return list(self.records)

    def take_lost(self):
        return []

    def close(self):
        pass

class Plugin:
    @hookimpl
    def register_kv_stores(self, context):
        context.offer(Offer("kv_store", "leaky", CorruptingStore))

plugin = Plugin()
"""
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
SHAPES = {"full": {}, "hybrid": {"window": 24, "state_layers": 2}}


def turns_of(clients: int, turns: int) -> list[list[int]]:
    """Return prompts of growing conversations, client by client in each round."""
    draw = random.Random(19)
    histories = [[draw.randrange(94) for _ in range(130)] for _ in range(clients)]
    prompts = []
    for _ in range(turns):
        for history in histories:
            history += [draw.randrange(94) for _ in range(20)]
            prompts.append(list(history))
    return prompts


def answers_of(model: Path, **settings: object) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    small = {"block_tokens": 16, "max_step_tokens": 64, "max_running": 4, "threads": 1}
    with LLM(str(model), kv_gib=0.0001, max_context_tokens=300, **{**small, **settings}) as llm:
        prompts = turns_of(14, 2)
        outputs = [llm.generate([prompt], GREEDY)[0] for prompt in prompts]
        llm.engine.scheduler.check_invariants()
        stats = {**llm.engine.scheduler.stats(), "tier_failures": llm.stats().tier_failures}
    return [output.token_ids for output in outputs], stats


@pytest.mark.parametrize("shape", SHAPES)
def test_19_store_that_corrupts(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PluginSpace(tmp_path / "site", monkeypatch).install("acme", BODY, slots='kv_store = "1.0"')
    model = write_scripted_model(tmp_path / "model", mode="hash", **SHAPES[shape])
    expected, _ = answers_of(model, plugins=("sdk",))
    store = {"plugins": ("sdk", "acme"), "kv_store": "acme/leaky", "host_kv_gib": 0.0001}
    monkeypatch.setenv("DAMAGE", "none")
    answers, stats = answers_of(model, **store)
    assert answers == expected
    assert stats["store_gets"] > 0
    assert stats["tier_failures"] == 0
    for damage in ("truncated", "corrupt"):
        monkeypatch.setenv("DAMAGE", damage)
        answers, stats = answers_of(model, **store)
        assert answers == expected, damage
        assert stats["store_gets_failed"] > 0, damage
        assert stats["tier_failures"] >= stats["store_gets_failed"], damage
