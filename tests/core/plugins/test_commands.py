"""Which commands a manifest may state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenspeed.cli.main import COMMANDS, make_parser
from tokenspeed.contracts.cli import COMMANDS_OF_WHEELS, CORE_COMMANDS
from tokenspeed.errors import PluginError
from tokenspeed.plugins.commands import check_command_offers, check_commands
from tokenspeed.plugins.discovery import FoundPlugin
from tokenspeed.plugins.manifest import Manifest, parse_manifest

MANIFEST = Manifest("acme", ">=1.0,<2", "acme", ("*",), ("cli",), {"cli": "1.0"})


def found(*commands: str, plugin_id: str = "acme", wheel: str = "acme") -> FoundPlugin:
    manifest = replace(MANIFEST, id=plugin_id, commands=dict.fromkeys(commands, "help"))
    return FoundPlugin(plugin_id, wheel, "1.0", "acme:plugin", "", manifest)


@pytest.mark.parametrize("name", ["acme", "acme bench", "acme bench-all2"])
def test_a_plugin_takes_its_id_and_words_behind_it(name: str) -> None:
    check_commands(found(name))


def test_a_first_party_wheel_takes_free_verbs_of_core_groups() -> None:
    names = COMMANDS_OF_WHEELS
    check_commands(found(*names, plugin_id="sdk", wheel="tokenspeed-sdk"))
    with pytest.raises(PluginError, match="'plugins list' would shadow a command of the core"):
        check_commands(found("plugins list", plugin_id="sdk", wheel="tokenspeed-sdk"))


@pytest.mark.parametrize(
    ("name", "plugin_id", "said"),
    [
        ("serve", "serve", "would shadow a command of the core"),
        ("serve fast", "serve", "would shadow a command of the core"),
        ("plugins", "plugins", "would shadow a command of the core"),
        ("plugins list", "acme", "would shadow a command of the core"),
        ("plugins new", "acme", "is a verb of the core's 'plugins'; name it 'acme'"),
        ("bench-acme", "acme", "does not begin with the plugin's id; name it 'acme' or"),
        ("acme2", "acme", "does not begin with the plugin's id"),
        ("acme bench all", "acme", "is no command; one or two words"),
        ("--acme", "acme", "is no command"),
        ("Acme", "acme", "is no command"),
        ("", "acme", "is no command"),
    ],
)
def test_what_is_not_its_to_take_is_refused(name: str, plugin_id: str, said: str) -> None:
    with pytest.raises(PluginError, match=said) as caught:
        check_commands(found(name, plugin_id=plugin_id))
    assert caught.value.id == "command-refused"


def test_commands_need_the_slot() -> None:
    plugin = found("acme")
    assert plugin.manifest is not None
    with pytest.raises(PluginError, match="does not fill slot cli"):
        check_commands(replace(plugin, manifest=replace(plugin.manifest, slots={})))


def test_stated_and_offered_commands_are_the_same() -> None:
    manifest = replace(MANIFEST, commands={"acme": "x"})
    check_command_offers(manifest, ["acme"])
    with pytest.raises(PluginError, match="states command 'acme', which hook register_cli does"):
        check_command_offers(manifest, [])
    with pytest.raises(PluginError, match=r"offers command 'acme b', which .* does not state"):
        check_command_offers(manifest, ["acme", "acme b"])


@pytest.mark.parametrize("text", [5, "", "two\nlines"])
def test_a_command_has_one_line_of_help(text: object) -> None:
    data = {
        "schema": 1,
        "id": "acme",
        "api": ">=1.0",
        "vendor": "acme",
        "device_kinds": ["*"],
        "roles": ["cli"],
        "slots": {"cli": "1.0"},
    }
    assert parse_manifest({**data, "commands": {"acme": "help"}}).commands == {"acme": "help"}
    with pytest.raises(PluginError, match=r"commands\.acme is"):
        parse_manifest({**data, "commands": {"acme": text}})


def test_every_command_of_the_core_is_reserved() -> None:
    assert tuple(CORE_COMMANDS) == COMMANDS
    parsers = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for name, parser in parsers.items():
        groups = [item for item in parser._actions if hasattr(item, "choices") and item.choices]
        verbs = {verb for item in groups if item.dest == "verb" for verb in item.choices}
        assert verbs <= set(CORE_COMMANDS[name]), f"reserve the new verbs of {name}"
