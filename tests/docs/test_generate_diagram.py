"""docs/control-plane.md draws the state machine that the extension runs."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from tests.support.source_tree import ROOT

from tokenspeed.scheduler import transition_table


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "docs" / "generate_diagram.py"
    spec = importlib.util.spec_from_file_location("generate_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generator: ModuleType) -> None:
    text = generator.PAGE.read_text(encoding="utf-8")
    assert generator.page(text, transition_table()) == text, "run: python docs/generate_diagram.py"


def test_the_chart_has_an_edge_for_every_target_and_no_other(generator: ModuleType) -> None:
    drawn = set()
    for line in generator.diagram(transition_table()).splitlines():
        ends, is_edge, events = line.strip().partition(": ")
        source, is_arrow, target = ends.partition(" --> ")
        if is_edge and is_arrow and source != "[*]":
            drawn |= {(source, event, target) for event in events.split(", ")}
    wanted = {
        (state, event, target)
        for state, event, targets, _ in generator.moves(transition_table())
        for target in targets
    }
    assert drawn == wanted
    assert ("Submitted", "Load", "Loading") in drawn
    assert ("Retracting", "Saved", "Retracted") in drawn


def test_a_changed_table_changes_the_page(generator: ModuleType) -> None:
    text = generator.PAGE.read_text(encoding="utf-8")
    cells = [("Submitted", "Admit", "To<Finished>")]
    assert "Submitted --> Finished: Admit" in generator.page(text, cells)
