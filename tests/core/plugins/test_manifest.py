"""Manifests: what is read, and what is refused with the nearest name."""

from __future__ import annotations

import os
import re
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
        ({"slots": 'attention = "1.x"'}, ("slots.attention is '1.x'", "major.minor")),
        ({"slots": 'attention = "1."'}, ("slots.attention is '1.'", "major.minor")),
        ({"slots": 'attention = "1.-1"'}, ("slots.attention is '1.-1'", "major.minor")),
        ({"id": '"a/b"'}, ("id is 'a/b'", "lower-case letters")),
        ({"id": '"auto"'}, ("id is 'auto'", "lower-case letters")),
        ({"id": '"a\\u001bb"'}, ("id is 'a\\x1bb'", "lower-case letters")),
        ({"vendor": '"a\\nb"'}, ("vendor is 'a\\nb'", "one line")),
        ({"api": '">=' + "9" * 5000 + '"'}, ("api: version range '>=999", "...")),
        ({"roles": "[]"}, ("roles is empty", "engine")),
        ({"device_kinds": '[""]'}, ("a device kind is ''", "letters")),
        ({"probe": '"acme"'}, ("probe is 'acme'", "module:function")),
        ({"probe": '"a b:c"'}, ("probe is 'a b:c'", "module:function")),
        ({"tail": '[config.a]\ntype = "number"\ndefault = nan'}, ("default is nan", "finite")),
        ({"tail": '[config."a.b"]\ntype = "integer"\ndefault = 1'}, ("key of config is 'a.b'",)),
        ({"tail": '[[offers]]\nslot = "model"\nname = "a/b"'}, ("name of an offer is 'a/b'",)),
        (
            {"tail": '[[offers]]\nslot="model"\nname="a"\nrequires={dtype=[["b"]]}'},
            ("offer 'a': dtype is (['b'],)", "texts, numbers"),
        ),
        ({"tail": "[config]\nflush = 3"}, ("config.flush is 3", "table")),
        ({"tail": '[config.a]\ntype = "int"\ndefault = 1'}, ("unknown type 'int'", "'integer'")),
        (
            {"tail": '[config.a]\ntype = "integer"\ndefault = true'},
            ("default is True", "a whole number"),
        ),
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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "utf-8"),
        (b"[[[[", "line 1"),
        (b"schema = 1\nschema = 1", "overwrite"),
        (b"x = " + b"9" * 5000, "5000 digits"),
        (b"x = " + b"[" * 3000, "nested too deeply"),
        (b"#" * (1 << 20) + b"\n", "at most 1048576 are read"),
    ],
)
def test_whatever_bytes_a_manifest_has_is_one_error_that_names_it(
    tmp_path: Path, data: bytes, words: str
) -> None:
    (tmp_path / "manifest.toml").write_bytes(data)
    with pytest.raises(PluginError, match=re.escape(words)) as caught:
        read_manifest(tmp_path / "manifest.toml")
    assert caught.value.id == "manifest-unreadable"
    assert "manifest.toml" in str(caught.value)


def test_a_pipe_in_place_of_a_manifest_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.toml")
    with pytest.raises(PluginError, match="no regular file"):
        read_manifest(tmp_path / "manifest.toml")


def test_a_huge_value_is_quoted_in_few_words() -> None:
    with pytest.raises(PluginError) as caught:
        parse(api='"' + "x" * 100_000 + '"')
    assert len(str(caught.value)) < 500
