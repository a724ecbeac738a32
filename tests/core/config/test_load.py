"""Settings resolve as flag > environment > YAML > default, and bad ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.config import ServeConfig, load_config
from tokenspeed.config.load import explicit_settings
from tokenspeed.config.schema import EngineConfig
from tokenspeed.errors import ConfigError


def load(flags: dict | None = None, environ: dict | None = None, yaml: Path | None = None):
    return load_config(
        ServeConfig,
        flags=flags or {},
        environ=environ or {},
        yaml_file=str(yaml) if yaml else None,
    )


def test_flag_beats_environment_beats_yaml_beats_default(tmp_path: Path) -> None:
    yaml = tmp_path / "serve.yaml"
    yaml.write_text("port: 1\nmax_running: 2\nhost: yaml-host\n")
    config = load({"port": 3}, {"TOKENSPEED_PORT": "4", "TOKENSPEED_MAX_RUNNING": "5"}, yaml)
    assert (config.port, config.max_running, config.host) == (3, 5, "yaml-host")
    assert config.api_workers == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"prot": 1}, ["prot", "port"]),
        ({"port": "http"}, ["--port", "'http'", "int"]),
        ({"port": True}, ["--port", "True"]),
        ({"fallback": "wran"}, ["--fallback", "wran", "warn", "did you mean"]),
        ({"prefix_cache": "maybe"}, ["--prefix-cache", "maybe", "bool"]),
        ({"max_running": 1.5}, ["--max-running", "1.5"]),
    ],
)
def test_a_bad_value_names_itself_and_what_is_allowed(flags: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_bad_environment_value_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="TOKENSPEED_PORT"):
        load(environ={"TOKENSPEED_PORT": "x"})


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "prot: 1"])
def test_a_bad_yaml_file_is_named(tmp_path: Path, text: str) -> None:
    yaml = tmp_path / "bad.yaml"
    yaml.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml"):
        load(yaml=yaml)


def test_lists_split_at_commas_and_booleans_read_words() -> None:
    config = load({"plugins": "nvidia, acme", "prefix_cache": "off"})
    assert config.plugins == ("nvidia", "acme")
    assert config.prefix_cache is False


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"TOKENSPEED_PROT.*did you mean 'port'"):
        load(environ={"TOKENSPEED_PROT": "9"})


def test_variables_that_are_no_settings_are_left_alone() -> None:
    load(environ={"TOKENSPEED_CACHE_DIR": "x", "TOKENSPEED_TEST_SEED": "1", "PATH": "y"})


def test_a_serving_variable_does_not_disturb_another_command() -> None:
    config = load_config(EngineConfig, flags={}, environ={"TOKENSPEED_PORT": "9"})
    assert config == EngineConfig()


def test_explicit_settings_are_those_that_differ() -> None:
    assert explicit_settings(ServeConfig, load({"port": 9})) == {"port": 9}
