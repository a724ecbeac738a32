"""The public cases of JSON Schema 2020-12, as `make judges` fetches them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = Path(__file__).parents[2] / ".cache/clients/json-schema-cases/tests/draft2020-12"


@dataclass(frozen=True, slots=True)
class Case:
    """A schema of the public cases, and values that it allows or forbids."""

    name: str
    schema: Any
    tests: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """Return the schema as it is sent."""
        return json.dumps(self.schema)


def cases() -> Iterator[Case]:
    """Yield the cases, those of optional features too."""
    for path in (*sorted(CASES.glob("*.json")), *sorted(CASES.glob("optional/*.json"))):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield Case(f"{path.stem}: {group['description']}", group["schema"], group["tests"])
