"""Import arrows: rooms of the core import downwards only, plugins import the sdk only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.support.source_tree import ROOT, SOURCE_ROOTS, Import, files_under, imports_of

LAYERS = (
    {"__main__"},
    {"cli"},
    {"server"},
    {"engine", "simulator"},
    {"executor", "models"},
    {"layers", "speculation", "sampling"},
    {"scheduler", "kv", "placement", "plugins", "kernels", "ops", "hookspecs", "parsers"}
    | {"grammar"},
    {"contracts", "config", "tokenizer"},
    {"checkpoint"},
    {"errors", "env", "log"},
    {"diagnostics"},
)
HEIGHT = {room: -index for index, rooms in enumerate(LAYERS) for room in rooms}
SIDEWAYS = {("kernels", "ops"), ("plugins", "hookspecs")}
FREE = {"__init__", "__main__", "builtin"}
"""Files at the top that meet every room by lazy names."""
CORE = ROOT / "core" / "tokenspeed"
MEETS_EXTENSION = {"scheduler", "kv"}
OURS = (
    "tokenspeed",
    "tokenspeed_sdk",
    "tokenspeed_reference",
    "tokenspeed_nvidia",
    "tokenspeed_amd",
)


def room_of(file: Path) -> str:
    parts = file.relative_to(CORE).parts
    return parts[0] if len(parts) > 1 else file.stem


def target_room(item: Import) -> str | None:
    """Return the room that an import names; None when it is not in the core."""
    parts = item.target.split(".")
    if parts[0] != "tokenspeed" or len(parts) == 1:
        return None
    return None if parts[1].startswith("__") else parts[1]


def is_allowed(room: str, target: str) -> bool:
    if target == "_core":
        return room in MEETS_EXTENSION
    if target == room or (room, target) in SIDEWAYS:
        return True
    return HEIGHT[target] < HEIGHT[room]


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(file) for file in files_under("core/tokenspeed")} - FREE
    assert rooms <= set(HEIGHT), f"no layer for {sorted(rooms - set(HEIGHT))}"


def test_rooms_of_the_core_import_downwards_only() -> None:
    wrong = []
    for file in files_under("core/tokenspeed"):
        room = room_of(file)
        if room in FREE:
            continue
        for item in imports_of(file):
            target = target_room(item)
            if target is not None and not is_allowed(room, target):
                wrong.append(str(item))
    assert wrong == []


@pytest.mark.parametrize(
    ("room", "target", "expected"),
    [
        ("engine", "kernels", True),
        ("kernels", "engine", False),
        ("kernels", "ops", True),
        ("ops", "kernels", False),
        ("kernels", "plugins", False),
        ("plugins", "hookspecs", True),
        ("contracts", "config", False),
        ("tokenizer", "checkpoint", True),
        ("kv", "_core", True),
        ("engine", "_core", False),
    ],
)
def test_the_rule_itself(room: str, target: str, expected: bool) -> None:
    assert is_allowed(room, target) is expected


@pytest.mark.parametrize("package", ["reference", "nvidia", "amd"])
def test_plugins_import_only_the_sdk_and_themselves(package: str) -> None:
    own = f"tokenspeed_{package}"
    allowed = {own, "tokenspeed_sdk"}
    files = files_under(f"plugins_{package}/{own}")
    assert files
    wrong = [
        str(item)
        for file in files
        for item in imports_of(file)
        if item.target.split(".")[0] in set(OURS) - allowed
    ]
    assert wrong == []


def test_plugins_take_only_promised_names_from_the_sdk() -> None:
    import tokenspeed_sdk

    wrong = []
    for file in files_under("plugins_reference", "plugins_nvidia", "plugins_amd"):
        for item in imports_of(file):
            head, _, rest = item.target.partition(".")
            if head == "tokenspeed_sdk" and rest.split(".")[0] not in tokenspeed_sdk.__all__:
                wrong.append(str(item))
    assert wrong == []


def test_the_core_never_imports_a_plugin_or_the_sdk() -> None:
    wrong = [
        str(item)
        for file in files_under("core")
        for item in imports_of(file)
        if item.target.split(".")[0] in OURS[1:]
    ]
    assert wrong == []


def test_the_sdk_imports_no_plugin() -> None:
    wrong = [
        str(item)
        for file in files_under("sdk")
        for item in imports_of(file)
        if item.target.split(".")[0] in OURS[2:]
    ]
    assert wrong == []


def test_imports_are_absolute() -> None:
    files = files_under(*SOURCE_ROOTS)
    assert [str(item) for file in files for item in imports_of(file) if item.target[0] == "."] == []


def test_no_module_of_the_core_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count; those for type checkers do not: nobody runs them."""
    graph = {module_of(file): runtime_imports(file) for file in files_under("core/tokenspeed")}
    while leaves := [name for name, targets in graph.items() if not targets & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT / "core").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def runtime_imports(file: Path) -> set[str]:
    """Return the modules that a file imports when it runs; `from package import module` is both."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    idle = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in idle:
            continue
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{item.name}" for item in node.names}
            modules = {name for name in names if is_module(name)}
            found |= modules if len(modules) == len(names) else modules | {node.module}
    return found - {module_of(file)}


def is_module(name: str) -> bool:
    path = ROOT / "core" / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
