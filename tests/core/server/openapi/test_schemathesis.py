"""Schemathesis, a stranger, judges a server by its own document: `make judges` installs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import SCRIPT, ServerProcess

TOOL = Path(__file__).parents[4] / ".cache/clients/schemathesis/bin/st"
MIN_REQUESTS, EXAMPLES = 10_000, 300
SETTINGS = """
[checks.not_a_server_error]
# Some requests give themselves less time than a step takes: the 504 is documented.
expected-statuses = ["2xx", "3xx", "4xx", 504]
[checks.positive_data_acceptance]
# A schema cannot say that a grammar compiles or that a stored response is still there.
enabled = false
"""


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.exists(), reason="make judges")
def test_ten_thousand_requests_of_schemathesis_find_nothing(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "scripted", script=SCRIPT)
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(SETTINGS)
    with ServerProcess(model, tmp_path, "--api-key", "secret", "--keep-alive-s", "0.2") as server:
        command = [str(TOOL), "--config-file", str(settings), "run", f"{server.url}/openapi.json"]
        command += ["--header", "Authorization: Bearer secret", "--max-examples", str(EXAMPLES)]
        # Its seed is in the output, and in the failure.
        done = subprocess.run(
            [*command, "--continue-on-failure"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
        assert server.call("/health").status == 200
        log = server.log.read_text()
    counted = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) == int(counted[2]) >= MIN_REQUESTS
    assert "Traceback" not in log, log
