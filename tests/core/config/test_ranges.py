"""Every number has a range, and it is checked wherever the value comes from."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.config import ServeConfig, check_settings, load_config
from tokenspeed.config.schema import settings_of
from tokenspeed.errors import ConfigError

NUMBERS = [
    name for name, item in settings_of(ServeConfig).items() if type(item.default) in (int, float)
]


def test_every_number_has_a_range_that_holds_its_default() -> None:
    for name in NUMBERS:
        item = settings_of(ServeConfig)[name]
        low, high = item.metadata["range"]
        assert low <= item.default <= high, name
    check_settings(ServeConfig())


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_their_range_are_refused_with_source_value_and_range(name: str) -> None:
    low, high = settings_of(ServeConfig)[name].metadata["range"]
    for value in (int(low) - 1, int(high) + 1, -(2**70), 2**70):
        with pytest.raises(ConfigError) as caught:
            load_config(ServeConfig, flags={name: value}, environ={})
        said = str(caught.value)
        assert "--" + name.replace("_", "-") in said
        assert f"{low} to {high}" in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", 10**400])
def test_numbers_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="--kv-gib"):
        load_config(ServeConfig, flags={"kv_gib": value}, environ={})


def test_the_environment_is_checked_under_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"TOKENSPEED_THREADS is -1, allowed is 0 to 1024"):
        load_config(ServeConfig, flags={}, environ={"TOKENSPEED_THREADS": "-1"})


@pytest.mark.parametrize("value", [17, 48, 129])
def test_block_tokens_is_a_power_of_two(value: int) -> None:
    with pytest.raises(ConfigError, match=f"block_tokens is {value}, a power of two"):
        check_settings(ServeConfig(block_tokens=value))


@pytest.mark.parametrize(
    "flags", [{"model": "a\0b"}, {"served_model_name": "a\udcff"}, {"plugins": ("x", "\ud800")}]
)
def test_text_that_cannot_be_passed_on_is_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="UTF-8 text without NUL"):
        load_config(ServeConfig, flags=flags, environ={})


def test_a_huge_wrong_value_is_quoted_short() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(ServeConfig, flags={"port": "9" * 100_000}, environ={})
    assert len(str(caught.value)) < 500
