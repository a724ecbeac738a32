"""The API keys that a server takes, and whose each is."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from tokenspeed.config.schema import ServeConfig

_LINE = re.compile(r"([!-~]{1,64})\s+([!-~]+)")


class ApiKeys:
    """Keys by digest: looking one up takes the same time for every wrong key.

    Args:
        tenants: key -> tenant, "" for the nameless one; empty: the server is open.
    """

    def __init__(self, tenants: dict[str, str]) -> None:
        self._tenants = {_digest(key): tenant for key, tenant in tenants.items()}

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, authorization: str) -> str | None:
        """Return the tenant of an `Authorization` header; None: it holds no key of ours."""
        kind, _, key = authorization.partition(" ")
        return self._tenants.get(_digest(key)) if kind == "Bearer" else None


def read_api_keys(config: ServeConfig) -> ApiKeys:
    """Return the keys of the settings.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong; no key is shown.
    """
    tenants = {config.api_key: ""} if config.api_key else {}
    if config.api_keys_file:
        tenants |= _read_file(config.api_keys_file)
    return ApiKeys(tenants)


def _read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"api_keys_file {path!r} cannot be read: {reason_of(error)}; a text file with a line "
            "'TENANT KEY' for each key is needed; correct the path"
        ) from None
    tenants: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _LINE.fullmatch(text)
        if found is None or found[2] in tenants:
            what = "is not 'TENANT KEY'" if found is None else "repeats a key"
            raise ConfigError(
                f"api_keys_file {path!r}: line {number} {what}; each line needs a tenant of up to "
                "64 characters without blanks and a key of its own; correct it"
            )
        tenants[found[2]] = found[1]
    if not tenants:
        raise ConfigError(
            f"api_keys_file {path!r} holds no key, at least one line 'TENANT KEY' is needed; "
            "add one, or drop the setting"
        )
    return tenants


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
