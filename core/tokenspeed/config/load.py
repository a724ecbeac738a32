"""Resolves settings: flag > `TOKENSPEED_*` > YAML > default; every value is type-checked once."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokenspeed.config.ranges import check_settings, shown
from tokenspeed.config.schema import ServeConfig, settings_of
from tokenspeed.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = TypeVar("Schema")

PREFIX = "TOKENSPEED_"
OTHER_VARIABLES = ("TOKENSPEED_CACHE_DIR", "TOKENSPEED_TEST_")
"""Variables, and beginnings of variables, that are no settings."""


def load_config(
    schema: type[Schema],
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    yaml_file: str | None = None,
) -> Schema:
    """Build a config from its four sources.

    Args:
        schema: a dataclass of `config/schema.py`.
        flags: values given on the command line or in code; absent keys were not given.
        environ: usually `os.environ`; only `TOKENSPEED_<FIELD>` names are read.
        yaml_file: path of a YAML mapping with the schema's field names.
    Raises:
        ConfigError: unknown key or variable (with the nearest name), wrong type, or a value out of
            range.
    """
    names = settings_of(schema)
    merged: dict[str, tuple[Any, str]] = {}
    for key, value in _read_yaml(yaml_file).items():
        merged[_known(key, names, f"key in {yaml_file}")] = (value, f"{yaml_file}: {key}")
    for variable, name in _variables(environ):
        if name in names:
            merged[name] = (environ[variable], variable)
    for key, value in flags.items():
        merged[_known(key, names, "setting")] = (value, "--" + key.replace("_", "-"))
    hints = typing.get_type_hints(schema)
    values = {
        name: _convert(value, hints[name], source, names[name].metadata["choices"])
        for name, (value, source) in merged.items()
    }
    config = schema(**values)
    check_settings(config, sources={name: source for name, (_, source) in merged.items()})
    return config


def explicit_settings(schema: type, config: Any) -> dict[str, Any]:
    """Return the settings that differ from their default."""
    default = schema()
    return {
        name: getattr(config, name)
        for name in settings_of(schema)
        if getattr(config, name) != getattr(default, name)
    }


def _variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (variable, setting) of every `TOKENSPEED_*`; another command's settings are known."""
    found = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(OTHER_VARIABLES):
            continue
        name = variable.removeprefix(PREFIX).lower()
        _known(name, settings_of(ServeConfig), f"environment variable {variable}, setting")
        found.append((variable, name))
    return found


def _read_yaml(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(
            f"config file {path} cannot be read: {reason_of(error)}; give a YAML mapping"
        ) from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"config file {path} holds a {type(loaded).__name__}, a mapping is needed; "
            "write `name: value` lines"
        )
    return loaded


def _known(key: object, names: Mapping[str, Any], what: str) -> str:
    name = str(key).replace("-", "_")
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; see docs/settings.md"
    raise ConfigError(f"unknown {what}: {key!r}{hint}")


_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def _convert(value: Any, hint: Any, source: str, choices: tuple[str, ...]) -> Any:
    try:
        converted = _to_type(value, hint)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = getattr(hint, "__name__", str(hint))
        raise ConfigError(
            f"{source} is {shown(value)}, {wanted} is needed; change the value"
        ) from error
    if choices and converted not in choices:
        near = difflib.get_close_matches(str(converted), choices, n=1)
        hint_text = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{source} is {shown(value)}, allowed: {', '.join(choices)}{hint_text}")
    return converted


def _to_type(value: Any, hint: Any) -> Any:
    if hint is bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in _TRUE | _FALSE:
            raise ValueError(value)
        return text in _TRUE
    if hint is int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError(value)
        return int(value)
    if hint is float:
        if isinstance(value, bool):
            raise ValueError(value)
        return float(value)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return tuple(str(part) for part in value)
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def replace_settings(config: Schema, **changes: Any) -> Schema:
    """Return a copy with some settings changed (used by `build` to resolve "auto")."""
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
