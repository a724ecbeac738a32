"""The TOML file of tenants' floors and caps (`--tenants FILE`), read and checked; knows no cache.

[tenants.acme]
floor_mib = 512      # KV cache that others never evict, once the tenant has it
cap_mib = 2048       # the most that it has at a time, in use and cached
"""

from __future__ import annotations

import math
import tomllib
from typing import TYPE_CHECKING, Any

from tokenspeed.engine.messages import TenantFigures
from tokenspeed.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAME_CHARS = 64
MIB = 1 << 20
MAX_MIB = 1 << 40
FIELDS = ("floor_mib", "cap_mib")


def read_tenants(path: str) -> dict[str, TenantFigures]:
    """Return the figures by tenant; none when `path` is empty.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; names it.
    """
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tenants {path!r} cannot be read: {reason_of(error)}; a TOML file with a table "
            "[tenants.NAME] for each tenant is needed; correct it"
        ) from None
    tables = document.get("tenants")
    if not isinstance(tables, dict) or set(document) != {"tenants"}:
        raise ConfigError(
            f"tenants {path!r} holds {', '.join(document) or 'nothing'}; only tables "
            "[tenants.NAME] are allowed; correct it"
        )
    return {name: _figures(path, name, table) for name, table in tables.items()}


def is_name(name: str) -> bool:
    """Say whether a tenant may be called so: as in the header X-Tenant."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isascii() and name.isprintable()


def _figures(path: str, name: str, table: Any) -> TenantFigures:
    where = f"tenants {path!r}, [tenants.{name}]:"
    if not is_name(name):
        raise ConfigError(
            f"{where} the name has {len(name)} characters; 1 to {MAX_NAME_CHARS} printable ASCII "
            "characters are allowed; choose another"
        )
    if not isinstance(table, dict) or not table or set(table) - set(FIELDS):
        held = ", ".join(table) if isinstance(table, dict) else repr(table)
        raise ConfigError(
            f"{where} holds {held or 'nothing'}; floor_mib, cap_mib or both are needed; correct it"
        )
    floor, cap = (_bytes(where, table, field) for field in FIELDS)
    if floor is not None and cap is not None and cap < floor:
        raise ConfigError(
            f"{where} cap_mib is {table['cap_mib']}, below its floor_mib {table['floor_mib']}; a "
            "cap of at least the floor is needed; raise it"
        )
    return TenantFigures(floor, cap)


def _bytes(where: str, table: Mapping[str, Any], field: str) -> int | None:
    if field not in table:
        return None
    value = table[field]
    least = 0 if field == "floor_mib" else 1
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not least <= value <= MAX_MIB:
        raise ConfigError(
            f"{where} {field} is {value!r}; a number of MiB from {least} to {MAX_MIB} is allowed; "
            "correct it"
        )
    return int(value * MIB)
