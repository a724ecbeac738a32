"""The start-up block: at most 12 lines with the one that says where it listens."""

from __future__ import annotations

import msgspec
import pytest

from tokenspeed.engine.reports import (
    StartFailure,
    StartReport,
    check_same_plan,
    error_of,
    failure_of,
    size_text,
)
from tokenspeed.errors import (
    CapabilityError,
    CheckpointError,
    ConfigError,
    PluginError,
    TokenSpeedError,
)

TIERS = (("host", "64.0 GiB, on_eviction"), ("store", "reference/disk, at most 1,048,576 GiB"))


def make_report(
    num_kernels: int, *, tiers: tuple[tuple[str, str], ...] = (), speculator: str = ""
) -> StartReport:
    """A report with so many kernels."""
    return StartReport(
        version="0.1.0",
        python="3.12.1",
        pid=4121,
        device="cpu (A Processor With A Very Long Name)",
        plugins=("core 0.1.0", "reference 0.1.0"),
        architecture="Qwen3ForCausalLM",
        dtype="float32",
        weights_bytes=1 << 30,
        weight_format="safetensors",
        block_tokens=128,
        kv_blocks=1024,
        kv_bytes=14 << 30,
        tiers=tiers,
        policy="core/return_time",
        speculator=speculator,
        max_drafts=8 if speculator else 0,
        max_context_tokens=32768,
        max_running=64,
        max_step_tokens=512,
        depth=0,
        kernels=tuple((f"op.{index}", f"op_{index}_plain_any") for index in range(num_kernels)),
        plan_digest="0" * 16,
        plan={},
    )


def test_the_block_fits_twelve_lines_whatever_was_bound() -> None:
    for num_kernels in (0, 1, 5, 6, 7, 8, 9, 40):
        for tiers in ((), TIERS[:1], TIERS):
            lines = make_report(num_kernels, tiers=tiers, speculator="reference/ngram").lines()
            assert len(lines) <= 11
            assert all(len(line) <= 110 for line in lines)


def test_kernels_beyond_the_block_are_counted() -> None:
    text = "\n".join(make_report(12).lines())
    assert "op.6 -> op_6_plain_any" in text
    assert "and 5 more" in text
    assert "op.7" not in text
    with_tiers = "\n".join(make_report(12, tiers=TIERS).lines())
    assert "op.4 -> op_4_plain_any" in with_tiers
    assert "and 7 more" in with_tiers


def test_the_block_names_policy_tiers_and_speculator() -> None:
    plain = make_report(1).lines()
    assert "policy     core/return_time            drafts   none" in plain
    assert any(line.endswith("tiers    device alone") for line in plain)
    full = make_report(1, tiers=TIERS, speculator="reference/ngram").lines()
    assert "policy     core/return_time            drafts   reference/ngram, at most 8" in full
    assert (
        "tiers      host     64.0 GiB, on_eviction  "
        "store    reference/disk, at most 1,048,576 GiB" in full
    )
    assert not any("device alone" in line for line in full)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(14 << 30, "14.0 GiB"), (1 << 29, "0.5 GiB"), (48 << 20, "48.0 MiB"), (0, "0.0 MiB")],
)
def test_a_small_size_does_not_read_as_nothing(num_bytes: int, text: str) -> None:
    assert size_text(num_bytes) == text


def test_a_long_device_name_does_not_touch_its_neighbour() -> None:
    assert "Long Name)  plugins" in make_report(1).lines()[1]


@pytest.mark.parametrize(
    "error",
    [
        PluginError("no card", id="device-not-found"),
        PluginError("x", id="probe-raised", exit_code=7),
        CapabilityError("none", id="pin-unsupported"),
        ConfigError("wrong"),
        CheckpointError("damaged"),
    ],
)
def test_an_error_crosses_processes_as_it_is(error: TokenSpeedError) -> None:
    error.causes = ("OSError: gone (a/b.py:1)",) if isinstance(error, PluginError) else ()
    sent = msgspec.json.encode(failure_of(error))
    arrived = error_of(msgspec.json.decode(sent, type=StartFailure))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.causes == error.causes
    assert getattr(arrived, "exit_code", None) == getattr(error, "exit_code", None)


def test_an_engine_that_binds_something_else_than_the_first_is_named() -> None:
    def report(version: str) -> StartReport:
        entry = {"plugin": "acme", "offer": "flash", "version": version}
        plan = {"slots": {"attention.full": entry}}
        return msgspec.structs.replace(make_report(1), plan=plan, plan_digest=version, pid=7)

    check_same_plan(None, report("1.0"))
    check_same_plan(report("1.0"), report("1.0"))
    with pytest.raises(PluginError) as caught:
        check_same_plan(report("1.0"), report("2.0"))
    assert caught.value.id == "plan-differs"
    assert "bound attention.full to acme/flash 2.0 instead of acme/flash 1.0" in str(caught.value)
    assert "pid 7" in str(caught.value)
