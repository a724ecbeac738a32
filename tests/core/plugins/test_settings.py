"""Plugin settings: typed, complete, and refused by name."""

from __future__ import annotations

import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.plugins.manifest import ConfigKey, Manifest
from tokenspeed.plugins.settings import parse_settings

CONFIG = {
    "flush": ConfigKey("flush", "boolean", False),
    "mib": ConfigKey("mib", "integer", 256),
    "share": ConfigKey("share", "number", 0.5),
    "path": ConfigKey("path", "string", ""),
}
MANIFESTS = {"acme": Manifest("acme", ">=1", "acme", (), ("engine",), {}, config=CONFIG)}


def test_defaults_are_filled_in_and_values_converted() -> None:
    texts = ("acme.flush=true", "acme.mib=8", "acme.share=0.25", "acme.path=/a=b")
    assert parse_settings((), MANIFESTS)["acme"]["mib"] == 256
    assert parse_settings(texts, MANIFESTS) == {
        "acme": {"flush": True, "mib": 8, "share": 0.25, "path": "/a=b"}
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("acme.flus=1", "did you mean 'flush'"),
        ("acne.flush=1", "did you mean 'acme'"),
        ("acme.flush", "write PLUGIN.KEY=VALUE"),
        ("acme.flush=maybe", "boolean is needed"),
        ("acme.share=nan", "share is 'nan', number is needed"),
        ("acme.share=1e999", "share is '1e999', number is needed"),
        ("acme.mib=" + "9" * 5000, "mib is '9{2}.*[.]{3}9+', integer is needed"),
        ("acme.mib=many", "mib is 'many', integer is needed; the default is 256"),
    ],
)
def test_a_wrong_setting_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settings((text,), MANIFESTS)
