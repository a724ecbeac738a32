"""docs/settings.md and docs/http-api.md say what the code does."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokenspeed.server.anthropic.schemas import MessagesRequest
from tokenspeed.server.openai import schemas as openai
from tokenspeed.server.openai.embeddings import EmbeddingsRequest
from tokenspeed.server.openai.tables import INERT, NEUTRAL, NEUTRAL_MESSAGE
from tokenspeed.server.responses.schemas import ResponsesRequest

if TYPE_CHECKING:
    from tokenspeed.server.http.schema import Body

DOCS = Path(__file__).parents[3] / "docs"
SCHEMAS = (
    openai.ChatRequest,
    openai.CompletionRequest,
    openai.TokenizeRequest,
    openai.DetokenizeRequest,
    EmbeddingsRequest,
)


def section(title: str) -> str:
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))


def test_the_settings_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", DOCS / "generate_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == module.page(), (
        "run: python docs/generate_settings.py"
    )


def test_every_supported_field_is_documented_and_no_other() -> None:
    supported = {name for schema in SCHEMAS for name in schema.model_fields}
    assert set(rows(section("Supported fields"))) == supported


def test_inert_fields_are_documented_with_their_reason() -> None:
    assert rows(section("Inert fields")) == dict(INERT)


def test_fields_that_are_not_built_are_documented_with_their_neutral_values() -> None:
    shown = {
        name: ", ".join(f"`{json.dumps(value)}`" for value in values) or "none"
        for name, values in NEUTRAL.items()
    }
    text = section("Fields that are not built yet")
    assert rows(text) == shown
    assert all(f"`{name}`" in text for name in NEUTRAL_MESSAGE)


@pytest.mark.parametrize(
    ("title", "end", "schema"),
    [
        ("### Fields of messages\n", "**Thinking**", MessagesRequest),
        ("### Fields of responses\n", "**Thinking**", ResponsesRequest),
    ],
)
def test_every_field_of_an_api_is_on_its_page_and_no_other(
    title: str, end: str, schema: type[Body]
) -> None:
    page = (DOCS / "http-api.md").read_text(encoding="utf-8")
    text = page.split(title, 1)[1].split(end, 1)[0]
    supported, inert = re.split(r"\nAccepted with any value", text, maxsplit=1)
    inert, refused = inert.split("\nRefused unless", 1)
    heads = re.findall(r"^\| (`.*?`) \|", supported, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(heads))) == set(schema.model_fields)
    assert rows(inert) == dict(schema.inert)
    assert set(re.findall(r"`(\w+)`", refused)) == set(schema.neutral)
