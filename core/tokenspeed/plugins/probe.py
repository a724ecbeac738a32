"""Looks for devices: runs each plugin's probe in a child process with a time limit.

A probe touches drivers and native libraries: it may crash, hang or print. In a child that becomes
a reason; the launcher survives. All probes of a start run at the same time.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import MAX_TEXT
from tokenspeed.plugins.child_process import ChildProcess
from tokenspeed.plugins.facts_check import facts_of
from tokenspeed.plugins.names import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.device import DeviceFacts
    from tokenspeed.plugins.child_process import Ended

PROBE_TIMEOUT_S = 5.0
CHILD = "tokenspeed.plugins.probe_child"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Devices found, or why none: exactly one of the two is empty.

    Args:
        id: diagnostic of the reason.
        causes: what lay behind it in the child, a line each.
    """

    devices: tuple[DeviceFacts, ...] = ()
    reason: str = ""
    id: str = ""
    causes: tuple[str, ...] = ()


def run_probes(
    targets: Mapping[str, str],
    kinds: Mapping[str, tuple[str, ...]],
    *,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> dict[str, ProbeResult]:
    """Probe all plugins at once.

    Args:
        targets: plugin id -> `module:function`; the function takes nothing, returns DeviceFacts,
            raises PluginError when there is no device, and imports no torch.
        kinds: plugin id -> the device kinds that its manifest names; finding another is a mistake,
            for nothing of the plugin's own would be chosen on it.
        timeout_s: for all of them together, seconds.
    """
    children: dict[str, ChildProcess] = {}
    limit = str(math.ceil(timeout_s) + 1)
    try:
        for plugin_id, target in targets.items():
            children[plugin_id] = ChildProcess(CHILD, (target, limit))
        deadline = time.monotonic() + timeout_s
        results = {}
        for plugin_id, child in children.items():
            result = _result_of(child.finish(deadline - time.monotonic()), timeout_s)
            results[plugin_id] = _of_kinds(result, kinds[plugin_id])
        return results
    finally:
        for child in children.values():
            child.kill()


def _of_kinds(result: ProbeResult, allowed: tuple[str, ...]) -> ProbeResult:
    """Refuse devices of a kind that the manifest does not name."""
    for facts in result.devices:
        if facts.kind not in allowed and "*" not in allowed:
            reason = (
                f"probe found a device of kind {facts.kind!r}, the manifest's device_kinds are "
                f"{', '.join(allowed) or 'none'}; make the two equal"
            )
            return ProbeResult(reason=reason, id="probe-invalid")
    return result


def _result_of(ended: Ended, limit_s: float) -> ProbeResult:
    last = printable(ended.last_words)[:MAX_TEXT]
    if ended.code is None:
        reason = f"probe gave no answer within {limit_s:g} s and was stopped"
        return ProbeResult(reason=reason, id="probe-timeout")
    if ended.signal_name:
        reason = f"probe crashed: {ended.signal_name}"
        return ProbeResult(reason=reason, id="probe-crashed", causes=(last,) if last else ())
    try:
        answer = json.loads(ended.output)
        devices = tuple(facts_of(facts) for facts in answer["devices"])
    except (json.JSONDecodeError, KeyError, TypeError):
        reason = f"probe exited with code {ended.code}: {last or 'no message'}"
        return ProbeResult(reason=reason, id="probe-invalid")
    except ValueError as error:
        reason = f"probe returned what no device is: {error}"
        return ProbeResult(reason=reason, id="probe-invalid")
    if devices:
        return ProbeResult(devices)
    return ProbeResult((), answer["reason"], answer["id"], tuple(answer["causes"]))
