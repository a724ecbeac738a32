"""Servers shared by the HTTP tests: starting one costs seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.leftovers import keep
from tests.support.scripted import write_scripted_model
from tests.support.server import SCRIPT, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def hash_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Each token depends on all before it, read back from the cache; never ends by itself."""
    folder = tmp_path_factory.mktemp("hash_server")
    model = write_scripted_model(
        folder / "hashed", step_ms=2, token_us=100, max_position_embeddings=2048
    )
    flags = ("--max-step-tokens", "64", "--max-running", "16", "--keep-alive-s", "0.2")
    with ServerProcess(model, folder, *flags) as server:
        keep(server.process.pid)
        yield server


@pytest.fixture(scope="session")
def script_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Says SCRIPT and ends; two API processes, an API key, a short queue."""
    folder = tmp_path_factory.mktemp("script_server")
    model = write_scripted_model(folder / "scripted", script=SCRIPT, max_position_embeddings=512)
    flags = ("--api-key", "secret", "--api-workers", "2", "--max-body-mib", "1")
    flags += ("--max-running", "2", "--max-waiting", "2")
    with ServerProcess(model, folder, *flags) as server:
        keep(server.process.pid)
        yield server
