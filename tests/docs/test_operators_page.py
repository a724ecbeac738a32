"""docs/plugins/operators.md is what the operators say, and every operator says what it must."""

from __future__ import annotations

import importlib.util
import inspect
from types import ModuleType

import pytest
from tests.support.source_tree import ROOT

from tokenspeed.contracts.kernel import Domain, Operator
from tokenspeed.ops import FAMILIES, OPERATORS
from tokenspeed.ops.compare import tensors_in
from tokenspeed.ops.declare import FLOAT_TOLERANCE

EVERY = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "docs" / "generate_operators.py"
    spec = importlib.util.spec_from_file_location("generate_operators", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(generator: ModuleType) -> None:
    text = generator.PAGE.read_text(encoding="utf-8")
    assert generator.page() == text, "run: python docs/generate_operators.py"


@EVERY
def test_an_operator_says_what_it_takes_and_gives_and_where_it_is_from(
    generator: ModuleType, operator: Operator
) -> None:
    sections = generator.sections_of(operator)
    assert sections[""].endswith(".")
    assert sections["Returns"]
    assert sections["Source"]
    described = generator.arguments_of(sections["Args"])
    parameters = inspect.signature(operator.signature).parameters
    assert set(described) == set(parameters)
    for name, item in parameters.items():
        assert described[name], name
        if str(item.annotation).startswith("torch.Tensor"):
            text = described[name]
            assert text.startswith(("(", "the same shape")) or "tensor" in text, f"{name}: {text}"


@EVERY
def test_an_operator_has_a_tolerance_for_every_dtype(operator: Operator) -> None:
    assert set(operator.tolerance) == set(FLOAT_TOLERANCE)
    assert all(0 <= bound < 0.1 for bounds in operator.tolerance.values() for bound in bounds)
    assert set(operator.overwrites) <= set(inspect.signature(operator.signature).parameters)


@EVERY
@pytest.mark.parametrize("dtype", FLOAT_TOLERANCE)
def test_cases_are_named_a_function_of_the_seed_and_meet_the_empty_one(
    operator: Operator, dtype: str
) -> None:
    assert operator.cases is not None
    first, again, other = (list(operator.cases(Domain(dtype, None, seed))) for seed in (3, 3, 4))
    names = [case.name for case in first]
    assert len(set(names)) == len(names) > 1
    tensors = [tensors_in((case.args, dict(case.options), case.calls)) for case in first]
    assert any(tensor.numel() == 0 for found in tensors for tensor in found)
    for case, found in zip(again, tensors, strict=True):
        same = tensors_in((case.args, dict(case.options), case.calls))
        pairs = zip(found, same, strict=True)
        assert all(one.nan_to_num().equal(two.nan_to_num()) for one, two in pairs)
    others = [tensors_in((case.args, dict(case.options), case.calls)) for case in other]
    assert any(
        one.shape != two.shape or not one.equal(two)
        for found, changed in zip(tensors, others, strict=True)
        for one, two in zip(found, changed, strict=True)
    )


def test_every_operator_has_one_family() -> None:
    listed = [operator.name for family in FAMILIES for operator in family.operators]
    assert len(listed) == len(set(listed)) == len(OPERATORS)
