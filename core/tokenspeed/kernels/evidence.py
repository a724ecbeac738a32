"""Times measured on this device, kept on disk: a file for each device and set of versions.

    shapes: what was called, such as "linear.dense|float32[1x576] float32[192x576]"
            -> PLUGIN/NAME -> seconds
    models: a model's key -> request -> [[shape, calls that count], ...]

A model asks with its requests; the answer is the sum over its own shapes. Another model with the
same shapes is not measured again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import carried
from tokenspeed.env import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

Uses = dict[str, list[tuple[str, float]]]


def _home() -> Path:
    return cache_dir() / "tuning"


def why_not_kept() -> str:
    """Return why no file of times could be written, or "": asked before anything is measured."""
    try:
        _home().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=_home()).close()
    except OSError as error:
        return str(error)
    return ""


class EvidenceFile:
    """Measured times of one device and one set of versions.

    Args:
        facts: device, architecture, threads, and the version of everything that computes.
        folder: where files lie; None: the cache folder.
    """

    def __init__(self, facts: Mapping[str, str], folder: Path | None = None) -> None:
        self.facts = dict(sorted(facts.items()))
        self.path = (_home() if folder is None else folder) / f"{_digest(self.facts)}.json"
        self.shapes, self.models = self._read()

    def _read(self) -> tuple[dict[str, dict[str, float]], dict[str, Uses]]:
        """Read the file; one that is missing, damaged or of other facts counts as empty."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["facts"] != self.facts:
                return {}, {}
            return _shapes(data["shapes"]), _models(data["models"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}, {}

    def save(self) -> str:
        """Write the file whole, or not at all, with what others measured meanwhile.

        Returns:
            Why it could not be kept, or "".
        """
        shapes, models = self._read()
        for shape, times in self.shapes.items():
            shapes[shape] = {**shapes.get(shape, {}), **times}
        self.shapes, self.models = shapes, {**models, **self.models}
        data = {"facts": self.facts, "shapes": self.shapes, "models": self.models}
        temporary = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, suffix=".tmp", delete=False, encoding="utf-8"
            ) as file:
                temporary = file.name
                json.dump(data, file, indent=1)
            os.replace(temporary, self.path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            return str(error)
        return ""


def _shapes(data: Any) -> dict[str, dict[str, float]]:
    """Check the table of times: a damaged one must choose no kernel."""
    return {
        shape: {str(pin): _positive(seconds) for pin, seconds in times.items()}
        for shape, times in data.items()
    }


def _models(data: Any) -> dict[str, Uses]:
    return {
        key: {
            request: [(str(shape), _positive(weight)) for shape, weight in uses]
            for request, uses in requests.items()
        }
        for key, requests in data.items()
    }


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{value} is no time")
    return float(value)


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
