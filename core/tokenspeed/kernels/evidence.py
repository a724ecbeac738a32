"""Times measured on this device, kept on disk: a file for each device and set of versions.

    shapes: what was called, such as "linear.dense|float32[1x576] float32[192x576]"
            -> PLUGIN/NAME -> seconds
    failures: the same shapes -> PLUGIN/NAME -> what it raised when it was called so
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
from typing import TYPE_CHECKING, Any, TypeVar

from tokenspeed.contracts.capability import carried
from tokenspeed.env import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

Uses = dict[str, list[tuple[str, float]]]
Value = TypeVar("Value")
_Contents = tuple[dict[str, dict[str, float]], dict[str, dict[str, str]], dict[str, Uses]]


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
        self.shapes, self.failures, self.models = self._read()

    def has(self, shape: str, pin: str) -> bool:
        """Say whether an offer was tried on a shape."""
        return pin in self.shapes.get(shape, {}) or pin in self.failures.get(shape, {})

    def _read(self) -> _Contents:
        """Read the file; one that is missing, damaged or of other facts counts as empty."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["facts"] != self.facts:
                return {}, {}, {}
            return _shapes(data["shapes"]), _failures(data["failures"]), _models(data["models"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}, {}, {}

    def save(self) -> str:
        """Write the file whole, or not at all, with what others measured meanwhile.

        Returns:
            Why it could not be kept, or "".
        """
        shapes, failures, models = self._read()
        self.shapes = _joined(shapes, self.shapes)
        self.failures = _joined(failures, self.failures)
        self.models = {**models, **self.models}
        data = {
            "facts": self.facts,
            "shapes": self.shapes,
            "failures": self.failures,
            "models": self.models,
        }
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


def _joined(
    kept: Mapping[str, Mapping[str, Value]], new: Mapping[str, Mapping[str, Value]]
) -> dict[str, dict[str, Value]]:
    return {shape: {**kept.get(shape, {}), **new.get(shape, {})} for shape in {**kept, **new}}


def _shapes(data: Any) -> dict[str, dict[str, float]]:
    """Check the table of times: a damaged one must choose no kernel."""
    return {
        shape: {str(pin): _positive(seconds) for pin, seconds in times.items()}
        for shape, times in data.items()
    }


def _failures(data: Any) -> dict[str, dict[str, str]]:
    return {
        shape: {str(pin): str(reason) for pin, reason in reasons.items()}
        for shape, reasons in data.items()
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

    @property
    def is_complete(self) -> bool:
        """Say whether everything that this model asks for was measured, and what failed noted."""
        return self.model_key in self.file.models

    def seconds(self, slot: str, traits: Mapping[str, object]) -> dict[str, float]:
        """Return PLUGIN/NAME -> seconds of the model's own calls; complete ones only."""
        uses = self._uses.get(request_key(slot, traits), [])
        times = [(self.file.shapes.get(shape, {}), weight) for shape, weight in uses]
        pins = set.intersection(*(set(by_pin) for by_pin, _ in times)) if times else set()
        return {pin: sum(by_pin[pin] * weight for by_pin, weight in times) for pin in sorted(pins)}

    def failures(self, slot: str, traits: Mapping[str, object]) -> dict[str, str]:
        """Return PLUGIN/NAME -> what it raised in one of the model's own calls."""
        uses = self._uses.get(request_key(slot, traits), [])
        reasons = [self.file.failures.get(shape, {}) for shape, _ in uses]
        return {pin: reason for by_pin in reversed(reasons) for pin, reason in by_pin.items()}


def request_key(slot: str, traits: Mapping[str, object]) -> str:
    """Return a text that names a request."""
    return json.dumps([slot, carried(traits)], sort_keys=True, default=list)


def model_key(parts: Mapping[str, Any]) -> str:
    """Return a key for a model's shapes: its config and the settings that change them."""
    return _digest(parts)


def _digest(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
