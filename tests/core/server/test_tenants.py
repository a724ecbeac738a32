"""GET and PUT /tenants, `tokenspeed tenants` and the metrics, against a real server."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADMIN = {"Authorization": "Bearer admin"}
ACME = {"Authorization": "Bearer acme-key"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Two API processes; acme has a floor from the start."""
    folder = tmp_path_factory.mktemp("tenants")
    model = write_scripted_model(folder / "m", script="ok", max_position_embeddings=2048)
    (folder / "keys").write_text("acme acme-key\nbatch batch-key\n")
    (folder / "tenants.toml").write_text("[tenants.acme]\nfloor_mib = 0.01\n")
    flags = ("--api-key", "admin", "--api-keys-file", str(folder / "keys"))
    flags += ("--tenants", str(folder / "tenants.toml"), "--api-workers", "2", "--kv-gib", "0.001")
    with ServerProcess(model, folder, *flags) as started:
        yield started


def listed(server: ServerProcess) -> dict[str, Any]:
    tenants = server.call("/tenants", headers=ADMIN).json()["tenants"]
    return {tenant.pop("name"): tenant for tenant in tenants}


def test_the_file_of_the_start_holds(server: ServerProcess) -> None:
    acme = listed(server)["acme"]
    assert (acme["floor_bytes"], acme["cap_bytes"]) == (10485, None)
    body = {"model": "m", "prompt": "hello " * 40, "max_tokens": 2}
    server.call("/v1/completions", body, headers=ACME)
    assert listed(server)["acme"]["cached_bytes"] > 0


def test_every_api_process_tells_the_same_after_a_change(server: ServerProcess) -> None:
    body = {"floor_bytes": None, "cap_bytes": 70_000}
    answer = server.call("/tenants/batch%2Fnight", body, method="PUT", headers=ADMIN)
    assert answer.status == 200
    for _ in range(6):
        assert listed(server)["batch/night"]["cap_bytes"] == 70_000
    server.call("/tenants/batch%2Fnight", {}, method="PUT", headers=ADMIN)
    assert "batch/night" not in listed(server)


def test_a_tenants_own_key_is_refused(server: ServerProcess) -> None:
    for method, path, body in (("GET", "/tenants", None), ("PUT", "/tenants/acme", {})):
        answer = server.call(path, body, method=method, headers=ACME)
        assert answer.status == 403
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "not_allowed")
        assert "--api-key" in error["message"]
    assert server.call("/tenants").status == 401
    assert "acme" in listed(server)


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"floor_bytes": -1}, "floor_bytes", "0 to"),
        ({"cap_bytes": 10}, "cap_bytes", "one block"),
        ({"cap_bytes": "1"}, "cap_bytes", "integer"),
        ({"floor_bytes": 1 << 50}, "floor_bytes", "the cache has"),
        ({"floor": 1}, "floor", "did you mean"),
    ],
)
def test_wrong_figures_are_refused(
    server: ServerProcess, body: dict[str, Any], param: str, words: str
) -> None:
    answer = server.call("/tenants/acme", body, method="PUT", headers=ADMIN)
    error = answer.json()["error"]
    assert (answer.status, error["param"]) == (400, param)
    assert words in error["message"]
    assert listed(server)["acme"]["floor_bytes"] == 10485


def test_a_request_above_its_cap_is_refused_with_numbers(server: ServerProcess) -> None:
    server.call("/tenants/batch", {"cap_bytes": 9000}, method="PUT", headers=ADMIN)
    body = {"model": "m", "prompt": "hello " * 200, "max_tokens": 5}
    key = {"Authorization": "Bearer batch-key"}
    answer = server.call("/v1/completions", body, headers=key)
    assert answer.status == 400
    assert "(the cap of its tenant)" in answer.json()["error"]["message"]
    assert server.call("/v1/completions", body, headers=ACME).status == 200
    server.call("/tenants/batch", {}, method="PUT", headers=ADMIN)


def test_the_command_sets_and_lists(server: ServerProcess) -> None:
    where = ("--url", server.url, "--api-key", "admin")
    changed = run_cli("tenants", "set", "night shift", "--cap-mib", "0.5", *where, "--json")
    names = [tenant["name"] for tenant in json.loads(changed.stdout)["tenants"]]
    assert names == ["acme", "night shift"]
    shown = run_cli("tenants", "list", *where).stdout.splitlines()
    assert re.split(r"  +", shown[2])[:3] == ["night shift", "-", "0.5"]
    refused = run_cli("tenants", "list", "--url", server.url, "--api-key", "acme-key")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "/tenants answered 403" in refused.stderr


def test_metrics_show_each_tenant(server: ServerProcess) -> None:
    server.call("/tenants/acme", {"floor_bytes": 20_000}, method="PUT", headers=ADMIN)
    text = server.wait_metric('tokenspeed_tenant_floor_bytes{tenant="acme"}', 20_000)
    assert 'tokenspeed_tenant_cap_bytes{tenant="acme"}' not in text, "it has none"
    assert re.search(r'^tokenspeed_tenant_cached_bytes\{tenant="acme"\} \d', text, re.MULTILINE)


def test_a_wrong_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text("[tenants.a]\nfloor_mib = 3\ncap_mib = 2\n")
    model = write_scripted_model(tmp_path / "m", script="ok")
    file = str(tmp_path / "tenants.toml")
    refused = run_cli("serve", str(model), "--plugins", "sdk", "--tenants", file)
    assert refused.returncode == 2
    assert "cap_mib is 2, below its floor_mib 3" in refused.stderr
