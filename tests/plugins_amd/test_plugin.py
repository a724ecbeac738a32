"""The AMD wheel today: it finds the device and says that it has no kernels."""

from __future__ import annotations

import pytest

from tokenspeed.errors import PluginError
from tokenspeed.plugins import load_plugins
from tokenspeed_amd.probe import TOPOLOGY


@pytest.mark.skipif(TOPOLOGY.is_dir(), reason="this machine has the driver")
def test_naming_the_plugin_without_a_device_stops_the_start() -> None:
    with pytest.raises(PluginError, match="failed at probe: no AMD device found") as caught:
        load_plugins(("amd",), role="engine")
    assert caught.value.exit_code == 4


def test_with_a_device_loading_says_that_there_are_no_kernels_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tokenspeed_amd import plugin
    from tokenspeed_sdk import DeviceFacts

    facts = DeviceFacts("hip", "Instinct", "gfx942", 8, 2**37)
    monkeypatch.setattr("tokenspeed_amd.find_devices", lambda: (facts,))
    with pytest.raises(PluginError, match=r"found 8 x Instinct \(gfx942\), but this version"):
        plugin.register_devices(context=None)
