"""Looks for granite cards. Runs in a child process with a time limit and imports no torch.

A machine has one card, carved out of the host's memory; `GRANITE_VISIBLE_DEVICES=` hides it.
"""

from __future__ import annotations

import os
import platform

from tokenspeed_sdk import DeviceFacts, PluginError

KIND = "granite"
ARCH = "g1"


def find_devices() -> tuple[DeviceFacts, ...]:
    """Return the facts of the card.

    Raises:
        PluginError: it is hidden.
    """
    if os.environ.get("GRANITE_VISIBLE_DEVICES", "0") != "0":
        raise PluginError(
            "no granite card is visible: GRANITE_VISIBLE_DEVICES is "
            f"{os.environ['GRANITE_VISIBLE_DEVICES']!r}; 0 is allowed; unset it",
            id="device-not-found",
        )
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (DeviceFacts(KIND, f"Granite G1 in {platform.machine()}", ARCH, 1, memory_bytes),)
