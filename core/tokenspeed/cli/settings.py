"""Flags made from a settings schema: one `--kebab-case` flag a field, types checked by `config`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, TypeVar

from tokenspeed.config.load import load_config
from tokenspeed.config.schema import settings_of

if TYPE_CHECKING:
    from collections.abc import Collection

Schema = TypeVar("Schema")


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return "--" + name.replace("_", "-")


def add_settings(
    parser: argparse.ArgumentParser, schema: type, *, skip: Collection[str] = ()
) -> None:
    """Add `--config` and a flag for each field of `schema`; an absent flag leaves no attribute."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings; flags win")
    for name, item in settings_of(schema).items():
        if name in skip:
            continue
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(item)}
        if isinstance(item.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = item.metadata["metavar"] or _metavar(item)
        parser.add_argument(flag_of(name), **options)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the positional MODEL, the same setting as `--model`."""
    parser.add_argument(
        "model_argument",
        nargs="?",
        metavar="MODEL",
        help="Hugging Face folder or .gguf file; absent: SmolLM2-135M-Instruct",
    )


def read_settings(args: argparse.Namespace, schema: type[Schema]) -> Schema:
    """Resolve flag > `TOKENSPEED_*` > YAML > default.

    Raises:
        ConfigError: a value is wrong; names its source.
    """
    names = settings_of(schema)
    flags = {name: value for name, value in vars(args).items() if name in names}
    if getattr(args, "model_argument", None) is not None:
        flags["model"] = args.model_argument
    return load_config(schema, flags=flags, environ=os.environ, yaml_file=args.config)


def _help(item: Any) -> str:
    text = item.metadata["help"].replace("%", "%%")
    default = ",".join(item.default) if isinstance(item.default, tuple) else item.default
    if default == "":
        return str(text)
    if isinstance(default, bool):
        default = "on" if default else "off"
    return f"{text} (default: {default})"


def _metavar(item: Any) -> str:
    choices: tuple[str, ...] = item.metadata["choices"]
    if choices:
        return "{" + ",".join(choices) + "}"
    kinds = {int: "N", float: "X", tuple: "LIST"}
    return kinds.get(type(item.default), "TEXT")
