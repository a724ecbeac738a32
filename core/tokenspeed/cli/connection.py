"""HTTP to a running server, with the standard library: for `bench` and `top`."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tokenspeed.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping


class StatusError(EngineError):
    """The server answered with another status than 200."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class NoAnswerError(EngineError):
    """Nobody answered, or nothing that can be read."""


class Connection(http.client.HTTPConnection):
    """Closed at the end of a `with`."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _SecureConnection(http.client.HTTPSConnection, Connection):
    """The same over TLS."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is, and the key that it wants.

    Args:
        url: http://HOST:PORT, without path.
        timeout_s: of each read and write.
    """

    url: str
    api_key: str = ""
    timeout_s: float = 600.0

    def send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        more_headers: Mapping[str, str] | None = None,
    ) -> tuple[Connection, http.client.HTTPResponse]:
        """Send a request; return the open connection and its 200 answer.

        Raises:
            ConfigError: the URL is none.
            StatusError: another status; carries the server's own words.
        """
        connection = self._connect()
        headers = {"Content-Type": "application/json", **(more_headers or {})}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            text = _message_of(response.read(65536))
            connection.close()
            hint = "; pass --api-key" if response.status == 401 else ""
            message = f"{path} answered {response.status}: {text}{hint}"
            raise StatusError(message, status=response.status)
        return connection, response

    def json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request and return the decoded answer.

        Raises:
            NoAnswerError: nobody is there, or it is no JSON.
            StatusError: another status than 200.
        """
        try:
            connection, response = self.send(method, path, body)
            with connection:
                return json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(f"{self.url}{path} failed: {error}; is a server there?") from error

    def _connect(self) -> Connection:
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"the URL is {self.url!r}, http://HOST:PORT is needed; change it")
        kind = _SecureConnection if parts.scheme == "https" else Connection
        return kind(parts.hostname, port, timeout=self.timeout_s)


def base_url(url: str) -> str:
    """Return a server's URL as users give it, without the API's own path."""
    return url.rstrip("/").removesuffix("/v1")


def _message_of(body: bytes) -> str:
    """Return the message of an error body; of another server maybe any text."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:2000].decode(errors="replace")
