"""Commands of plugins: listed without an import, loaded when called, never in the core's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import PluginSpace
from tests.support.server import run_cli

from tokenspeed.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

BODY = """
import pathlib
pathlib.Path(MARKER).touch()

class Greet:
    def add_arguments(self, parser):
        parser.add_argument("name")
        parser.add_argument("--fail", action="store_true")
        parser.add_argument("--times", type=int, default=1)

    def run(self, args):
        if args.fail:
            raise ConfigError("nobody is there; send someone")
        for _ in range(args.times):
            print("hello", args.name)
        return 1 if args.name == "nobody" else 0

def broken():
    raise RuntimeError("no greeting")

class Plugin:
    @hookimpl
    def register_cli(self, context):
        context.offer(Offer("cli", "acme greet", Greet))
        context.offer(Offer("cli", "acme", broken))

plugin = Plugin()
"""
COMMANDS = '[commands]\n"acme greet" = "greet somebody"\nacme = "fail at once"\n'


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginSpace:
    return PluginSpace(tmp_path / "site", monkeypatch)


@pytest.fixture
def marker(space: PluginSpace, tmp_path: Path) -> Path:
    """Install the plugin; the file appears when it is imported."""
    path = tmp_path / "imported"
    body = BODY.replace("MARKER", repr(str(path)))
    space.install("acme", body, slots='cli = "1.0"', roles='["cli"]', tail=COMMANDS)
    return path


def test_help_and_list_show_commands_and_import_nothing(marker: Path) -> None:
    text = run_cli("--help").stdout
    assert "commands of plugins:" in text
    assert "acme greet  greet somebody  [acme]" in text
    assert run_cli("plugins", "list").returncode == 0
    assert run_cli("models", "list").returncode == 0
    assert not marker.exists()


def test_a_command_runs_with_its_arguments_and_its_exit_code(marker: Path) -> None:
    done = run_cli("acme", "greet", "you", "--times", "2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello you\nhello you\n", "")
    assert marker.exists()
    assert run_cli("acme", "greet", "nobody").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("acme", "greet"),
            2,
            "tokenspeed acme greet: error: the following arguments are",
        ),
        (("acme", "greet", "x", "--tims", "2"), 2, "unrecognized arguments: --tims 2"),
        (("acme", "greet", "x", "--fail"), 2, "tokenspeed: nobody is there; send someone"),
        (("acme",), 4, "failed at load of command 'acme': RuntimeError: no greeting"),
        (("acmee",), 2, "invalid choice: 'acmee'"),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    marker: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run_cli(*arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_help_of_a_command_is_its_own(marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["acme", "greet", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "usage: tokenspeed acme greet" in text
    assert "greet somebody" in text


def test_a_command_that_would_shadow_the_core_is_refused(
    space: PluginSpace, tmp_path: Path
) -> None:
    marker = tmp_path / "imported"
    body = BODY.replace("MARKER", repr(str(marker)))
    tail = '[commands]\n"models list" = "mine"\n'
    space.install("acme", body, slots='cli = "1.0"', roles='["cli"]', tail=tail)
    listing = run_cli("plugins", "list")
    assert listing.returncode == 1
    assert "command 'models list' would shadow a command of the core" in listing.stdout
    assert "LlamaForCausalLM" in run_cli("models", "list").stdout
    assert run_cli("models", "list", "--plugins", "acme").returncode == 4
    assert not marker.exists()


def test_a_verb_of_a_core_group_comes_from_a_first_party_wheel(
    space: PluginSpace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tokenspeed.plugins.trust.FIRST_PARTY", frozenset({"acme"}))
    body = BODY.replace("MARKER", repr(str(tmp_path / "imported"))).replace(
        "acme greet", "plugins greet"
    )
    body = body.replace('context.offer(Offer("cli", "acme", broken))', "")
    tail = '[commands]\n"plugins greet" = "greet somebody"\n'
    kinds = {"slots": 'cli = "1.0"', "roles": '["cli"]', "tail": tail}
    space.install("acme", body, distribution="tokenspeed-acme", **kinds)
    assert run(["plugins", "greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    with pytest.raises(SystemExit):
        run(["plugins", "--help"])
    assert "greet  greet somebody  [acme]" in capsys.readouterr().out


def test_a_command_of_a_missing_wheel_names_the_wheel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tokenspeed.cli.plugin_commands.installed_commands", dict)
    assert run(["plugins", "new", "acme"]) == 4
    assert "comes with the wheel tokenspeed-sdk" in capsys.readouterr().err
