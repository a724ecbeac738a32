"""Structured outputs through Anthropic's own library: python sdk_parse.py URL MODEL.

Runs with the clients' interpreter, which has none of our packages. Prints the values that the
helpers parsed: of a whole answer, of a stream, and of the beta's methods.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import anthropic
import pydantic


class Choice(pydantic.BaseModel):
    """What is asked for."""

    a: Literal[1, 2]


def main(url: str, model: str) -> None:
    """Ask three times."""
    client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    asked: Any = {
        "model": model,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "x"}],
        "output_format": Choice,
    }
    print(client.messages.parse(**asked).parsed_output.a)
    with client.messages.stream(**asked) as stream:
        print(stream.get_final_message().parsed_output.a)
    print(client.beta.messages.parse(**asked).parsed_output.a)


if __name__ == "__main__":
    main(*sys.argv[1:])
