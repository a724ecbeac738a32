"""The TOML file of tenants' floors and caps: what it says, and how a mistake in it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.engine.messages import TenantFigures
from tokenspeed.engine.tenant_file import MIB, read_tenants
from tokenspeed.errors import ConfigError


def write(folder: Path, text: str) -> str:
    path = folder / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_figures_are_read_in_mib(tmp_path: Path) -> None:
    text = '[tenants.acme]\nfloor_mib = 1.5\ncap_mib = 4\n[tenants."two words"]\ncap_mib = 8\n'
    assert read_tenants(write(tmp_path, text)) == {
        "acme": TenantFigures(MIB * 3 // 2, 4 * MIB),
        "two words": TenantFigures(None, 8 * MIB),
    }
    assert read_tenants("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tenants.a]\nfloor_mib = -1\n", "floor_mib is -1; a number of MiB from 0"),
        ("[tenants.a]\ncap_mib = 0\n", "cap_mib is 0; a number of MiB from 1"),
        ("[tenants.a]\ncap_mib = true\n", "cap_mib is True"),
        ("[tenants.a]\ncap_mib = nan\n", "cap_mib is nan"),
        ("[tenants.a]\nfloor_mib = 3\ncap_mib = 2\n", "cap_mib is 2, below its floor_mib 3"),
        ("[tenants.a]\nfloor = 3\n", "[tenants.a]: holds floor; floor_mib, cap_mib"),
        ("[tenants.a]\n", "[tenants.a]: holds nothing"),
        (f"[tenants.{'a' * 65}]\ncap_mib = 2\n", "the name has 65 characters"),
        ("[tenants]\na = 3\n", "holds 3; floor_mib, cap_mib"),
        ("floor_mib = 3\n", "holds floor_mib; only tables [tenants.NAME]"),
        ("[tenants", "cannot be read"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_tenants(write(tmp_path, text))
    assert words in str(caught.value)
    assert "tenants.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tenants '.*absent' cannot be read: No such file"):
        read_tenants(str(tmp_path / "absent"))
