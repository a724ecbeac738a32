"""Every error about plugins is raised with the id of a diagnostic that exists."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from tests.support.source_tree import ROOT, SOURCE_ROOTS, files_under

from tokenspeed.diagnostics import DIAGNOSTICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDENTIFIED = {"PluginError", "CapabilityError"}
CARRIERS = {"id", "problem_id"}
"""Attributes that hand on the id of another error."""


def calls_in(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in IDENTIFIED:
                yield node


def problem_of(call: ast.Call) -> str:
    """Return what is wrong with the id of a raise site, or ""."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}.get("id")
    if given is None:
        return "names no id"
    if isinstance(given, ast.Constant):
        return "" if given.value in DIAGNOSTICS else f"names the unknown id {given.value!r}"
    is_carried = isinstance(given, ast.Attribute) and given.attr in CARRIERS
    return "" if is_carried else f"computes its id: {ast.unparse(given)}"


def all_calls() -> Iterator[tuple[Path, ast.Call]]:
    for root in SOURCE_ROOTS:
        for file in files_under(root):
            for call in calls_in(ast.parse(file.read_text(encoding="utf-8"))):
                yield file.relative_to(ROOT), call


def test_every_raise_site_names_a_diagnostic() -> None:
    found = [f"{file}:{call.lineno} {problem_of(call)}" for file, call in all_calls()]
    assert [text for text in found if not text.endswith(" ")] == []
    assert len(found) > 50


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("PluginError('x', id='plugin-unknown')", ""),
        ("errors.PluginError('x', id=failure.id)", ""),
        ("PluginError('x')", "names no id"),
        ("CapabilityError('x', id='nope')", "names the unknown id 'nope'"),
        ("PluginError('x', id=make())", "computes its id: make()"),
    ],
)
def test_the_rule_bites(code: str, problem: str) -> None:
    (call,) = calls_in(ast.parse(code))
    assert problem_of(call) == problem
