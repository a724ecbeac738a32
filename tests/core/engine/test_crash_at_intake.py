"""A request that ends the engine while it is taken in ends itself; the others finish right."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.support.engines import RunningEngine, tokens_of
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.frontend import Frontend

PLUGIN = """
import os

class Plugin:
    @hookimpl
    def register_policies(self, context):
        context.offer(Offer("policy", "deadly", lambda: Policy()))

    @hookimpl
    def register_grammars(self, context):
        context.offer(Offer("grammar", "deadly", lambda vocabulary: Engine()))

class Policy:
    def keys(self, arrival):
        if arrival.prompt_tokens == 13:
            os._exit(9)
        return Keys()

    def turn_ended(self, session, now_us):
        pass

class Engine:
    def compile(self, spec):
        os._exit(9)

plugin = Plugin()
"""
PROMPTS = [[index, 3, 5] for index in range(4)]
SEEDED = SamplingParams(temperature=0.0, seed=5, max_tokens=200)
DEADLY = {
    "policy": ([1] * 13, SEEDED),
    "grammar": (
        [1],
        SamplingParams(seed=5, max_tokens=200, grammar=GrammarSpec("regex", "deadly")),
    ),
}


@pytest.mark.parametrize("where", sorted(DEADLY))
def test_the_request_is_found_and_the_others_go_on(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", PLUGIN, slots='policy = "1.0"\ngrammar = "1.0"')
    model = write_scripted_model(tmp_path / "model", step_ms=5)
    settings = {"plugins": ("sdk", "acme"), "allow_experimental": ("acme",)}
    pins = ("grammar=acme/deadly",)
    with RunningEngine(model, policy="acme/deadly", pins=pins, **settings) as engine:

        async def scenario(frontend: Frontend) -> list[list[int]]:
            others = [frontend.submit(prompt, SEEDED) for prompt in PROMPTS]
            for stream in others:
                await anext(stream)
            prompt, params = DEADLY[where]
            deadly = frontend.submit(prompt, params)
            with pytest.raises(EngineError, match="in two crashes of the engine"):
                await tokens_of(deadly)
            return await asyncio.gather(*map(tokens_of, others))

        found = engine.run(scenario)
        assert engine.supervisor.num_restarts == 2

        async def calm(frontend: Frontend) -> list[list[int]]:
            streams = [frontend.submit(prompt, SEEDED) for prompt in PROMPTS]
            return await asyncio.gather(*map(tokens_of, streams))

        whole = engine.run(calm)
    assert [tokens[-len(rest) :] for tokens, rest in zip(whole, found, strict=True)] == found
