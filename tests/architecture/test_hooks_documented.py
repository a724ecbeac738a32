"""Every hook is described in one line, and named in docs/plugins/hooks.md with its slot."""

from __future__ import annotations

import re

import pytest
from tests.support.source_tree import ROOT

from tokenspeed import hookspecs
from tokenspeed.plugins.registrar import HOOKS
from tokenspeed.plugins.slots import SLOT_OF_HOOK, SLOTS

PAGE = ROOT / "docs" / "plugins" / "hooks.md"


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_docstring_and_a_row(hook: str) -> None:
    summary = getattr(hookspecs, hook).__doc__
    assert summary
    slot = SLOTS[SLOT_OF_HOOK[hook]]
    state = "live" if slot.live else "later"
    assert f"| `{hook}` | `{slot.name}` {slot.version} | {state} | {summary} |" in PAGE.read_text()


def test_the_page_names_no_hook_that_does_not_exist() -> None:
    assert set(re.findall(r"register_\w+", PAGE.read_text())) == set(HOOKS)


def test_every_hook_takes_one_context() -> None:
    for hook in HOOKS:
        code = getattr(hookspecs, hook).__code__
        assert code.co_varnames[: code.co_argcount] == ("context",)
