"""An API process serves the engine that it was started for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tokenspeed.errors import PluginError
from tokenspeed.server.api_process import check_engine


def test_an_engine_with_another_plan_is_refused_with_both_digests() -> None:
    report = SimpleNamespace(plan_digest="aaaa")
    check_engine("aaaa", report)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match=r"api process .* plan aaaa .* with bbbb") as caught:
        check_engine("bbbb", report)  # type: ignore[arg-type]
    assert caught.value.id == "plan-differs"
