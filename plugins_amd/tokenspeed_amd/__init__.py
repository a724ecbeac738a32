"""TokenSpeed on AMD GPUs. This version finds the device; its kernels come later."""

from __future__ import annotations

from tokenspeed_amd.probe import find_devices
from tokenspeed_sdk import PluginError, Registration, hookimpl

__all__ = ["AmdPlugin", "plugin"]


class AmdPlugin:
    """Offers nothing yet, and says so, so that nobody takes a CPU run for a GPU run."""

    @hookimpl
    def register_devices(self, context: Registration) -> None:
        """Report the device found and refuse.

        Raises:
            PluginError: always in this version.
        """
        devices = find_devices()
        raise PluginError(
            f"found {devices[0].count} x {devices[0].name} ({devices[0].arch}), but this version "
            "of tokenspeed-amd has no kernels yet; use --plugins reference to run on the CPU",
            id="plugin-refused",
        )


plugin = AmdPlugin()
