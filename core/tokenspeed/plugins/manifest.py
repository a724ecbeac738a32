"""`tokenspeed-plugin.toml`: what a plugin says of itself before anything of it is imported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.kernel import Band
from tokenspeed.errors import PluginError, reason_of, shown
from tokenspeed.plugins.names import (
    ID_RULE,
    KEY_RULE,
    KIND_WORDS,
    NAME_RULE,
    TRAIT_RULE,
    are_trait_values,
    is_id,
    is_key,
    is_name,
    is_target,
    printable,
)
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.slots import SLOTS
from tokenspeed.plugins.toml_file import read_toml
from tokenspeed.plugins.versions import is_slot_version, parse_range

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

MANIFEST_NAME = "tokenspeed-plugin.toml"
SCHEMA = 1
ANY = "*"
MAX_LINE = 200
ROLES = ("api", "engine", "worker", "cli")
CONFIG_TYPES: Mapping[str, type] = {"integer": int, "number": float, "string": str, "boolean": bool}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting of a plugin: PLUGIN.NAME=VALUE."""

    name: str
    type: str
    default: Any
    help: str = ""


@dataclass(frozen=True, slots=True)
class StatedOffer:
    """An offer that the manifest states; loading must register it alike.

    Args:
        operator: of a kernel, which slot "operator" needs; else "".
    """

    slot: str
    name: str
    band: str
    requires: Mapping[str, tuple[object, ...]]
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The parsed file.

    Args:
        id: equals the entry-point name.
        api: range of `API_VERSION` that the plugin works with.
        vendor: who makes the hardware or the plugin.
        device_kinds: device kinds it computes on; "*" is any.
        roles: processes that load it.
        slots: slot name -> version it was built against.
        probe: `module:function` that looks for devices without importing torch; "": none needed.
        requires_abi: fact name -> version range, compared before anything is imported.
        config: its settings by name.
        offers: offers that can be stated statically.
        commands: command that it adds to `tokenspeed` -> its one line of help.
    """

    id: str
    api: str
    vendor: str
    device_kinds: tuple[str, ...]
    roles: tuple[str, ...]
    slots: Mapping[str, str]
    probe: str = ""
    requires_abi: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, ConfigKey] = field(default_factory=dict)
    offers: tuple[StatedOffer, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest file.

    Raises:
        PluginError: unreadable, not TOML, or wrong; names file, key, value and what is allowed.
    """
    try:
        data = read_toml(path)
    except (OSError, ValueError) as error:
        raise PluginError(
            f"manifest {path} cannot be read: {reason_of(error)}; ship a TOML file",
            id="manifest-unreadable",
        ) from error
    try:
        return parse_manifest(data)
    except PluginError as error:
        raise PluginError(f"manifest {path}: {error.message}", id=error.id) from None


def parse_manifest(data: Mapping[str, Any]) -> Manifest:
    """Check the tables of a manifest and build it."""
    table = _Table(data, "manifest", _KEYS)
    if table.get("schema", int) != SCHEMA:
        raise _invalid(f"schema is {shown(data['schema'])}, this version reads {SCHEMA}")
    return Manifest(
        id=_named(table.get("id", str), "id", is_id, ID_RULE),
        api=_checked_range(table.get("api", str), "api"),
        vendor=_named(table.get("vendor", str), "vendor", _is_line, "one line of text"),
        device_kinds=_device_kinds(table.get("device_kinds", list)),
        roles=_roles(table.get("roles", list)),
        slots=_slots(table.get("slots", dict)),
        probe=_probe(table.get("probe", str, "")),
        requires_abi={
            name: _checked_range(text, f"requires_abi.{name}")
            for name, text in _flat(table.get("requires_abi", dict, {})).items()
        },
        config={
            name: _config_key(name, value) for name, value in table.get("config", dict, {}).items()
        },
        offers=tuple(_stated_offer(item) for item in table.get("offers", list, [])),
        commands={
            name: _help(name, value) for name, value in table.get("commands", dict, {}).items()
        },
    )


_KEYS = (
    "schema",
    "id",
    "api",
    "vendor",
    "device_kinds",
    "roles",
    "slots",
    "probe",
    "requires_abi",
    "config",
    "offers",
    "commands",
)
_REQUIRED = object()


class _Table:
    """Typed access to a TOML table whose key set is fixed."""

    def __init__(self, data: Mapping[str, Any], name: str, keys: Collection[str]) -> None:
        self._data, self._name = data, name
        for key in data:
            if key not in keys:
                raise _invalid(f"unknown key {shown(key)} in {name}: {suggestion(key, keys)}")

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """Return a value of the given type; a missing key without default is an error."""
        value = self._data.get(key, default)
        if value is _REQUIRED:
            raise _invalid(f"key {key!r} is missing in {self._name}; add it")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _invalid(f"{self._name}: {key} is {shown(value)}, {KIND_WORDS[kind]} is needed")
        return value


def _invalid(problem: str) -> PluginError:
    return PluginError(problem, id="manifest-invalid")


def _named(text: str, what: str, fits: Callable[[object], bool], rule: str) -> str:
    if not fits(text):
        raise _invalid(f"{what} is {shown(text)}; allowed: {rule}")
    return text


def _is_line(text: object) -> bool:
    return isinstance(text, str) and text.isprintable() and 0 < len(text) <= MAX_LINE


def _strings(values: list[Any], what: str) -> tuple[str, ...]:
    for value in values:
        if not isinstance(value, str):
            raise _invalid(f"{what} holds {shown(value)}, strings are needed")
    return tuple(values)


def _device_kinds(values: list[Any]) -> tuple[str, ...]:
    kinds = _strings(values, "device_kinds")
    for kind in kinds:
        if kind != ANY:
            _named(kind, "a device kind", is_name, f'"{ANY}", or {NAME_RULE}')
    return kinds


def _roles(values: list[Any]) -> tuple[str, ...]:
    roles = _known(_strings(values, "roles"), ROLES, "role")
    if not roles:
        raise _invalid(f"roles is empty: no process would load it; known: {', '.join(ROLES)}")
    return roles


def _known(values: tuple[str, ...], known: Collection[str], what: str) -> tuple[str, ...]:
    for value in values:
        if value not in known:
            raise _invalid(f"unknown {what} {shown(value)}: {suggestion(value, known)}")
    return values


def _checked_range(text: Any, what: str) -> str:
    try:
        parse_range(str(text))
    except ValueError as error:
        raise _invalid(f"{what}: {error}") from None
    return str(text)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested tables: `cpu.avx2 = "1"` is one key in TOML's own eyes too."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[_named(prefix + name, "a key of requires_abi", is_name, NAME_RULE)] = value
    return flat


def _slots(table: Mapping[str, Any]) -> dict[str, str]:
    _known(tuple(table), SLOTS, "slot")
    for name, version in table.items():
        if not is_slot_version(version):
            raise _invalid(f'slots.{name} is {shown(version)}, "major.minor" is needed')
    return dict(table)


def _probe(text: str) -> str:
    if text and not is_target(text):
        raise _invalid(f'probe is {shown(text)}, "module:function" is needed')
    return text


def _config_key(name: str, value: Any) -> ConfigKey:
    _named(name, "a key of config", is_key, KEY_RULE)
    if not isinstance(value, dict):
        raise _invalid(f"config.{name} is {shown(value)}, a table with type and default is needed")
    table = _Table(value, f"config.{name}", ("type", "default", "help"))
    kind = _known((table.get("type", str),), CONFIG_TYPES, "type")[0]
    default = table.get("default", CONFIG_TYPES[kind])
    if isinstance(default, float) and not math.isfinite(default):
        raise _invalid(f"config.{name}: default is {default}, a finite number is needed")
    return ConfigKey(name, kind, default, table.get("help", str, ""))


def _help(command: str, value: Any) -> str:
    if not _is_line(value):
        name = printable(command)[:MAX_LINE]
        raise _invalid(f"commands.{name} is {shown(value)}, one line of help is needed")
    return str(value)


def _stated_offer(value: Any) -> StatedOffer:
    if not isinstance(value, dict):
        raise _invalid(f"offers holds {shown(value)}, tables are needed")
    table = _Table(value, "offers", ("slot", "name", "band", "requires", "operator"))
    name = _named(table.get("name", str), "the name of an offer", is_name, NAME_RULE)
    requires = {
        trait: tuple(values) if isinstance(values, list) else (values,)
        for trait, values in table.get("requires", dict, {}).items()
    }
    _known(tuple(requires), TRAITS, "trait")
    for trait, values in requires.items():
        if not are_trait_values(values):
            raise _invalid(f"offer {name!r}: {trait} is {shown(values)}; {TRAIT_RULE}")
    slot = _known((table.get("slot", str),), SLOTS, "slot")[0]
    operator = table.get("operator", str, "")
    if (slot == "operator") != bool(operator):
        raise _invalid(
            f"offer {name!r} of slot {slot} has operator {shown(operator)}; kernels "
            'stand under slot "operator" and name one, other offers name none'
        )
    return StatedOffer(
        slot=slot,
        name=name,
        band=_known((table.get("band", str, "REFERENCE"),), Band.__members__, "band")[0],
        requires=requires,
        operator=operator,
    )
