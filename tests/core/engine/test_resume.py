"""An engine that dies is restarted, and no stream loses or doubles a token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.engines import RunningEngine, tokens_of
from tests.support.scripted import write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.supervisor import EngineState
from tokenspeed.errors import EngineError

POISON = 200
PROMPTS = [[index * 7 % 94, index, 3] * (4 + index * 3) for index in range(5)]
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=60)


async def undisturbed(frontend: Frontend) -> list[list[int]]:
    """Answers of all prompts."""
    return await asyncio.gather(*(tokens_of(frontend.submit(p, SEEDED)) for p in PROMPTS))


def test_streams_go_on_token_identically_after_kill_9_at_several_points(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=4, logit_gap=4.0)

    with RunningEngine(model, depth=1) as engine:
        expected = engine.run(undisturbed)

        async def disturbed(frontend: Frontend) -> list[list[int]]:
            streams = [frontend.submit(prompt, SEEDED) for prompt in PROMPTS]
            collected: list[list[int]] = [[] for _ in PROMPTS]

            async def read(index: int) -> None:
                async for delta in streams[index]:
                    collected[index] += delta.tokens

            readers = asyncio.gather(*map(read, range(len(PROMPTS))))
            for progress in (1, 25):
                while max(map(len, collected)) < progress:
                    await asyncio.sleep(0.001)
                engine.kill()
            late = frontend.submit(PROMPTS[0], SEEDED)
            await readers
            assert await tokens_of(late) == expected[0]
            return collected

        assert engine.run(disturbed) == expected
        assert engine.supervisor.num_restarts == 2
        assert engine.supervisor.state is EngineState.READY


def test_a_poison_request_ends_with_an_error_and_the_others_finish_right(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=2, crash_on_token=POISON)

    with RunningEngine(model) as engine:
        expected = engine.run(undisturbed)

        async def poisoned(frontend: Frontend) -> list[list[int]]:
            streams = [frontend.submit(prompt, SEEDED) for prompt in PROMPTS]
            await anext(streams[0])
            poison = frontend.submit([5, POISON, 6], SEEDED)
            with pytest.raises(EngineError, match="two crashes"):
                await tokens_of(poison)
            rest = await asyncio.gather(*map(tokens_of, streams))
            return rest

        found = engine.run(poisoned)
        assert found[1:] == expected[1:]
        assert found[0] == expected[0][-len(found[0]) :]
        assert engine.supervisor.num_restarts == 2


def test_an_engine_that_keeps_dying_is_given_up_and_says_so(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=2)
    with RunningEngine(model) as engine:

        async def unlucky(frontend: Frontend) -> None:
            stream = frontend.submit([1], SamplingParams(max_tokens=4000))
            for epoch in range(1, 5):
                while frontend.epoch < epoch:
                    await asyncio.sleep(0.01)
                for _ in range(3):  # past the step of the last crash
                    await anext(stream)
                engine.kill()
            with pytest.raises(EngineError, match="restarted 3 times"):
                await tokens_of(stream)
            with pytest.raises(EngineError, match="restarted 3 times"):
                frontend.submit([1], SEEDED)
            assert frontend.unhealthy_reason is not None

        engine.run(unlucky)
        assert engine.supervisor.state is EngineState.UNHEALTHY


def test_a_hung_step_is_noticed_and_the_engine_restarted(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", hang_on_token=POISON)
    with RunningEngine(model, hang_timeout_s=2.0) as engine:

        async def hanging(frontend: Frontend) -> list[int]:
            hung = frontend.submit([POISON], SEEDED)
            while engine.supervisor.state is not EngineState.RESTARTING:
                await asyncio.sleep(0.02)
            await hung.aclose()
            return await tokens_of(frontend.submit([1], SEEDED))

        assert len(engine.run(hanging)) == 60
        assert engine.supervisor.num_restarts == 1
