"""Looks for devices: runs each plugin's probe in a child process with a time limit.

A probe touches drivers and native libraries: it may crash, hang or print. In a child that becomes
a reason; the launcher survives. All probes of a start run at the same time.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.device import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBE_TIMEOUT_S = 5.0


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
    children = {plugin_id: _start(target, timeout_s) for plugin_id, target in targets.items()}
    deadline = time.monotonic() + timeout_s
    results = {}
    for plugin_id, child in children.items():
        result = _finish(child, max(0.0, deadline - time.monotonic()), timeout_s)
        results[plugin_id] = _of_kinds(result, kinds[plugin_id])
    return results


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


def _start(target: str, timeout_s: float) -> subprocess.Popen[str]:
    # -P keeps the working directory off the child's path: nothing is picked up from there.
    command = [sys.executable, "-P", "-m", "tokenspeed.plugins.probe_child", target]
    return subprocess.Popen(
        [*command, str(math.ceil(timeout_s) + 1)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _finish(child: subprocess.Popen[str], wait_s: float, limit_s: float) -> ProbeResult:
    try:
        output, errors = child.communicate(timeout=wait_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        reason = f"probe gave no answer within {limit_s:g} s and was stopped"
        return ProbeResult(reason=reason, id="probe-timeout")
    if child.returncode < 0:
        reason = f"probe crashed: {_signal_name(-child.returncode)}"
        return ProbeResult(reason=reason, id="probe-crashed", causes=_last_words(errors))
    try:
        answer = json.loads(output)
        devices = tuple(DeviceFacts(**facts) for facts in answer["devices"])
    except (json.JSONDecodeError, KeyError, TypeError):
        last = _last_words(errors) or ("no message",)
        reason = f"probe exited with code {child.returncode}: {last[0]}"
        return ProbeResult(reason=reason, id="probe-invalid")
    if devices:
        return ProbeResult(devices)
    reason = answer["reason"] or "probe found no device"
    causes = tuple(answer.get("causes", ()))
    return ProbeResult((), reason, answer.get("id", "device-not-found"), causes)


def _last_words(errors: str) -> tuple[str, ...]:
    """Return the last line that a child wrote on stderr."""
    return tuple(errors.strip().splitlines()[-1:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
