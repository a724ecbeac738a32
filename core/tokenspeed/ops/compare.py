"""Compares an implementation with an operator's definition, case by case.

This is the whole of numeric conformance: `compare` runs both, the definition in float64, and
measures the largest error in units of the operator's tolerance. Imported by tests and by the
conformance kit; backends and samplers get their operators' signatures in `backends.py`.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import TRAITS, unmet_clauses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.kernel import Case, Domain, Operator


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far an implementation is from the definition in one case.

    Args:
        case: its name.
        error: the largest one in units of the tolerance; inf where no number says it.
        where: the result or argument that is furthest off, and how.
    """

    case: str
    error: float
    where: str

    @property
    def agrees(self) -> bool:
        """Whether the implementation is within the tolerance."""
        return self.error <= 1


def cases_within(operator: Operator, domain: Domain) -> Iterator[Case]:
    """Yield the operator's cases that an offer with the domain's traits takes."""
    assert operator.cases is not None, f"operator {operator.name} has no cases"
    for case in operator.cases(domain):
        if domain.traits is None or not unmet_clauses(case.traits, domain.traits):
            yield case


def steps_outside(
    declared: Mapping[str, tuple[object, ...]], request: Mapping[str, object]
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (trait, request) that differ from an accepted request in one trait nobody declared."""
    for name, trait in TRAITS.items():
        have = declared.get(name, ())
        value = _undeclared(trait.neutral, have, request.get(name))
        if "*" not in have and value not in (trait.neutral, *have):
            yield name, {**request, name: value}


def compare(
    operator: Operator,
    implementation: Callable[..., Any],
    case: Case,
    *,
    dtype: str,
    device: torch.device | str = "cpu",
) -> Outcome:
    """Run both on copies of the case and compare results and what was written in place.

    Args:
        implementation: a callable of the operator's signature.
        dtype: that the case was drawn in.
        device: that the implementation computes on.
    """
    import torch

    names = inspect.signature(operator.signature).bind(*case.args, **case.options).arguments
    wide = {name: map_tensors(value, _widened) for name, value in names.items()}
    own = {name: copied(value, device) for name, value in names.items()}
    expected = _results(operator.signature, operator, case, wide, _widened)
    got = _results(implementation, operator, case, own, lambda x: _copy(x, device))
    tolerance = operator.tolerance.get(dtype, (0.0, 0.0))
    outcomes = [Outcome(case.name, math.inf, f"{len(got)} results for {len(expected)}")]
    if len(got) == len(expected):
        dtypes = [*operator.result_dtypes, *[""] * (len(got) - len(operator.result_dtypes))]
        outcomes = [
            Outcome(
                case.name,
                *_error(f"result {i}", one, want, tolerance, getattr(torch, named or dtype)),
            )
            for i, (one, want, named) in enumerate(zip(got, expected, dtypes, strict=True))
        ]
    outcomes += _arguments(operator, case, names, (own, wide), tolerance)
    return max(outcomes, key=lambda outcome: outcome.error, default=Outcome(case.name, 0.0, ""))


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with every tensor in it replaced: containers and dataclasses are rebuilt."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, dict):
        return {name: map_tensors(item, function) for name, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        mapped = {
            item.name: map_tensors(getattr(value, item.name), function) for item in fields(value)
        }
        return replace(value, **mapped)
    return value


def copied(value: Any, device: torch.device | str) -> Any:
    """Return a value with every tensor copied to a device, strides kept."""
    return map_tensors(value, lambda tensor: _copy(tensor, device))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return every tensor in a value, in order."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def _results(
    function: Callable[..., Any],
    operator: Operator,
    case: Case,
    arguments: Mapping[str, Any],
    move: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    args = tuple(list(arguments.values())[: len(case.args)])
    result = function(*args, **{name: arguments[name] for name in case.options})
    if not case.calls:
        return tensors_in(result)
    return [
        tensor for call in case.calls for tensor in tensors_in(result(*map_tensors(call, move)))
    ]


def _arguments(
    operator: Operator,
    case: Case,
    before: Mapping[str, Any],
    after: tuple[Mapping[str, Any], Mapping[str, Any]],
    tolerance: tuple[float, float],
) -> Iterator[Outcome]:
    """Yield what was written in place, and what should not have been."""
    own, wide = after
    for name, value in before.items():
        leaves = zip(tensors_in(value), tensors_in(own[name]), tensors_in(wide[name]), strict=True)
        for old, got, want in leaves:
            if not _same(want, _widened(old)):
                error = _error(f"argument {name}", got, want, tolerance, old.dtype)
                yield Outcome(case.name, *error)
            elif name not in operator.overwrites and not _same(got.cpu(), old):
                yield Outcome(case.name, math.inf, f"argument {name} was overwritten")


def _error(
    what: str,
    got: torch.Tensor,
    want: torch.Tensor,
    tolerance: tuple[float, float],
    dtype: torch.dtype,
) -> tuple[float, str]:
    """Return the largest error in units of the tolerance, and where it is."""
    if got.shape != want.shape:
        return math.inf, f"{what} has shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if got.is_floating_point() != want.is_floating_point():
        return math.inf, f"{what} is {got.dtype}"
    if got.is_floating_point() and got.dtype != dtype:
        return math.inf, f"{what} is {got.dtype}, not {dtype}"
    if got.numel() == 0:
        return 0.0, what
    relative, absolute = tolerance
    one, two = got.cpu().double(), want.double()
    off = (one - two).abs() / (absolute + relative * two.abs())
    off = off.masked_fill((one == two) | (one.isnan() & two.isnan()), 0.0).nan_to_num(math.inf)
    place = int(off.argmax())
    values = f"{float(one.flatten()[place]):g}, not {float(two.flatten()[place]):g}"
    return float(off.flatten()[place]), f"{what} at {place}: {values}"


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.to(torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def _copy(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy with the same strides, so that what lies in a wider tensor still does."""
    import torch

    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return copy.copy_(tensor)


def _undeclared(neutral: object, have: tuple[object, ...], wanted: object) -> object:
    """Return a value near the declared ones, or near the one wanted."""
    for value in (wanted, *have, neutral):
        if isinstance(value, bool):
            return not neutral
        if isinstance(value, (int, float)):
            return 1 + max(item for item in (value, *have) if isinstance(item, (int, float)))
    return "undeclared"
