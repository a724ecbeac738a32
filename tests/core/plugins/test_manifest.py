"""Manifests: what is read, and what is refused with the nearest name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.support.plugin_wheels import manifest_text

from tokenspeed.errors import PluginError
from tokenspeed.plugins.manifest import Manifest, parse_manifest, read_manifest

FULL = """
[requires_abi]
torch = ">=2.11"
[config.workspace_mib]
type = "integer"
default = 256
[[offers]]
slot = "attention"
name = "paged"
band = "PORTABLE"
requires = { dtype = ["bfloat16"], head_dim = [64, 128] }
"""


def parse(**changes: str) -> Manifest:
    return parse_manifest(tomllib.loads(manifest_text("acme", **changes)))


def test_a_full_manifest_is_read() -> None:
    manifest = parse(tail=FULL, probe='"acme.probe:find"')
    assert manifest.id == "acme"
    assert manifest.slots == {"model": "1.0"}
    assert manifest.requires_abi == {"torch": ">=2.11"}
    assert manifest.config["workspace_mib"].default == 256
    assert manifest.offers[0].requires == {"dtype": ("bfloat16",), "head_dim": (64, 128)}
    assert manifest.probe == "acme.probe:find"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "2"}, ("schema is 2", "reads 1")),
        ({"api": '"latest"'}, ("api", "'latest'", ">=1.0")),
        ({"api": ""}, ("'api' is missing",)),
        ({"role": '["engine"]'}, ("unknown key 'role'", "'roles'")),
        ({"roles": '["engin"]'}, ("unknown role 'engin'", "'engine'")),
        ({"roles": '"engine"'}, ("roles is 'engine'", "list")),
        ({"device_kinds": "[1]"}, ("device_kinds holds 1", "strings")),
        ({"slots": 'atention = "1.0"'}, ("unknown slot 'atention'", "'attention'")),
        ({"slots": 'attention = "1"'}, ("slots.attention is '1'", "major.minor")),
        ({"slots": 'attention = "a.b"'}, ("slots.attention", "'a.b'")),
        ({"probe": '"acme"'}, ("probe is 'acme'", "module:function")),
        ({"tail": "[config]\nflush = 3"}, ("config.flush is 3", "table")),
        ({"tail": '[config.a]\ntype = "int"\ndefault = 1'}, ("unknown type 'int'", "'integer'")),
        ({"tail": '[config.a]\ntype = "integer"\ndefault = true'}, ("default is True", "int")),
        ({"tail": '[requires_abi]\ntorch = "new"'}, ("requires_abi.torch", "'new'")),
        (
            {"tail": '[[offers]]\nslot = "model"\nname = "a"\nrequires = { headdim = [1] }'},
            ("unknown trait 'headdim'", "'head_dim'"),
        ),
        (
            {"tail": '[[offers]]\nslot = "model"\nname = "a"\nband = "FAST"'},
            ("unknown band 'FAST'", "PORTABLE"),
        ),
    ],
)
def test_a_wrong_manifest_is_refused_by_name(changes: dict[str, str], words: tuple[str]) -> None:
    with pytest.raises(PluginError) as caught:
        parse(**changes)
    for word in words:
        assert word in str(caught.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenspeed-plugin.toml"
    with pytest.raises(PluginError, match="cannot be read"):
        read_manifest(path)
    path.write_text("= nothing")
    with pytest.raises(PluginError, match=r"tokenspeed-plugin\.toml cannot be read"):
        read_manifest(path)
    path.write_text(manifest_text("acme", schema="7"))
    with pytest.raises(PluginError, match=r"tokenspeed-plugin\.toml: schema is 7"):
        read_manifest(path)
