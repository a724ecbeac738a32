"""Looks for devices. Runs in a child process with a time limit and imports no torch."""

from __future__ import annotations

from tokenspeed_sdk import DeviceFacts

KIND = "sim"


def find_devices() -> tuple[DeviceFacts, ...]:
    """Return the facts of device 0, with the count of all.

    Replace: open your driver library with ctypes, or read /sys, and raise PluginError with what is
    missing and what to do when there is no device. Until then the host's processors play the part.
    """
    from tokenspeed_reference.device import cpu_facts

    host = cpu_facts()
    return (DeviceFacts(KIND, f"Sim on {host.name}", "sim1", 1, host.memory_bytes),)
