"""Embeddings of texts: the hidden state behind each one's last token, as a vector of length 1."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tokenspeed.engine.vectors import unit_vector
from tokenspeed.errors import EngineError
from tokenspeed.server.conversation.term_fields import TermFields
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.openai.open_fields import PromptForms
from tokenspeed.server.openai.replies import usage
from tokenspeed.server.openai.tables import INERT, NEUTRAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.pieces import Piece

MAX_INPUTS = 2048


class EmbeddingsRequest(TermFields):
    """The body of /v1/embeddings."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str
    input: PromptForms
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Integer | None = Field(None, ge=1)


def embeddings_body(
    request: EmbeddingsRequest, prompts: Sequence[Prompt], pieces: Sequence[Piece]
) -> dict[str, Any]:
    """Return the body of an answer; what was generated beside is not counted.

    Raises:
        RequestError: more dimensions are asked for than there are.
    """
    counts = usage(prompts, pieces)
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(request, piece)}
        for index, piece in enumerate(pieces)
    ]
    tokens = counts["prompt_tokens"]
    return {
        "object": "list",
        "data": data,
        "model": request.model,
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "prompt_tokens_details": counts["prompt_tokens_details"],
        },
    }


def _shown(request: EmbeddingsRequest, piece: Piece) -> list[float] | str:
    if piece.embedding is None:
        raise EngineError("the engine returned no hidden state; send the request again")
    vector = unit_vector(piece.embedding, request.dimensions)
    if request.encoding_format == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    shown: list[float] = vector.tolist()
    return shown
