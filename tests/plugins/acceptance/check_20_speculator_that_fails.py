"""Check 20: a speculator that raises on step 50 is detached; the answer is unchanged, and told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

LAST_GOOD_STEP = 49
PERIOD = 26
TEXT = "abcdefghijklmnopqrstuvwxyz" * 16
BODY = f"""
class Copier:
    facts = SpeculatorFacts()

    def __init__(self, **options):
        self.known = {{}}
        self.steps_left = {LAST_GOOD_STEP}

    def start(self, request_id, token_ids):
        self.known[request_id] = token_ids.tolist()

    def extend(self, request_id, token_ids):
        self.known[request_id] += token_ids

    def propose(self, wanted):
        self.steps_left -= 1
        if self.steps_left < 0:
            raise RuntimeError("this is step 50")
        return {{
            key: Draft(self.known[key][-{PERIOD}:][:most])
            for key, most in wanted.items() if len(self.known[key]) >= {PERIOD}
        }}

    def end(self, request_id):
        del self.known[request_id]

class Plugin:
    @hookimpl
    def register_speculators(self, context):
        context.offer(Offer("speculator", "copier", Copier))

plugin = Plugin()
"""


def test_20_speculator_that_fails(wheels: WheelFolder, tmp_path: Path) -> None:
    wheels.install("acme", BODY, slots='speculator = "1.0"')
    model = write_scripted_model(tmp_path / "model", script=TEXT)
    flags = ("--plugins", "sdk,acme", "--speculator", "acme/copier", "--max-drafts", "3")
    with ServerProcess(model, tmp_path, *flags, environ=wheels.environ()) as server:
        body = {"model": server.model, "prompt": "go", "temperature": 0, "max_tokens": len(TEXT)}
        answer = server.call("/v1/completions", body)
        assert answer.status == 200, answer.body
        assert answer.json()["choices"][0]["text"] == TEXT
        details = answer.json()["usage"]["completion_tokens_details"]
        server.wait_metric("tokenspeed_speculator_detached", 1)
        assert server.metric("tokenspeed_speculator_failures_total") == 3
        accepted = server.metric("tokenspeed_accepted_tokens_total")
        drafted = server.metric("tokenspeed_drafted_tokens_total")
        assert 30 < accepted <= drafted <= 3 * LAST_GOOD_STEP
        assert details["accepted_prediction_tokens"] == accepted
        assert details["rejected_prediction_tokens"] == drafted - accepted
        state = server.call("/v1/engine/state").json()
        again = server.call("/v1/completions", body).json()["choices"][0]["text"]
    assert [alert["name"] for alert in state["alerts"]] == ["speculator_detached"]
    assert "acme/copier failed 3 times" in state["alerts"][0]["message"]
    assert "this is step 50" in state["alerts"][0]["message"]
    assert state["speculation"]["state"] == "detached"
    assert state["speculation"]["accepted"] == accepted
    assert again == TEXT
    assert "[speculator-detached]" in server.log.read_text()
