"""What a manifest states is what the hooks register, and counts for the plugin's device kinds."""

from __future__ import annotations

import pytest
from tests.support.plugin_wheels import PluginSpace

from tokenspeed.errors import PluginError
from tokenspeed.plugins import load_plugins

BODY = """
class Plugin:
    @hookimpl
    def register_attention_backends(self, context):
        requires = {"arch": ("a1",), "dtype": ("float32",)}
        context.offer(Offer("attention", "flash", len, "PORTABLE", requires))

plugin = Plugin()
"""
STATED = """
[[offers]]
slot = "attention"
name = "flash"
band = "PORTABLE"
requires = { arch = ["a1"], dtype = ["float32"] }
"""


def install(space: PluginSpace, tail: str) -> None:
    slots, kinds = 'attention = "1.0"', '["acme"]'
    space.install("acme", BODY, slots=slots, device_kinds=kinds, tail=tail)


def test_an_offer_silent_about_its_device_is_for_the_manifests_kinds(
    plugin_space: PluginSpace,
) -> None:
    install(plugin_space, STATED)
    offers = load_plugins(("acme",), role="engine").offers("attention")
    (flash,) = (item.offer for item in offers if item.plugin_id == "acme")
    assert flash.requires["device"] == ("acme",)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (('"PORTABLE"', '"SPECIALIZED"'), "with band 'SPECIALIZED', its hook registers 'PORTABLE'"),
        (('arch = ["a1"]', 'arch = ["*"]'), "with arch"),
        (('"flash"', '"flush"'), "which no hook made"),
    ],
)
def test_a_manifest_that_states_something_else_than_its_hooks_is_refused(
    plugin_space: PluginSpace, changed: tuple[str, str], words: str
) -> None:
    install(plugin_space, STATED.replace(*changed))
    with pytest.raises(PluginError, match=words):
        load_plugins(("acme",), role="engine")


@pytest.mark.parametrize(
    "tail",
    [
        '[[offers]]\nslot = "operator"\nname = "x"\n',
        '[[offers]]\nslot = "attention"\nname = "x"\noperator = "norm.rms"\n',
    ],
)
def test_a_stated_kernel_names_its_operator_and_other_offers_none(
    plugin_space: PluginSpace, tail: str
) -> None:
    install(plugin_space, tail)
    with pytest.raises(PluginError, match="kernels stand under slot"):
        load_plugins(("acme",), role="engine")
