"""The policy slot: a plugin's keys change which cached prompt goes; sessions reach the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.policy import Arrival, Keys, Policy
from tokenspeed.engine.choices import Choices
from tokenspeed.engine.policy_guard import GuardedPolicy
from tokenspeed.engine.requests import number_of
from tokenspeed.errors import CapabilityError, EngineError, PluginError
from tokenspeed.plugins import load_plugins
from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from pathlib import Path

BODY = """
class LeavesLast:
    '''Session n is expected to stay away for n minutes.'''

    def keys(self, arrival):
        return Keys(gap_us=arrival.session * 60_000_000)

    def turn_ended(self, session, now_us):
        pass


class Plugin:
    @hookimpl
    def register_policies(self, context):
        context.offer(Offer("policy", "leaves-last", LeavesLast))

plugin = Plugin()
"""
BLOCK = 16


def chosen(policy: str, plugins: tuple[str, ...] = ()) -> Policy:
    config = EngineConfig(policy=policy, plugins=plugins)
    return Choices(config, load_plugins(plugins, role="engine", experimental=plugins)).policy()


def evicted_session(policy: Policy) -> int:
    """Fill a pool with one prompt of each of three sessions, then ask for room for one more.

    Returns:
        The session whose prompt is no longer cached.
    """
    groups = [GroupSpec(name="full")]
    scheduler = Scheduler(
        SchedulerConfig(
            block_tokens=BLOCK,
            groups=groups,
            num_physical_blocks=10,
            max_running=4,
            max_waiting=4,
            max_step_tokens=256,
            max_context_tokens=128,
        )
    )
    for session in (2, 3, 1):
        run(scheduler, policy, key=session, session=session, start=session * 1000)
    run(scheduler, policy, key=9, session=0, start=9000)
    cached = [
        run(scheduler, policy, key=20 + session, session=0, start=session * 1000, tokens=BLOCK + 1)
        for session in (1, 2, 3)
    ]
    return 1 + cached.index(0)


def run(
    scheduler: Scheduler, policy: Policy, *, key: int, session: int, start: int, tokens: int = 48
) -> int:
    """Run one request of one output token; returns its cached tokens."""
    prompt = np.arange(start, start + tokens, dtype=np.int32)
    now_us = key
    keys = policy.keys(Arrival(session, 0, 0, tokens, now_us))
    scheduler.submit(key, prompt, max_new_tokens=1, gap_us=keys.gap_us, now_us=now_us)
    plan = scheduler.plan(now_us=now_us)
    assert plan is not None
    result = scheduler.commit(plan.step_id, np.array([7], np.int32), now_us=now_us)
    return int(result.cached_tokens[0])


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path, monkeypatch)


def test_lru_evicts_who_was_here_first() -> None:
    assert evicted_session(chosen("core/lru")) == 2


def test_an_out_of_tree_policy_changes_who_goes(space: PluginSpace) -> None:
    space.install("acme", BODY, slots='policy = "1.0"')
    assert evicted_session(chosen("acme/leaves-last", ("acme",))) == 3


def test_a_loaded_policy_that_is_not_named_changes_nothing(space: PluginSpace) -> None:
    space.install("acme", BODY, slots='policy = "1.0"')
    assert evicted_session(chosen("core/lru", ("acme",))) == 2


def test_a_policy_that_nobody_offers_is_refused() -> None:
    with pytest.raises((CapabilityError, PluginError), match="nobody/knows"):
        chosen("nobody/knows")


def test_a_session_has_one_number_for_each_owner() -> None:
    assert number_of("") == 0
    assert number_of("a") == number_of("a") > 0
    assert len({number_of("a"), number_of("b"), number_of("a", owner="s")}) == 3


class Broken:
    """Answers with what it was given, or raises it."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.num_ended = 0

    def keys(self, arrival: Arrival) -> Keys:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def turn_ended(self, session: int, now_us: int) -> None:
        self.num_ended += 1
        raise RuntimeError("lost count")


@pytest.mark.parametrize(
    "answer",
    [None, 5, (1, 2, 3), Keys("soon"), Keys(1.5), Keys(-1), Keys(queue_key=2**63), Keys(True)],  # type: ignore[arg-type]
)
def test_keys_that_the_scheduler_cannot_hold_are_refused_by_the_policys_name(
    answer: object,
) -> None:
    policy = GuardedPolicy(Broken(answer), "acme/odd")
    with pytest.raises(EngineError, match="policy acme/odd returned"):
        policy.keys(Arrival(1, 0, 0, 10, 5))


@pytest.mark.parametrize("answer", [Keys(), None, ZeroDivisionError("keys"), SystemExit("keys")])
def test_a_policy_that_raises_ends_requests_and_not_the_engine(
    answer: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken(answer)
    monkeypatch.setattr(Choices, "policy", lambda self: GuardedPolicy(broken, "acme/odd"))
    with LLM(str(write_scripted_model(tmp_path / "model")), **TEST_SETTINGS) as llm:
        for _ in range(2):
            if isinstance(answer, Keys):
                llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
            else:
                with pytest.raises(EngineError, match=r"acme/odd|ZeroDivisionError|SystemExit"):
                    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
        assert llm.stats().blocks_used == 0
    assert broken.num_ended == (2 if isinstance(answer, Keys) else 0)
