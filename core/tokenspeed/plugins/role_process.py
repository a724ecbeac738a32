"""One process role, alone: `python -m tokenspeed.plugins.role_process ROLE`.

Takes a plan of plugins as one JSON line on stdin, loads what the role needs, and answers with one
JSON line: what it sees of the plan, what it registered, or why not. For roles whose processes are
not running: doctors, conformance tests, and workers before there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any

from tokenspeed.errors import PluginError, cause_lines
from tokenspeed.plugins.manager import load_planned
from tokenspeed.plugins.manifest import ROLES
from tokenspeed.plugins.plugin_plan import check_sighting, digest_of, receive_plan


def main(argv: list[str] | None = None) -> int:
    """Load and answer; 0, or the exit code of what went wrong."""
    parser = argparse.ArgumentParser(prog="tokenspeed.plugins.role_process", description=__doc__)
    parser.add_argument("role", choices=ROLES)
    role = parser.parse_args(argv).role
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what plugins print must not mix with the answer
    answer = _load(json.loads(sys.stdin.readline()), role)
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer) + "\n")
    return int(answer["exit_code"])


def _load(data: dict[str, Any], role: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"role": role, "pid": os.getpid(), "exit_code": 0}
    try:
        plan, sighting = receive_plan(data, process=f"the {role} process (pid {os.getpid()})")
        answer |= {"items": dict(sighting.items), "digest": digest_of(sighting.items)}
        check_sighting(plan, sighting)
        registry = load_planned(plan, role=role)
    except PluginError as error:
        problem = {"id": error.id, "problem": error.message, "causes": cause_lines(error)}
        return {**answer, **problem, "exit_code": error.exit_code}
    statuses = [dataclasses.asdict(status) for status in registry.plugins]
    return {**answer, "plugins": statuses, "registered": registry.dump()}


if __name__ == "__main__":
    sys.exit(main())
