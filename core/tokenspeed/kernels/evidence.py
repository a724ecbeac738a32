"""Times measured on this device, kept on disk: a file for each device and set of versions.

    shapes: what was called, such as "linear.dense|float32[1x576] float32[192x576]"
            -> PLUGIN/NAME -> seconds
    models: a model's key -> request -> [[shape, calls that count], ...]

A model asks with its requests; the answer is the sum over its own shapes. Another model with the
same shapes is not measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import carried
from tokenspeed.env import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

Uses = dict[str, list[tuple[str, float]]]


class EvidenceFile:
    """Measured times of one device and one set of versions.

    Args:
        facts: device, architecture, threads, and the version of everything that computes.
        folder: where files lie; None: the cache folder.
    """

    def __init__(self, facts: Mapping[str, str], folder: Path | None = None) -> None:
        self.facts = dict(sorted(facts.items()))
        home = cache_dir() / "tuning" if folder is None else folder
        self.path = home / f"{_digest(self.facts)}.json"
        data = self._read()
        self.shapes: dict[str, dict[str, float]] = data.get("shapes", {})
        self.models: dict[str, Uses] = data.get("models", {})

    def _read(self) -> dict[str, Any]:
        """Read the file; one that is missing, damaged or of other facts counts as empty."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) and data.get("facts") == self.facts else {}

    def save(self) -> None:
        """Write the file whole, or not at all; two writers do not mix."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {"facts": self.facts, "shapes": self.shapes, "models": self.models}
        with tempfile.NamedTemporaryFile(
            "w", dir=self.path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            json.dump(data, file, indent=1)
        os.replace(file.name, self.path)


class ModelEvidence:
    """What was measured for one model; `Evidence` of the binder and of the slots."""

    def __init__(self, file: EvidenceFile, model_key: str) -> None:
        self.file, self.model_key = file, model_key
        self._uses = file.models.get(model_key, {})

    def seconds(self, slot: str, traits: Mapping[str, object]) -> dict[str, float]:
        """Return PLUGIN/NAME -> seconds of the model's own calls; complete ones only."""
        uses = self._uses.get(request_key(slot, traits), [])
        times = [(self.file.shapes.get(shape, {}), weight) for shape, weight in uses]
        pins = set.intersection(*(set(by_pin) for by_pin, _ in times)) if times else set()
        return {pin: sum(by_pin[pin] * weight for by_pin, weight in times) for pin in sorted(pins)}


def request_key(slot: str, traits: Mapping[str, object]) -> str:
    """Return a text that names a request."""
    return json.dumps([slot, carried(traits)], sort_keys=True, default=list)


def model_key(parts: Mapping[str, Any]) -> str:
    """Return a key for a model's shapes: its config and the settings that change them."""
    return _digest(parts)


def _digest(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
