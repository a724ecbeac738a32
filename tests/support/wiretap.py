"""A server between a client and ours that passes everything on as it is and keeps a copy.

For what only the wire shows: which usage a client was told. Bodies pass in the pieces in which they
come, so that a client streams as it would without it.
"""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te"}
GENERATING = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
TIMEOUT_S = 120


@dataclass
class Exchange:
    """One request and what was answered so far."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytearray = field(default_factory=bytearray)

    @property
    def is_generating(self) -> bool:
        """Whether the model was asked to write."""
        return urlsplit(self.path).path in GENERATING

    @property
    def has_failed(self) -> bool:
        """Whether an error was answered, or ended the stream."""
        return self.status != 200 or any("error" in document for document in self._documents())

    def json(self) -> Any:
        """Return what was asked."""
        return json.loads(self.body)

    def usage(self) -> tuple[int, int, int] | None:
        """Return the tokens of prompt, of cache and of output that the client was told, if any."""
        found: dict[str, Any] = {}
        for usage in self._usages():
            found |= {key: value for key, value in usage.items() if value is not None}
        return _counts(found) if found else None

    def _usages(self) -> Iterator[dict[str, Any]]:
        for document in self._documents():
            for holder in (document, document.get("response"), document.get("message")):
                if isinstance(holder, dict) and holder.get("usage"):
                    yield holder["usage"]

    def _documents(self) -> Iterator[dict[str, Any]]:
        text = self.answer.decode()
        if text.startswith("{"):
            yield json.loads(text)
            return
        for line in text.splitlines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def _counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Return the three counts in any API's words."""
    if "prompt_tokens" in usage:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"]
    if "input_tokens_details" in usage:
        cached = usage["input_tokens_details"]["cached_tokens"]
        return usage["input_tokens"], cached, usage["output_tokens"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
    return prompt, cached, usage["output_tokens"]


class Wiretap:
    """Listens in front of a server; a context manager that stops it.

    Args:
        upstream: URL of the server.
    """

    def __init__(self, upstream: str) -> None:
        self.exchanges: list[Exchange] = []
        parts = urlsplit(upstream)
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.upstream = (str(parts.hostname), int(parts.port or 80))
        self._server.exchanges = self.exchanges
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self) -> list[Exchange]:
        """Return the exchanges since the last call in which the model was asked to write."""
        found = [one for one in self.exchanges if one.is_generating]
        self.exchanges.clear()
        return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    upstream: tuple[str, int]
    exchanges: list[Exchange]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._pass_on()

    def do_POST(self) -> None:
        self._pass_on()

    def do_HEAD(self) -> None:
        self._pass_on()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        exchange = Exchange(self.path, headers, body)
        self.server.exchanges.append(exchange)
        self.close_connection = True
        upstream = http.client.HTTPConnection(*self.server.upstream, timeout=TIMEOUT_S)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            self._relay(exchange, upstream.getresponse())
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client went away; closing the other side tells the server
        finally:
            upstream.close()

    def _relay(self, exchange: Exchange, answer: http.client.HTTPResponse) -> None:
        exchange.status = answer.status
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        while piece := answer.read1(65_536):
            exchange.answer += piece
            self.wfile.write(piece)
