"""A device known from a file: its facts, and a runtime that computes nothing."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.json_file import read_json_object, shown
from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.device import DeviceFacts
from tokenspeed.errors import CapacityError, CheckpointError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

_REQUIRED = {"kind": str, "name": str, "arch": str, "memory_bytes": int}
_OPTIONAL = {"count": int, "traits": dict, "runs": list}
_WORDS = {str: "a text", int: "a whole number", dict: "an object", list: "a list"}
_SHAPE = (
    '{"kind": "acme", "name": "Acme One", "arch": "a1", "memory_bytes": 1, "count": 1, '
    '"runs": ["a0"], "traits": {}}'
)


def read_profile(path: Path) -> DeviceFacts:
    """Read a device profile: the fields of DeviceFacts as a JSON object.

    Raises:
        ConfigError: missing file, not JSON, an unknown or missing field, a value of another type.
    """
    try:
        data = read_json_object(path, advice=f"give a file like {_SHAPE}")
    except CheckpointError as error:
        raise ConfigError(f"device profile: {error}") from error
    return facts_of(data, str(path))


def facts_of(data: Mapping[str, Any], source: str) -> DeviceFacts:
    """Check a profile's fields and build the facts."""
    known = {**_REQUIRED, **_OPTIONAL}
    for name in [*(name for name in data if name not in known), *_REQUIRED]:
        if name not in known or name not in data:
            problem = "missing" if name in known else "unknown"
            raise ConfigError(
                f"device profile {source}: {problem} field {name!r}; the fields are "
                f"{', '.join(known)}; write it like {_SHAPE}"
            )
    for name, value in data.items():
        if not isinstance(value, known[name]) or isinstance(value, bool):
            raise ConfigError(
                f"device profile {source}: {name} is {shown(value)}, {_WORDS[known[name]]} is "
                f"needed; write it like {_SHAPE}"
            )
    unknown = sorted(set(data.get("traits", {})) - set(TRAITS))
    if unknown:
        raise ConfigError(
            f"device profile {source}: unknown trait {unknown[0]!r}; known: {', '.join(TRAITS)}"
        )
    values = {"count": 1, **data, "runs": tuple(data.get("runs", ()))}
    return DeviceFacts(**values)


def profile_of(facts: DeviceFacts) -> dict[str, Any]:
    """Return facts as a profile: what `read_profile` reads."""
    return {item.name: asdict(facts)[item.name] for item in fields(facts)}


class ProfileRuntime:
    """A DeviceRuntime whose tensors have shapes and no bytes."""

    features: frozenset[str] = frozenset()

    def __init__(self, facts: DeviceFacts) -> None:
        self.facts = facts

    def torch_device(self) -> torch.device:
        """Return torch's device for shapes."""
        import torch

        return torch.device("meta")

    def free_memory_bytes(self) -> int:
        """Return all of the memory: nothing else runs there."""
        return self.facts.memory_bytes

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Refuse: nothing is allocated for an explanation."""
        raise CapacityError(
            f"a device profile has no memory for an arena of {num_bytes} bytes; serve on a device"
        )

    def synchronize(self) -> None:
        """Do nothing."""
