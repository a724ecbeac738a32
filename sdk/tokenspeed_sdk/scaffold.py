"""`tokenspeed plugins new NAME --slots ...`: renders `templates/` into a folder that works at once.

Rendering is pure: text in, text out, nothing is fetched and nothing is imported from the result.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import reason_of, shown
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.slots import API_VERSION, SLOTS
from tokenspeed.plugins.trust import FIRST_PARTY
from tokenspeed_sdk import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Environment

SUFFIX = ".j2"
PACKAGE = "package"


@dataclass(frozen=True, slots=True)
class About:
    """What a slot's stub is, and what its author replaces first."""

    what: str
    first: str


ABOUT = {
    "device": About("the device: memory, streams", "`find_devices` in `probe.py`"),
    "attention": About("attention over the paged cache", "`write`"),
    "moe": About("the experts of mixture models", "`prepare`, `forward`"),
    "weight_format": About("how checkpoint files are read", "`open`"),
    "communicator": About("collectives between ranks", "`all_reduce`"),
    "sampler": About("logits to tokens", "`sample` of greedy rows"),
    "kv_store": About("cache blocks outside the engine", "`put` and `get`"),
    "speculator": About("drafts for the next tokens", "`propose`"),
    "model": About("an architecture", "`make_attention`, `make_mlp`"),
}
"""The stable slots, in the order of a bring-up."""
MODEL_ALONE = ("model",)
STANDALONE = frozenset({"model", "operator"})
"""Slots whose stubs lean on nothing of the reference's, and are imported by name alone."""

EXPERIMENTAL_ABOUT = {"operator": About("kernels of single operators", "`rms_norm`")}
"""Slots that have to be named and opted in to."""
TEMPLATES = {**ABOUT, **EXPERIMENTAL_ABOUT}

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_ID = 63
"""Characters of an id that manifests may have."""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """What is asked for.

    Args:
        id: plugin id: lower-case words joined by "-".
        slots: of TEMPLATES, without repeats.
        native: with a kernel in C++; needs slot attention.
    Raises:
        ConfigError: a bad or reserved id, an unknown slot, none, or native without attention.
    """

    id: str
    slots: tuple[str, ...]
    native: bool = False

    def __post_init__(self) -> None:
        _check_id(self.id)
        if not self.slots:
            raise ConfigError(f"no plugin is made: it fills no slot; allowed: {_known()}; name one")
        for slot in self.slots:
            _check_slot(slot)
        if self.native and "attention" not in self.slots:
            raise ConfigError(
                f"no plugin is made: --native with slots {', '.join(self.slots)}; the native part "
                "is a kernel of slot attention; add attention to --slots or leave --native out"
            )

    @property
    def is_experimental(self) -> bool:
        """Say whether whoever serves must opt in."""
        return any(slot in EXPERIMENTAL_ABOUT for slot in self.slots)

    @property
    def package(self) -> str:
        """Name of the import package."""
        return "tokenspeed_" + self.id.replace("-", "_")


def render(scaffold: Scaffold) -> dict[str, str]:
    """Return path -> text of every file, paths relative to the plugin's folder."""
    environment = _environment()
    names = _names(scaffold)
    return {
        path: environment.get_template(template).render(names)
        for path, template in _files(templates_folder(), scaffold)
    }


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(templates_folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # what is rendered is Python and TOML, not HTML
    )


def write(scaffold: Scaffold, folder: Path) -> list[Path]:
    """Render into `folder`, which must not exist or be empty; return the files written.

    Raises:
        ConfigError: the folder holds files, or cannot be written.
    """
    files = render(scaffold)
    written = []
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"no plugin is made: {folder} exists and is not empty; a new or empty folder is "
                "needed; name another with --folder"
            )
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            written.append(target)
    except OSError as error:
        raise ConfigError(
            f"no plugin is made: {folder} cannot be written ({reason_of(error)}); "
            "a writable folder is needed; name another with --folder"
        ) from error
    return written


def templates_folder() -> Path:
    """Return the folder of the templates that this wheel carries."""
    return Path(str(resources.files("tokenspeed_sdk") / "templates"))


def _files(root: Path, scaffold: Scaffold) -> Iterator[tuple[str, str]]:
    """Yield (path in the plugin, name of the template)."""
    yield from _tree(root, "common", scaffold)
    for slot in scaffold.slots:
        for template in sorted((root / "slots" / slot).glob("*" + SUFFIX)):
            name = template.name.removesuffix(SUFFIX)
            if name != "hook.py":
                yield f"{scaffold.package}/{name}", template.relative_to(root).as_posix()
    if scaffold.native:
        yield from _tree(root, "native", scaffold)


def _tree(root: Path, part: str, scaffold: Scaffold) -> Iterator[tuple[str, str]]:
    for template in sorted((root / part).rglob("*" + SUFFIX)):
        relative = PurePosixPath(template.relative_to(root / part).as_posix().removesuffix(SUFFIX))
        words = (scaffold.package if word == PACKAGE else word for word in relative.parts)
        yield "/".join(words), template.relative_to(root).as_posix()


def _names(scaffold: Scaffold) -> dict[str, Any]:
    return {
        "id": scaffold.id,
        "package": scaffold.package,
        "class_name": "".join(word.title() for word in scaffold.id.split("-")),
        "distribution": f"tokenspeed-{scaffold.id}",
        "slots": sorted(scaffold.slots, key=list(TEMPLATES).index),
        "imports": _imports(scaffold),
        "opt_in": f" --allow-experimental {scaffold.id}" if scaffold.is_experimental else "",
        "native": scaffold.native,
        "builds": bool(set(scaffold.slots) - STANDALONE),
        "device_kind": scaffold.id if "device" in scaffold.slots else "*",
        "hooks": {**{slot: SLOTS[slot].hooks[0] for slot in ABOUT}, "operator": "register_kernels"},
        "versions": {slot: SLOTS[slot].version for slot in TEMPLATES},
        "api": f">={API_VERSION},<{int(API_VERSION.split('.', maxsplit=1)[0]) + 1}",
        "about": TEMPLATES,
    }


def _imports(scaffold: Scaffold) -> str:
    """Return what the plugin object takes from the sdk."""
    names = ["hookimpl", "lazy"]
    names += ["Offer"] if set(scaffold.slots) - {"operator"} else []
    names += ["Band", "KernelOffer"] if "operator" in scaffold.slots else []
    return ", ".join(sorted(names))


def _check_slot(slot: str) -> None:
    if slot in TEMPLATES:
        return
    if slot in SLOTS:
        raise ConfigError(
            f"no plugin is made: slot {slot!r} has no template; those that have one: {_known()}; "
            "leave it out, docs/plugins/index.md shows what is written by hand"
        )
    raise ConfigError(f"no plugin is made: unknown slot {slot!r}; {suggestion(slot, TEMPLATES)}")


def _check_id(plugin_id: str) -> None:
    if not _ID.fullmatch(plugin_id) or len(plugin_id) > MAX_ID:
        raise ConfigError(
            f"no plugin is made: its name is {shown(plugin_id)}; lower-case words of letters and "
            f"digits joined by '-' are allowed, {MAX_ID} characters at most; choose one such as "
            "acme"
        )
    if plugin_id in FIRST_PARTY or plugin_id in {"core", "auto"}:
        raise ConfigError(
            f"no plugin is made: the name {plugin_id!r} is taken by TokenSpeed itself; choose "
            "another"
        )


def _known() -> str:
    return ", ".join(TEMPLATES)
