"""Examines installed plugins: what is wrong, what to do, how far a device plugin has come.

Every check that runs a plugin's code runs it in a child process with a time limit. A stranger's
code runs only when the plugin was named. Model files are tried by `models/health.py`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.diagnostics import DIAGNOSTICS
from tokenspeed.errors import PluginError
from tokenspeed.plugins.child_process import ChildProcess
from tokenspeed.plugins.compatibility import opt_in_note
from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.listing import find_problem_error
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.probe import run_probes
from tokenspeed.plugins.rungs import falls_back, next_rung, rung_of, shown_by
from tokenspeed.plugins.slots import SLOTS
from tokenspeed.plugins.stated import stated_offers
from tokenspeed.plugins.trust import CORE_ID, is_first_party

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.plugins.discovery import FoundPlugin

OK, NOTE, PROBLEM = "ok", "note", "problem"
LOAD_TIMEOUT_S = 60.0
CHILD = "tokenspeed.plugins.doctor_child"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Args:
        verdict: "ok", "note" (works, or cannot be told) or "problem".
        fix: what to do; "" where nothing is.
        id: diagnostic; "" where there is none.
    """

    plugin: str
    check: str
    verdict: str
    text: str
    fix: str = ""
    id: str = ""


def examine(plugin_id: str | None = None) -> list[Finding]:
    """Examine every installed plugin, or one that is named; of the core's own there is nothing.

    Raises:
        PluginError: no such plugin.
    """
    found = discover()
    names = [CORE_ID, *found] if plugin_id is None else [plugin_id]
    if plugin_id is not None and plugin_id not in (CORE_ID, *found):
        raise PluginError(
            f"unknown plugin {plugin_id!r}; {suggestion(plugin_id, [CORE_ID, *found])}",
            id="plugin-unknown",
        )
    findings: list[Finding] = []
    for name in names:
        plugin = found.get(name)
        if plugin is not None:
            findings += _plugin(plugin, is_named=plugin_id is not None)
    return findings


def _plugin(plugin: FoundPlugin, *, is_named: bool) -> Iterator[Finding]:
    error = find_problem_error(plugin)
    if error is not None:
        fix = DIAGNOSTICS[error.id].fix
        yield Finding(plugin.id, "installed", PROBLEM, error.message, fix, error.id)
        return
    copies = f"; further copies, not used: {', '.join(plugin.shadowed)}" if plugin.shadowed else ""
    text = f"{plugin.distribution} {plugin.version} in {plugin.path}{copies}"
    yield Finding(plugin.id, "installed", NOTE if copies else OK, text)
    if not (is_first_party(plugin) or is_named):
        text = "not run: a stranger's code runs only when it is named"
        fix = f"tokenspeed plugins doctor {plugin.id}"
        yield Finding(plugin.id, "device", NOTE, text, fix)
        return
    assert plugin.manifest is not None, f"{plugin.id} passed the check without a manifest"
    if not is_first_party(plugin) and (note := opt_in_note(plugin.manifest)):
        yield Finding(plugin.id, "opt-in", NOTE, note)
    has_device = True
    for finding in _device(plugin):
        has_device = finding.verdict == OK
        yield finding
    yield from _loaded(plugin, has_device=has_device)


def _device(plugin: FoundPlugin) -> Iterator[Finding]:
    assert plugin.manifest is not None, f"{plugin.id} passed the check without a manifest"
    if not plugin.manifest.probe:
        return
    kinds = {plugin.id: plugin.manifest.device_kinds}
    result = run_probes({plugin.id: plugin.manifest.probe}, kinds)[plugin.id]
    if result.devices:
        texts = [
            f"{facts.count} x {facts.name} (kind {facts.kind}, {facts.arch}, "
            f"{facts.memory_bytes / 2**30:.1f} GiB)"
            for facts in result.devices
        ]
        yield Finding(plugin.id, "device", OK, "; ".join(texts))
        return
    # A machine without the device is no broken installation.
    verdict = NOTE if result.id in ("device-not-found", "plugin-refused") else PROBLEM
    fix = DIAGNOSTICS[result.id].fix if result.id in DIAGNOSTICS else ""
    yield Finding(plugin.id, "device", verdict, result.reason, fix, result.id)


def _loaded(plugin: FoundPlugin, *, has_device: bool) -> Iterator[Finding]:
    """Load the plugin in a child, where its device allows it; else look at what it states."""
    libraries = _native_libraries(plugin)
    answer: dict[str, Any] = {}
    if has_device or libraries:
        answer = _ask_child(plugin.id, libraries)
        yield from _libraries(plugin.id, answer)
    if has_device and "error" in answer:
        fix = DIAGNOSTICS[answer["id"]].fix if answer["id"] in DIAGNOSTICS else ""
        causes = "".join(f"; caused by {line}" for line in answer.get("causes", ()))
        yield Finding(plugin.id, "loads", PROBLEM, answer["error"] + causes, fix, answer["id"])
    elif has_device:
        count = len(answer["offers"])
        yield Finding(plugin.id, "loads", OK, f"{count} offers")
    yield from _ladder(plugin, answer)


def _libraries(plugin_id: str, answer: dict[str, Any]) -> Iterator[Finding]:
    for path, problem in answer.get("libraries", {}).items():
        name = Path(path).name
        if problem:
            fix = "install the library that it names, or another build of the wheel"
            yield Finding(plugin_id, "library", PROBLEM, f"{name}: {problem}", fix, "abi-mismatch")
        else:
            yield Finding(plugin_id, "library", OK, name)


def _ladder(plugin: FoundPlugin, answer: dict[str, Any]) -> Iterator[Finding]:
    """Say which rung a device plugin stands on, and what still falls back."""
    assert plugin.manifest is not None, f"{plugin.id} passed the check without a manifest"
    if "device" not in plugin.manifest.slots:
        return
    offers, source = answer.get("offers"), "loaded"
    if offers is None:
        source = "by its manifest"
        offers = [
            {
                "slot": slot,
                "name": offer.name,
                "operator": getattr(offer, "operator", ""),
                "graph_safe": getattr(offer, "graph_safe", False),
            }
            for slot, offer in stated_offers(plugin.manifest)
        ]
    rung = rung_of(shown_by(offers))
    text = f"{rung or 'below R0'} ({source}); next is {next_rung(rung) or 'nothing'}"
    yield Finding(plugin.id, "rung", OK if rung else NOTE, text)
    live = {slot.name for slot in SLOTS.values() if slot.live}
    operators = answer.get("operators") or _ask_child(CORE_ID, []).get("operators", ())
    missing = falls_back(offers, operators, live)
    if missing:
        yield Finding(plugin.id, "falls back", NOTE, f"to reference: {', '.join(missing)}")


def _native_libraries(plugin: FoundPlugin) -> list[str]:
    """Return the shared objects inside the plugin's package."""
    spec = find_spec(plugin.target.partition(":")[0].partition(".")[0])
    folders = spec.submodule_search_locations if spec is not None else None
    return sorted(str(path) for folder in folders or () for path in Path(folder).rglob("*.so"))


def _ask_child(plugin_id: str, libraries: list[str]) -> dict[str, Any]:
    """Run the child and return its answer; its death is an answer too."""
    limit = str(math.ceil(LOAD_TIMEOUT_S) + 1)
    child = ChildProcess(CHILD, (plugin_id, limit, *libraries), environ=_environ())
    ended = child.finish(LOAD_TIMEOUT_S)
    if ended.code is None:
        return {"error": f"loading took over {LOAD_TIMEOUT_S:g} s", "id": "probe-timeout"}
    try:
        answer: dict[str, Any] = json.loads(ended.output)
    except json.JSONDecodeError:
        how = ended.signal_name or f"code {ended.code}"
        text = f"loading ended its process with {how}: {ended.last_words or 'no message'}"
        return {"error": text, "id": "probe-crashed"}
    return answer


def _environ() -> dict[str, str]:
    """Let the loader find torch's libraries, which a plugin's extension may be linked with."""
    spec = find_spec("torch")
    locations = spec.submodule_search_locations if spec is not None else None
    folders = [str(Path(locations[0]) / "lib")] if locations else []
    known = os.environ.get("LD_LIBRARY_PATH", "")
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*folders, *filter(None, [known])])}
