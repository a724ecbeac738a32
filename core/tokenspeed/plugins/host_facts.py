"""Facts of this environment that native code depends on, read without importing anything heavy.

Names are opaque to the core: python, the C library, `cpu.FEATURE`, torch, and whatever constants
torch's `version.py` states, which is how a build says what accelerator runtime it was made for.
"""

from __future__ import annotations

import ast
import platform
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.plugins.versions import release

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CPU_INFO = Path("/proc/cpuinfo")
_FEATURE_LINES = ("flags", "Features")
_LINUX_TAG = re.compile(r"(?:manylinux|linux)_?(?:(\d+)_(\d+)_)?(\w+)")
_OLD_TAGS = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}


@lru_cache(maxsize=1)
def environment_facts() -> Mapping[str, str]:
    """Return version facts by name; a CPU feature that is there is "1"."""
    facts = {"python": platform.python_version()}
    libc, libc_version = platform.libc_ver()
    if libc:
        facts[libc] = libc_version
    facts.update(_torch_facts())
    facts.update({f"cpu.{name}": "1" for name in _cpu_features()})
    return facts


def tag_problem(tags: tuple[str, ...]) -> str:
    """Return why none of a wheel's tags fits this Python and machine, or "".

    Args:
        tags: `python-abi-platform` lines of its WHEEL file; none: nothing is known.
    """
    problems = [_problem_of(tag) for tag in tags]
    return "" if not problems or "" in problems else problems[0]


def _problem_of(tag: str) -> str:
    python, _, rest = tag.partition("-")
    abi, _, where = rest.partition("-")
    if not _fits_python(python, abi):
        have = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        return f"its wheel is for Python tag {python}-{abi}, this Python is {have}"
    return _platform_problem(where)


def _fits_python(python: str, abi: str) -> bool:
    major, minor = sys.version_info[:2]
    for name in python.split("."):
        if name in (f"py{major}", f"py{major}{minor}", f"cp{major}{minor}"):
            return True
        older = re.fullmatch(rf"cp{major}(\d+)", name)
        if older and abi == "abi3" and int(older[1]) <= minor:
            return True
    return False


def _platform_problem(where: str) -> str:
    for old, version in _OLD_TAGS.items():
        where = where.replace(old + "_", f"manylinux_{version}_")
    found = [_LINUX_TAG.fullmatch(name) for name in where.split(".")]
    if where == "any" or not sys.platform.startswith("linux") or not any(found):
        return ""
    machine, (libc, have) = platform.machine(), platform.libc_ver()
    for match in found:
        if match is None or match[3] != machine:
            continue
        if match[1] is None or libc != "glibc":
            return ""
        if release(have) >= (int(match[1]), int(match[2])):
            return ""
        return f"its wheel needs glibc {match[1]}.{match[2]}, found {have}"
    return f"its wheel is for {where}, this machine is {machine}"


def _cpu_features() -> Iterator[str]:
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:  # one processor speaks for all; the file is long on large machines
                name, _, value = line.partition(":")
                if name.strip() in _FEATURE_LINES:
                    yield from value.split()
                    return
    except OSError:
        return


def _torch_facts() -> dict[str, str]:
    spec = find_spec("torch")
    locations = spec.submodule_search_locations if spec is not None else None
    version_file = Path(locations[0]) / "version.py" if locations else None
    if version_file is None or not version_file.is_file():
        return {}
    facts: dict[str, str] = {}
    for node in ast.parse(version_file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            facts |= _version_constant(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            facts |= _version_constant(node.target.id, node.value)
    if "__version__" in facts:
        facts["torch"] = facts.pop("__version__")
    return facts


def _version_constant(name: str, value: ast.expr | None) -> dict[str, str]:
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return {}
    try:
        release(value.value)
    except ValueError:
        return {}
    return {name: value.value}
