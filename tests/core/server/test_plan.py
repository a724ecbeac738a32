"""`GET /v1/engine/plan` answers why each offer was chosen, and which plugins were left out."""

from __future__ import annotations

from tests.support.server import ServerProcess


def test_the_plan_holds_every_decision_with_its_candidates(hash_server: ServerProcess) -> None:
    report = hash_server.call("/v1/engine/plan").json()
    plan = report["plan"]
    assert plan["digest"] == report["plan_digest"]
    assert plan["slots"]["model"]["plugin"] == "sdk"
    for entry in [*plan["slots"].values(), *plan["kernels"]]:
        winners = [item for item in entry["record"]["candidates"] if item["verdict"] == "won"]
        assert [item["offer"] for item in winners] == [f"{entry['plugin']}/{entry['offer']}"]
        assert winners[0]["reason"]


def test_the_plan_says_what_became_of_each_plugin(hash_server: ServerProcess) -> None:
    plugins = hash_server.call("/v1/engine/plan").json()["plan"]["plugins"]
    states = {item["id"]: item["state"] for item in plugins}
    assert states["core"] == states["reference"] == states["sdk"] == "registered"
    assert states["nvidia"] == "not enabled"


def test_no_hook_is_called_while_serving(hash_server: ServerProcess) -> None:
    body = {"model": hash_server.model, "prompt": [1, 2, 3], "max_tokens": 1000, "temperature": 0}
    answer = hash_server.call("/v1/completions", body)
    assert answer.status == 200
    assert answer.json()["usage"]["completion_tokens"] == 1000
    assert hash_server.metric("tokenspeed_hook_calls_after_freeze_total") == 0
