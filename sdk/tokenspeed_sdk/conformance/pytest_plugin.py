"""The kit as a pytest plugin: the subject as a fixture, ids of checks, one result line a check.

A check is a function `test_NAME` of a file `test_cN_*.py`; its id is "CN/NAME" with hyphens, and
the parameters of a parametrised one in brackets. Offers are parameters: `offer`; so are the folders
that a plugin with models is given: `checkpoint`, None where there is none.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokenspeed_sdk.conformance.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Generator

_RESULTS = pytest.StashKey[Path]()
_SUBJECT = pytest.StashKey[Subject]()
_OPEN: list[pytest.Config] = []
"""The run of this process, for hooks that are not told of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the kit's options."""
    group = parser.getgroup("tokenspeed conformance")
    group.addoption("--plugin-id", required=False, help="the plugin that is checked")
    group.addoption("--results", help="file that gets one JSON line a check")
    group.addoption("--progress", action="store_true", help="print a line a check")
    group.addoption("--checkpoint", action="append", default=[], help="a folder of its models")
    group.addoption("--only", default="", help="run the checks whose id contains this text")


def pytest_configure(config: pytest.Config) -> None:
    """Find the subject from its metadata; nothing of it is imported here."""
    subject = Subject.find(config.getoption("--plugin-id"))
    _OPEN.append(config)
    config.stash[_SUBJECT] = subject
    config.stash[_RESULTS] = Path(config.getoption("--results"))
    _write(config, {"plugin": subject.facts()})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a check one call for each offer of its slot, or of all, or for each checkpoint."""
    subject = metafunc.config.stash[_SUBJECT]
    if "checkpoint" in metafunc.fixturenames:
        given = [Path(folder) for folder in metafunc.config.getoption("--checkpoint")]
        folders: list[Path | None] = [*given] or [None]
        folders = folders if subject.offers("model") else []
        metafunc.parametrize(
            "checkpoint", folders, ids=[folder.name if folder else "none" for folder in folders]
        )
    if "offer" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("slot")
    offers = subject.offers(*(marker.args if marker else ()))
    metafunc.parametrize("offer", offers, ids=[offer.label for offer in offers])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--only` does not name, and checks of slots that the plugin does not fill."""
    items[:] = [
        item
        for item in items
        if config.getoption("--only") in check_id(item) and "[NOTSET" not in item.name
    ]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Tell of a file of checks that cannot be imported: the kit itself is broken then."""
    if report.failed and _OPEN:
        _write(_OPEN[0], {"problem": f"{report.nodeid}: {str(report.longrepr)[-500:]}"})


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return the plugin that is checked."""
    return request.config.stash[_SUBJECT]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write a check's result as soon as it is known, so that a crash loses only the one running."""
    report = yield
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        entry = {
            "id": check_id(item),
            "outcome": report.outcome,
            "message": _message(report),
            "seconds": round(report.duration, 3),
            "evidence": dict(report.user_properties),
        }
        _write(item.config, entry)
        if item.config.getoption("--progress"):
            why = f"  ({' '.join(_message(report).split())})" if report.skipped else ""
            line = f"{entry['outcome']:8}{entry['id']}  {report.duration:.1f} s{why}"
            print(line, flush=True)
    return report


def check_id(item: pytest.Item) -> str:
    """Return the check's stable id."""
    level = re.match(r"test_(c\d)_", item.path.name)
    name, bracket, parameters = item.name.partition("[")
    words = name.removeprefix("test_").replace("_", "-")
    return f"{level[1].upper() if level else 'C?'}/{words}{bracket}{parameters}"


def _message(report: pytest.TestReport) -> str:
    if report.outcome == "passed":
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)


def _write(config: pytest.Config, entry: dict[str, object]) -> None:
    with config.stash[_RESULTS].open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, default=str) + "\n")
