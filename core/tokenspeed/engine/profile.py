"""A device known from a file: its facts, and a runtime that computes nothing."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from tokenspeed.checkpoint.json_file import read_json_object
from tokenspeed.errors import CapacityError, CheckpointError, ConfigError
from tokenspeed.plugins.facts_check import facts_of

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from tokenspeed.contracts.device import DeviceFacts

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
    try:
        return facts_of(data)
    except ValueError as error:
        raise ConfigError(f"device profile {path}: {error}; write it like {_SHAPE}") from error


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
