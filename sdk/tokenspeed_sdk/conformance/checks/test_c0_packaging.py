"""C0: what a wheel must be before anything of it computes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tokenspeed.plugins.compatibility import check_compatible
from tokenspeed.plugins.manifest import ROLES
from tokenspeed.plugins.probe import run_probes
from tokenspeed_sdk.conformance.record import check_record
from tokenspeed_sdk.conformance.subject import Subject

IMPORT_BUDGET_S = 0.25
"""CPU seconds that importing the entry point may take: every start of an engine pays it."""
HEAVY = ("torch", "numpy", "transformers", "triton")
CHILD_TIMEOUT_S = 60


def ask(question: str, subject: Subject, *words: str) -> dict[str, Any]:
    """Put a question to a fresh process."""
    command = [sys.executable, "-P", "-m", "tokenspeed_sdk.conformance.child"]
    done = subprocess.run(
        [*command, question, subject.found.id, *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=CHILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        pytest.fail(f"the child that asks for {question} ended with {done.returncode}: {last[0]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_manifest_is_valid(subject: Subject) -> None:
    assert subject.found.manifest is not None, subject.found.problem
    assert not subject.found.problem, subject.found.problem


def test_it_fits_this_version(subject: Subject) -> None:
    check_compatible(subject.manifest)


def test_the_wheel_has_the_files_of_its_record(subject: Subject) -> None:
    problem = check_record(subject.found)
    if problem is None:
        pytest.skip("installed editable: there is no RECORD of the package's files")
    assert not problem, problem


@pytest.fixture(scope="module")
def imported(subject: Subject) -> dict[str, Any]:
    """What a process that imports it says."""
    return ask("import", subject)


def test_importing_it_changes_nothing_else(subject: Subject, imported: dict[str, Any]) -> None:
    found = imported["changes"]
    assert not found, f"importing {subject.found.target} has side effects: {'; '.join(found)}"


def test_importing_it_is_cheap(subject: Subject, imported: dict[str, Any]) -> None:
    cost = imported
    for _ in range(2):  # the first one may have compiled it, or met a busy machine
        if cost["seconds"] > IMPORT_BUDGET_S:
            cost = ask("import", subject)
    heavy = sorted({name.partition(".")[0] for name in cost["modules"]} & set(HEAVY))
    assert not heavy, f"importing {subject.found.target} imports {', '.join(heavy)}"
    assert cost["seconds"] <= IMPORT_BUDGET_S, f"import takes {cost['seconds']:.2f} s of CPU"


def test_the_probe_answers(subject: Subject) -> None:
    if not subject.manifest.probe:
        pytest.skip("the manifest names no probe")
    manifest, name = subject.manifest, subject.found.id
    result = run_probes({name: manifest.probe}, {name: manifest.device_kinds})[name]
    for words in ("crashed", "no answer", "imports torch", "exited with", "raised"):
        assert words not in result.reason, result.reason
    assert result.devices or result.reason


@pytest.mark.parametrize("role", ROLES)
def test_it_loads_in_a_process_of_its_own(subject: Subject, role: str) -> None:
    if role not in subject.manifest.roles:
        pytest.skip(f"the manifest does not name role {role}")
    answer = ask("load", subject, role)
    if "no_device" in answer:
        pytest.skip(answer["no_device"])
    first, second = answer["offers"]
    assert first == second, f"a second registration offers {second}, the first {first}"
    assert not answer["changes"], f"registering has side effects: {'; '.join(answer['changes'])}"
    assert not answer["torch"], "registering imports torch; import it when an offer is chosen"
