"""The extension as Python sees it: arrays, ownership, errors, and the stub that describes it."""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tokenspeed import _core
from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler import (
    FINISH_REASONS,
    GroupSpec,
    Scheduler,
    SchedulerConfig,
    StepPlan,
    transition_table,
)

DOCS = Path(__file__).parents[3] / "docs"


def make_scheduler(**changes: object) -> Scheduler:
    settings: dict[str, object] = {
        "block_tokens": 16,
        "groups": [GroupSpec(name="a", packing=2), GroupSpec(name="b")],
        "num_physical_blocks": 64,
        "max_running": 8,
        "max_waiting": 8,
        "max_step_tokens": 64,
        "max_context_tokens": 256,
    }
    return Scheduler(SchedulerConfig(**(settings | changes)))  # type: ignore[arg-type]


def prompt(size: int, first: int = 1) -> np.ndarray:
    return np.arange(first, first + size, dtype=np.int32)


def sampled(plan: StepPlan, token: int = 7) -> np.ndarray:
    return np.where(plan.output_index >= 0, token, -1).astype(np.int32)


def test_arrays_have_the_declared_types_and_shapes() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1 << 40, prompt(20), max_new_tokens=2, now_us=0)
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    assert plan.request_ids.dtype == np.int64
    assert plan.request_ids.tolist() == [1 << 40]
    for name in ("slots", "query_start", "context_tokens", "output_index", "token_ids"):
        assert getattr(plan, name).dtype == np.int32, name
        assert getattr(plan, name).ndim == 1, name
    assert plan.admitted.shape == (1, 2)
    assert plan.block_updates.shape == (4, 4)
    assert plan.copies.shape == (0, 4)
    assert (plan.num_rows, plan.num_decode_rows, plan.num_tokens) == (1, 0, 20)
    result = scheduler.commit(plan.step_id, sampled(plan), now_us=0)
    assert result.finish_reasons.dtype == np.uint8
    assert result.rows.tolist() == [0]
    assert result.cached_tokens.tolist() == [0]


def test_arrays_are_read_only_views() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(20), now_us=0)
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    assert not plan.token_ids.flags.writeable
    assert plan.token_ids.ctypes.data == plan.token_ids.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        plan.token_ids[0] = 3


def test_an_array_keeps_its_plan_alive_and_unchanged() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(20), max_new_tokens=30, now_us=0)
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    token_ids, step_id, tokens = plan.token_ids, plan.step_id, sampled(plan)
    del plan
    scheduler.commit(step_id, tokens, now_us=0)
    for _ in range(10):
        later = scheduler.plan(now_us=0)
        assert later is not None
        scheduler.commit(later.step_id, sampled(later), now_us=0)
    del scheduler, later
    gc.collect()
    assert token_ids.tolist() == list(range(1, 21))


def test_a_dropped_plan_gives_its_buffer_back() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(20), max_new_tokens=30, now_us=0)
    addresses = set()
    for _ in range(10):
        plan = scheduler.plan(now_us=0)
        assert plan is not None
        addresses.add(plan.token_ids.ctypes.data)
        scheduler.commit(plan.step_id, sampled(plan), now_us=0)
    assert len(addresses) <= 2


def test_submitted_buffers_may_be_reused_by_the_caller() -> None:
    scheduler = make_scheduler()
    tokens = prompt(20)
    scheduler.submit(1, tokens, now_us=0)
    tokens[:] = 0
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    assert plan.token_ids.tolist() == list(range(1, 21))


def test_request_errors_carry_the_openai_code() -> None:
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match="300 tokens") as caught:
        scheduler.submit(1, prompt(300), now_us=0)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(RequestError, match="0 tokens") as caught:
        scheduler.submit(1, prompt(0), now_us=0)
    assert caught.value.code is None
    scheduler.submit(1, prompt(3), now_us=0)
    with pytest.raises(RequestError, match="a live request has this id"):
        scheduler.submit(1, prompt(3), now_us=0)


def test_capacity_errors_tell_never_from_later() -> None:
    scheduler = make_scheduler(num_physical_blocks=4, max_waiting=1)
    with pytest.raises(CapacityError, match="the pool holds 2 blocks") as caught:
        scheduler.submit(1, prompt(30), max_new_tokens=30, now_us=0)
    assert caught.value.retry_after_s is None
    scheduler.submit(1, prompt(3), now_us=0)
    with pytest.raises(CapacityError, match="1 request is waiting") as caught:
        scheduler.submit(2, prompt(3), now_us=0)
    assert caught.value.retry_after_s == 1


def test_caller_mistakes_are_value_errors() -> None:
    scheduler = make_scheduler()
    with pytest.raises(ValueError, match="not the oldest uncommitted step"):
        scheduler.commit(1, prompt(1), now_us=0)
    for field, value in {
        "block_tokens": 20,
        "num_physical_blocks": 1,
        "max_running": 0,
        "max_step_tokens": 0,
        "depth": 2,
        "groups": [],
    }.items():
        with pytest.raises(ValueError, match=field):
            make_scheduler(**{field: value})
    with pytest.raises(ValueError, match="declare a model's first window group as full"):
        make_scheduler(groups=[GroupSpec(name="w", kind="window", window=16)])


def test_wrong_argument_types_are_type_errors() -> None:
    scheduler = make_scheduler()
    with pytest.raises(TypeError):
        scheduler.submit(1, np.zeros((2, 2), np.int32), now_us=0)
    with pytest.raises(TypeError):
        scheduler.submit("1", prompt(3), now_us=0)  # type: ignore[arg-type]


def test_failed_rows_end_with_error() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(3), now_us=0)
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    result = scheduler.commit(
        plan.step_id, np.array([-1], np.int32), failed=np.array([True]), now_us=0
    )
    assert [FINISH_REASONS[reason] for reason in result.finish_reasons] == ["error"]


def test_stop_and_abort_are_reported_once() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(3), now_us=0)
    scheduler.submit(2, prompt(3), now_us=0)
    assert scheduler.stop(1, now_us=0)
    assert scheduler.abort(2, now_us=0)
    assert not scheduler.abort(2, now_us=0)
    ended = scheduler.take_ended()
    assert [FINISH_REASONS[reason] for reason in ended.finish_reasons] == ["stop", "abort"]
    assert scheduler.take_ended().request_ids.size == 0
    assert not scheduler.has_work()


def test_blocks_shows_requests_and_their_blocks() -> None:
    scheduler = make_scheduler()
    scheduler.submit(5, prompt(20), priority=3, now_us=0)
    scheduler.plan(now_us=0)
    state = scheduler.blocks()
    (request,) = state["requests"]
    assert request["id"] == 5
    assert request["state"] == "Decoding"
    assert request["priority"] == 3
    assert request["slot"] == 0
    assert [len(blocks) for blocks in request["blocks"]] == [2, 2]
    held = [block for block in state["physical_blocks"] if block["refs"] > 0]
    assert sorted((block["group"], block["refs"]) for block in held) == [(0, 2), (1, 1), (1, 1)]
    assert scheduler.stats()["blocks_used"] == 3


def test_no_reference_to_python_objects_is_kept() -> None:
    scheduler = make_scheduler()
    tokens = prompt(20)
    before = sys.getrefcount(tokens)
    scheduler.submit(1, tokens, stop_token_ids=tokens, output_ids=tokens, now_us=0)
    assert sys.getrefcount(tokens) == before


def test_the_table_has_a_cell_for_every_state_and_event() -> None:
    cells = transition_table()
    states = {state for state, _, _ in cells}
    events = {event for _, event, _ in cells}
    assert len(cells) == len(states) * len(events) == 8 * 10
    for state, event, cell in cells:
        assert cell.split()[0].startswith("To<") or cell in ("Ignore", "Refuse"), (state, event)


def test_the_stub_is_what_the_extension_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layout aside, which `make lint` compares."""
    spec = importlib.util.spec_from_file_location("generate_stub", DOCS / "generate_stub.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, generator)  # its dataclasses look there
    spec.loader.exec_module(generator)
    core = generator.EXTENSIONS[0]
    present, built = core.stub.read_text(encoding="utf-8"), generator.stub(core)
    assert ast.unparse(ast.parse(present)) == ast.unparse(ast.parse(built)), "run: make stub"


def test_everything_that_python_meets_is_documented() -> None:
    """Names of arguments included; constructors of values are described by their fields."""
    for owner, name, value in _members():
        documented = inspect.getdoc(value) or ""
        signature = getattr(value, "__nb_signature__", None)
        if signature and isinstance(signature[0], tuple):
            documented = signature[0][1] or ""
            assert not re.search(r"\barg\d*:", signature[0][0]), f"{owner}.{name}: unnamed argument"
        assert documented or name == "__init__", f"{owner}.{name} has no docstring"


def _members() -> Iterator[tuple[str, str, object]]:
    for name, value in vars(_core).items():
        if isinstance(value, type):
            yield "_core", name, value
            own = {key: item for key, item in vars(value).items() if key.strip("_") == key}
            yield from ((name, key, item) for key, item in own.items())
            yield name, "__init__", value.__init__  # type: ignore[misc]
        elif callable(value):
            yield "_core", name, value
