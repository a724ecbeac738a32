"""Writes docs/plugins/model-blocks.md, the blocks of models: `python docs/generate_blocks.py`."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType

import tokenspeed_sdk
from tokenspeed_sdk import layers, model_fields

PAGE = Path(__file__).with_name("plugins") / "model-blocks.md"
CONTRACTS = (
    "ModelContext",
    "ForwardContext",
    "CacheGroup",
    "CacheField",
    "gqa_fields",
    "AttentionBackend",
    "CausalLM",
    "MixtureOfExperts",
    "ExpertGroup",
    "Routing",
    "LinearWeight",
    "KernelBinder",
)
WIDTH = 100
HEAD = """# Blocks of model files

Everything that a model file imports from `tokenspeed_sdk`, with signatures; how they go together is
in [add-a-model.md](add-a-model.md). Written by `python docs/generate_blocks.py`.

Blocks bind the operators that they need. What has no block and no operator is plain torch in the
model file. Such code runs on every device that torch knows, on one rank, and no
kernel of a vendor replaces it. Keep rows independent of each other, and take dtype and device from
the tensors.
"""


def page() -> str:
    """Return the page's text."""
    sections = (
        ("Blocks", "layers", layers, layers.__all__),
        ("Fields of config.json", "model_fields", model_fields, _functions(model_fields)),
        ("Contracts", "", tokenspeed_sdk, CONTRACTS),
    )
    return HEAD + "".join(_section(*section) for section in sections)


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, member in vars(module).items()
        if inspect.isfunction(member)
        and not name.startswith("_")
        and member.__module__ == module.__name__
    ]


def _section(title: str, prefix: str, owner: object, names: Iterable[str]) -> str:
    lines = [f"\n## {title}\n"]
    for name in names:
        shown = f"{prefix}.{name}" if prefix else name
        lines.append(f"\n### `{shown}`\n\n```python\n{_stub(name, getattr(owner, name))}\n```\n")
    return "".join(lines)


def _stub(name: str, member: object) -> str:
    """Return a class or function as a stub file has it, a constant as its value."""
    if inspect.isclass(member):
        return _class(member)
    if inspect.isfunction(member):
        return _function(name, member)
    return f"{name} = {_value(member)}"


def _class(member: type) -> str:
    """Return a class as the formatter leaves it: an empty line between its parts."""
    notes = {} if is_dataclass(member) else inspect.get_annotations(member)
    parts = [f"class {member.__name__}:\n{_docstring(member)}"]
    parts += ["\n".join(f"    {name}: {_text(kind)}" for name, kind in notes.items())] * bool(notes)
    parts += [
        textwrap.indent(_function(name, function, is_class=isinstance(raw, classmethod)), "    ")
        for name, raw in vars(member).items()
        if inspect.isfunction(function := getattr(raw, "__func__", raw))
        and (not name.startswith("_") or name == "__call__" or _is_own_init(name, member))
    ]
    return "\n\n".join(parts)


def _is_own_init(name: str, member: type) -> bool:
    is_protocol = getattr(member, "_is_protocol", False) and member.__name__ != "CausalLM"
    return name == "__init__" and not is_protocol


def _function(name: str, function: object, *, is_class: bool = False) -> str:
    assert callable(function)
    signature = inspect.signature(function)
    parts = [_parameter(item) for item in signature.parameters.values()]
    parts = _with_marks(parts, list(signature.parameters.values()))
    returned = "None" if name == "__init__" else _text(signature.return_annotation)
    end = f" -> {returned}"
    line = f"def {name}({', '.join(parts)}){end}:"
    if len(line) > WIDTH - 4:
        line = f"def {name}(\n    " + ",\n    ".join(parts) + f",\n){end}:"
    doc = _docstring(function) if name != "__init__" or "Raises" in str(function.__doc__) else ""
    mark = "@classmethod\n" if is_class else ""
    return mark + (f"{line}\n{doc}" if doc else f"{line} ...")


def _with_marks(parts: list[str], items: list[inspect.Parameter]) -> list[str]:
    """Put the bare star before the first parameter that is given by keyword only."""
    kinds = [item.kind for item in items]
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.KEYWORD_ONLY not in kinds:
        return parts
    at = kinds.index(inspect.Parameter.KEYWORD_ONLY)
    return [*parts[:at], "*", *parts[at:]]


def _parameter(item: inspect.Parameter) -> str:
    star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(item.kind.name, "")
    empty = inspect.Parameter.empty
    annotation = "" if item.annotation is empty else f": {_text(item.annotation)}"
    if item.default is empty:
        return f"{star}{item.name}{annotation}"
    default = "..." if "<" in repr(item.default) else _value(item.default)
    return f"{star}{item.name}{annotation} = {default}"


def _value(value: object) -> str:
    return repr(value).replace("'", '"')  # as the formatter writes names


def _text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")


def _docstring(member: object) -> str:
    doc = inspect.cleandoc(getattr(member, "__doc__", None) or "")
    quoted = f'"""{doc}\n"""' if "\n" in doc else f'"""{doc}"""'
    return textwrap.indent(quoted, "    ") if doc else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
