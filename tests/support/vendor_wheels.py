"""Three vendors' wheels whose manifests state what they need; none loads without its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.plugin_wheels import WheelFolder

VENDORS = {
    "hopper": ("cuda", '["sm_90a"]', "SPECIALIZED"),
    "blackwell": ("cuda", '["sm_100a", "sm_103a"]', "SPECIALIZED"),
    "cdna": ("hip", '["gfx950"]', "PERFORMANT"),
}
"""Plugin id -> device kind, architectures, band of its attention."""

BODY = """
def find():
    raise PluginError("no such card here", id="device-not-found")

plugin = None  # not loadable: what is known is in the manifest
"""
OFFERS = """
[[offers]]
slot = "device"
name = "{kind}"
band = "PORTABLE"

[[offers]]
slot = "attention"
name = "{name}"
band = "{band}"
requires = {{ arch = {arch}, dtype = ["bfloat16", "float16"], head_dim = [64, 128], \
block_tokens = [64, 128], gqa_ratio = ["*"], deterministic = [true] }}

[[offers]]
slot = "attention"
name = "{name}_any"
band = "PORTABLE"
requires = {{ arch = ["*"], dtype = ["bfloat16"], head_dim = ["*"], block_tokens = ["*"], \
gqa_ratio = ["*"], sinks = [true], window = ["*"] }}
"""


def install_vendors(wheels: WheelFolder) -> tuple[str, ...]:
    """Install the three wheels and return their ids."""
    for plugin_id, (kind, arch, band) in VENDORS.items():
        name = f"paged_{plugin_id}"
        wheels.install(
            plugin_id,
            BODY,
            vendor=f'"{plugin_id}"',
            device_kinds=f'["{kind}"]',
            slots='device = "1.0"\nattention = "1.0"',
            probe='"PACKAGE:find"',
            tail=OFFERS.format(kind=kind, name=name, band=band, arch=arch),
        )
    return tuple(VENDORS)
