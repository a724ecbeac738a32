"""Writes docs/plugins/operators.md from the operators themselves.

`python docs/generate_operators.py` rewrites the page; `--check` only says whether it is current.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed import ops
from tokenspeed.contracts import placement
from tokenspeed.contracts.kernel import Domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokenspeed.contracts.kernel import Operator

PAGE = Path(__file__).parent / "plugins" / "operators.md"
SECTIONS = ("Args", "Returns", "Raises", "Source")
SHOWN_CASES = 8
HEAD = """# Operators

Everything a model computes goes through an operator: a name, a signature, a formula in plain torch
(its *definition*), a tolerance and cases. A kernel, or a backend of another slot, computes what the
definition says; evaluated in float64 it is what implementations are compared with. Written by
`python docs/generate_operators.py` from `core/tokenspeed/ops`.

{rules}

## Comparing your own

```python
from tokenspeed_sdk import Domain, ops

operator = ops.OPERATORS["norm.rms"]
for outcome in ops.backends.outcomes(operator, my_offer, Domain("bfloat16", my_offer.requires)):
    assert outcome.agrees, outcome
```

`my_offer` is what you register: a `KernelOffer`, or an `Offer` of the slot that the operator names.
Cases are drawn for the values that it declares: a `head_dim` of 192 is met by cases of 192. An
error of 1 is the tolerance: |got - wanted| = absolute + relative |wanted|, element by element;
samplers are judged by the counts of many draws. What an operator may not overwrite is checked too.

An offer that declares `deterministic` says that a row's result does not depend on its batch;
`ops.alone.depends_on_batch(operator, ops.backends.implementation(operator, my_offer), case)` cuts a
case into pieces and says where a bit differs.

A request for any operator carries the [traits](traits.md) `device`, `arch` and `dtype`, and what
its section says that it carries; an offer that does not list one of them is refused.
`explain --why-not PLUGIN/NAME` says which, and so does level C2 of the kit.

## Placement lines

One line says how an operator's tensors may lie over several ranks; the compiler finds all the rest
from it ([placement.md](../placement.md)).

{notation}

Arguments are those of the definition; of an operator that prepares a callable, the call's come
first. `attention.paged` is as layers call it: queries, keys, values, sinks. What a line leaves out
is not cut: an argument that is `-` is the rank's own (rows of its step, its cache) or the same
everywhere.

An operator of a plugin carries its line too, and there is nothing else to register; without one
every rank computes it whole. A line is right if the definition on cut arguments, put together
(joined, or summed), is the definition on the whole: level C2 of the kit asks that of every operator
that a plugin brings, for each letter and each pair of letters over 2 and 3 ranks, on its own cases.

## All operators
"""


def page() -> str:
    """Return the page's text."""
    rules = (ops.__doc__ or "").split("\n\n", 1)[1].strip()
    notation = (placement.__doc__ or "").split("\n\n", 2)[2].strip()
    parts = [HEAD.format(rules=rules, notation=notation), _index(), *_families()]
    return "\n".join(parts).rstrip() + "\n"


def sections_of(operator: Operator) -> dict[str, str]:
    """Return the docstring's sections: "" is what stands before the first."""
    found: dict[str, list[str]] = {"": []}
    current = found[""]
    for line in (inspect.getdoc(operator.signature) or "").splitlines():
        match = re.match(rf"({'|'.join(SECTIONS)}):\s*(.*)", line)
        if match:
            current = found.setdefault(match[1], [match[2]] if match[2] else [])
        else:
            current.append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in found.items()}


def arguments_of(text: str) -> dict[str, str]:
    """Return argument name -> meaning; one entry may describe several names."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", text):
        names, _, meaning = entry.partition(": ")
        for name in names.split(", "):
            found[name] = " ".join(meaning.split())
    return found


def _index() -> str:
    lines = ["| operator | what it computes | implemented by |", "|---|---|---|"]
    for operator in ops.OPERATORS.values():
        summary = sections_of(operator)[""].splitlines()[0]
        anchor = operator.name.replace(".", "")
        by = "kernels" if operator.slot == "operator" else f"slot `{operator.slot}`"
        lines.append(f"| [`{operator.name}`](#{anchor}) | {_cell(summary)} | {by} |")
    return "\n".join(lines) + "\n"


def _families() -> Iterator[str]:
    for family in ops.FAMILIES:
        yield f"## {family.title}\n"
        for operator in family.operators:
            yield "\n".join(_operator(operator))


def _operator(operator: Operator) -> Iterator[str]:
    sections = sections_of(operator)
    yield f"### `{operator.name}`\n\n{sections['']}\n"
    yield f"```python\n{_signature(operator)}\n```\n"
    for name, meaning in arguments_of(sections["Args"]).items():
        yield f"- `{name}`: {meaning}"
    yield f"- returns: {_line(sections['Returns'])}\n"
    yield f"{_tolerance(operator.tolerance)}{_scratch(operator)}\n"
    yield f"Placement: `{operator.placement}`\n"
    yield f"{_traits(operator)}\n"
    yield f"Cases: {_cases(operator)}.\n"
    yield f"Source: {_line(sections['Source'])}\n"


def _signature(operator: Operator) -> str:
    function = operator.signature
    name = getattr(function, "__name__", operator.name)
    lines = []
    star = False
    for item in inspect.signature(function).parameters.values():
        if item.kind is item.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        default = "" if item.default is item.empty else f" = {item.default!r}"
        lines.append(f"    {item.name}: {item.annotation}{default},")
    joined = "\n".join(lines)
    return f"def {name}(\n{joined}\n) -> {inspect.signature(function).return_annotation}"


def _tolerance(tolerance: Mapping[str, tuple[float, float]]) -> str:
    if all(bounds == (0.0, 0.0) for bounds in tolerance.values()):
        return "Tolerance: exact in every dtype."
    parts = (
        f"{dtype} {absolute:g} + {relative:g} |x|"
        for dtype, (relative, absolute) in tolerance.items()
    )
    return f"Tolerance: {', '.join(parts)}."


def _scratch(operator: Operator) -> str:
    names = ", ".join(f"`{name}`" for name in operator.overwrites)
    return f" May be overwritten: {names}." if names else ""


def _traits(operator: Operator) -> str:
    """Say what an offer must declare beside device, arch and dtype to be chosen at all."""
    assert operator.cases is not None
    names = dict.fromkeys(name for case in operator.cases(Domain()) for name in case.traits)
    if not names:
        return "Requests carry no trait of its own."
    return f"Requests carry {', '.join(f'`{name}`' for name in names)}."


def _cases(operator: Operator) -> str:
    assert operator.cases is not None
    names = [case.name for case in operator.cases(Domain())]
    more = f"; and {len(names) - SHOWN_CASES} more" if len(names) > SHOWN_CASES else ""
    return "; ".join(names[:SHOWN_CASES]) + more


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Iterable[str]) -> int:
    """Rewrite the page, or with --check compare it."""
    wanted = page()
    if "--check" not in arguments:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{PAGE} is not what the operators say; run: python docs/generate_operators.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
