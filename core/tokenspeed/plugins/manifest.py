"""`tokenspeed-plugin.toml`: what a plugin says of itself before anything of it is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.kernel import Band
from tokenspeed.errors import PluginError, reason_of
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.slots import SLOTS
from tokenspeed.plugins.versions import parse_range, release

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

MANIFEST_NAME = "tokenspeed-plugin.toml"
SCHEMA = 1
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
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
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
        raise PluginError(
            f"schema is {data['schema']!r}, this version reads {SCHEMA}", id="manifest-invalid"
        )
    return Manifest(
        id=table.get("id", str),
        api=_checked_range(table.get("api", str), "api"),
        vendor=table.get("vendor", str),
        device_kinds=_strings(table.get("device_kinds", list), "device_kinds"),
        roles=_known(_strings(table.get("roles", list), "roles"), ROLES, "role"),
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
                raise PluginError(
                    f"unknown key {key!r} in {name}: {suggestion(key, keys)}", id="manifest-invalid"
                )

    def get(self, key: str, kind: type, default: Any = _REQUIRED) -> Any:
        """Return a value of the given type; a missing key without default is an error."""
        value = self._data.get(key, default)
        if value is _REQUIRED:
            raise PluginError(
                f"key {key!r} is missing in {self._name}; add it", id="manifest-invalid"
            )
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise PluginError(
                f"{self._name}: {key} is {value!r}, a {kind.__name__} is needed",
                id="manifest-invalid",
            )
        return value


def _strings(values: list[Any], what: str) -> tuple[str, ...]:
    for value in values:
        if not isinstance(value, str):
            raise PluginError(f"{what} holds {value!r}, strings are needed", id="manifest-invalid")
    return tuple(values)


def _known(values: tuple[str, ...], known: Collection[str], what: str) -> tuple[str, ...]:
    for value in values:
        if value not in known:
            raise PluginError(
                f"unknown {what} {value!r}: {suggestion(value, known)}", id="manifest-invalid"
            )
    return values


def _checked_range(text: Any, what: str) -> str:
    try:
        parse_range(str(text))
    except ValueError as error:
        raise PluginError(f"{what}: {error}", id="manifest-invalid") from None
    return str(text)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Join the names of nested tables: `cpu.avx2 = "1"` is one key in TOML's own eyes too."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _slots(table: Mapping[str, Any]) -> dict[str, str]:
    _known(tuple(table), SLOTS, "slot")
    for name, version in table.items():
        if not isinstance(version, str) or len(version.split(".")) != 2:
            raise PluginError(
                f'slots.{name} is {version!r}, "major.minor" is needed', id="manifest-invalid"
            )
        try:
            release(version)
        except ValueError as error:
            raise PluginError(f"slots.{name}: {error}", id="manifest-invalid") from None
    return dict(table)


def _probe(text: str) -> str:
    module, colon, function = text.partition(":")
    if text and not (module and colon and function):
        raise PluginError(f'probe is {text!r}, "module:function" is needed', id="manifest-invalid")
    return text


def _config_key(name: str, value: Any) -> ConfigKey:
    if not isinstance(value, dict):
        raise PluginError(
            f"config.{name} is {value!r}, a table with type and default is needed",
            id="manifest-invalid",
        )
    table = _Table(value, f"config.{name}", ("type", "default", "help"))
    kind = _known((table.get("type", str),), CONFIG_TYPES, "type")[0]
    default = table.get("default", CONFIG_TYPES[kind])
    return ConfigKey(name, kind, default, table.get("help", str, ""))


def _help(command: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\n" in value:
        raise PluginError(
            f"commands.{command} is {value!r}, one line of help is needed", id="manifest-invalid"
        )
    return value


def _stated_offer(value: Any) -> StatedOffer:
    if not isinstance(value, dict):
        raise PluginError(f"offers holds {value!r}, tables are needed", id="manifest-invalid")
    table = _Table(value, "offers", ("slot", "name", "band", "requires", "operator"))
    requires = {
        name: tuple(values) if isinstance(values, list) else (values,)
        for name, values in table.get("requires", dict, {}).items()
    }
    _known(tuple(requires), TRAITS, "trait")
    slot = _known((table.get("slot", str),), SLOTS, "slot")[0]
    operator = table.get("operator", str, "")
    if (slot == "operator") != bool(operator):
        raise PluginError(
            f"offer {table.get('name', str)!r} of slot {slot} has operator {operator!r}; kernels "
            'stand under slot "operator" and name one, other offers name none',
            id="manifest-invalid",
        )
    return StatedOffer(
        slot=slot,
        name=table.get("name", str),
        band=_known((table.get("band", str, "REFERENCE"),), Band.__members__, "band")[0],
        requires=requires,
        operator=operator,
    )
