"""POST /v1/embeddings: forms of the input, encodings, dimensions, usage, refusals; the client."""

from __future__ import annotations

import array
import base64
import math
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.support.apps import App
from tests.support.served_checkpoints import serve_checkpoint
from tests.support.server import ServerProcess

from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> App:
    """Knows one hidden state: (3, 0, 4)."""
    return App(tmp_path)


def embed(app: App, given: Any, *, status: int = 200, **fields: Any) -> Any:
    reply = app.call("/v1/embeddings", {"model": "m", "input": given, **fields})
    assert reply.status == status, reply.text
    return reply.json()


def test_a_text_is_a_vector_of_length_one_with_usage(app: App) -> None:
    app.engine.cached = 2
    body = embed(app, "hello")
    assert (body["object"], body["model"]) == ("list", "m")
    (item,) = body["data"]
    assert (item["object"], item["index"]) == ("embedding", 0)
    assert item["embedding"] == pytest.approx([0.6, 0.0, 0.8])
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (5, 5)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert app.engine.prompt == "hello"


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([65, 66], [[65, 66]]),
        ([[65, 66], [67]], [[65, 66], [67]]),
    ],
)
def test_the_four_forms_of_an_input_are_taken_in_order(
    given: Any, prompts: list[Any], app: App
) -> None:
    body = embed(app, given)
    ids = [list(memoryview(item.prompt_ids).cast("i")) for item in app.engine.submits]
    wanted = [app.tokens(item) if isinstance(item, str) else item for item in prompts]
    assert ids == wanted
    assert [item["index"] for item in body["data"]] == list(range(len(prompts)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, wanted))


def test_vectors_come_in_base64_too_and_are_cut_to_a_length_of_one(app: App) -> None:
    item = embed(app, "x", encoding_format="base64")["data"][0]
    vector = array.array("f", base64.b64decode(item["embedding"]))
    assert list(vector) == pytest.approx([0.6, 0.0, 0.8])
    short = embed(app, "x", dimensions=2)["data"][0]
    assert short["embedding"] == [1.0, 0.0]


def test_many_inputs_are_taken_at_once_and_too_many_are_not(app: App) -> None:
    assert len(embed(app, ["x"] * 300)["data"]) == 300
    error = embed(app, ["x"] * 2049, status=400)["error"]
    assert error["param"] == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["x", ""]}, "input"),
        ({"input": 5}, "input"),
        ({"input": [["x"]]}, "input.0"),
        ({"input": [1 << 20]}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": [65] * 5000}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 4}, "dimensions"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"messages": []}, "messages"),
        ({"stream": True}, "stream"),
    ],
)
def test_what_is_wrong_is_refused_by_name(fields: dict[str, Any], param: str, app: App) -> None:
    error = embed(app, **{"given": "x", "status": 400, **_renamed(fields)})["error"]
    assert error["param"] == param


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"given" if name == "input" else name: value for name, value in fields.items()}


def test_a_fault_of_the_engine_fails_the_request(app: App) -> None:
    app.engine.error, app.engine.fails_after = EngineError("broken; again"), 0
    assert embed(app, "x", status=500)["error"]["message"] == "broken; again"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("embeddings")
    model = serve_checkpoint("qwen3", folder)
    flags = ("--plugins", "reference", "--kv-gib", "0.05", "--dtype", "float32")
    with ServerProcess(model, folder, *flags) as running:
        yield running


def test_the_openai_client_gets_vectors_beside_answers(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        made = client.embeddings.create(model="qwen3", input=["one text", "another"])
        plain = client.embeddings.create(
            model="qwen3", input=["one text", "another"], encoding_format="float"
        )
        for item, other in zip(made.data, plain.data, strict=True):
            assert item.embedding == pytest.approx(other.embedding, abs=1e-6)
            assert len(item.embedding) == 48
            assert math.hypot(*item.embedding) == pytest.approx(1.0, abs=1e-5)
        short = client.embeddings.create(model="qwen3", input="one text", dimensions=7)
        cut = made.data[0].embedding[:7]
        wanted = [value / math.hypot(*cut) for value in cut]
        assert short.data[0].embedding == pytest.approx(wanted, abs=1e-5)
        assert made.data[0].embedding != pytest.approx(made.data[1].embedding, abs=1e-2)
        said = client.completions.create(model="qwen3", prompt="one text", max_tokens=3)
        assert said.usage is not None
        assert said.usage.completion_tokens == 3
