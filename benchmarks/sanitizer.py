"""Runs every kernel of the portable families under compute-sanitizer.

`memcheck` finds accesses outside of what was allocated, `racecheck` threads that meet in shared
memory without waiting for each other. A process has a few offers of one family, and each offer one
dtype: what is accessed is the same in all. Memory is allocated piece by piece, or an access beyond
one piece would meet the next.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.gpu_tests import COMMIT, Ended, run_tests
from benchmarks.results_file import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PROGRAM = "compute-sanitizer"
ERROR_STATUS = 9
"""Of a process whose tests passed, but in which something was found."""
TEST = "tests/plugins_nvidia/test_kernels.py::test_it_computes_what_its_operator_says"
AT_ONCE = 10
"""Processes."""
OFFERS = 4
"""Of one process, at most."""
PART_S = 280
"""Of one process, at most."""
TOTAL_S = 200
"""No race is looked for once so much time has gone."""
RACED = ("elementwise", "cache", "sampling")
"""Families of kernels that are quick even when every access to shared memory is noted."""
OPTIONS = (
    "--error-exitcode", str(ERROR_STATUS), "--target-processes", "application-only",
    "--show-backtrace", "no", "--print-limit", "20",
)  # fmt: skip
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
PLACE = re.compile(r"\bat (?:void )?(\w+)(?:<.*?>)?(?:\(.*?\))?\+0x[0-9a-f]+")
"""Of a report: the kernel and the instruction."""
SUMMARY = re.compile(r"SUMMARY: (?:\d+ hazards? displayed \()?(\d+) errors?")
"""The last line of every process."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one process runs: tests, named by offer and dtype."""

    family: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What a tool said of all parts.

    Args:
        status: 0: nothing was found, and all tests passed.
        ran: offers that ran.
        wrong: kernels with errors, or parts whose process did not end or named none.
    """

    status: int
    ran: int
    wrong: tuple[str, ...]
    seconds: float


def sanitize() -> tuple[int, list[Row]]:
    """Run both tools; return 1 when they found something, and the rows."""
    if shutil.which(PROGRAM) is None:
        print(f"{PROGRAM} is not on the PATH: it comes with the CUDA toolkit", file=sys.stderr)
        return 2, []
    started_s, parts = time.monotonic(), parts_of(portable_tests())
    found = {"memcheck": run_tool("memcheck", parts)}
    if time.monotonic() - started_s < TOTAL_S:
        found["racecheck"] = run_tool("racecheck", [one for one in parts if one.family in RACED])
    else:
        print("no time left for racecheck")
    return max(one.status for one in found.values()), [
        row for tool, one in found.items() for row in _rows(tool, one)
    ]


def portable_tests() -> dict[str, list[str]]:
    """Return the node ids of each family's tests, one for an offer."""
    from tests.support.portable import dtypes_of, offers_of

    from tokenspeed_sdk import portable

    def node(offer_name: str, dtypes: Sequence[str]) -> str:
        return f"{TEST}[{offer_name}-{'bfloat16' if 'bfloat16' in dtypes else dtypes[0]}]"

    return {
        family: [node(offer.name, dtypes_of(offer)) for _, offer in offers_of(family)]
        for family in portable.FAMILIES
    }


def parts_of(tests: Mapping[str, Sequence[str]]) -> list[Part]:
    """Cut families into parts."""
    return [
        Part(family, tuple(some[first : first + OFFERS]))
        for family, some in tests.items()
        for first in range(0, len(some), OFFERS)
    ]


def run_tool(tool: str, parts: Sequence[Part]) -> Found:
    """Run parts side by side; what is found is printed."""
    started_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(partial(_run, tool), parts))
    wrong: set[str] = set()
    for part, one in zip(parts, ended, strict=True):
        if one.status:
            print(f"{tool}, {part.family}: {' '.join(part.tests)}\n{one.output}")
        wrong |= wrong_in(part, one.output)
    status = int(bool(wrong) or any(one.status for one in ended))
    ran = sum(one.ran for one in ended)
    return Found(status, ran, tuple(sorted(wrong)), time.monotonic() - started_s)


def wrong_in(part: Part, output: str) -> set[str]:
    """Return the kernels that a process reported errors of, or its part where it named none."""
    errors = [int(number) for number in SUMMARY.findall(output)]
    if errors and not any(errors):
        return set()
    return set(PLACE.findall(output)) or {f"{part.family}: {part.tests[0]}"}


def _run(tool: str, part: Part) -> Ended:
    return run_tests(
        part.tests,
        ["-q"],
        prefix=(PROGRAM, "--tool", tool, *OPTIONS, *TOOLS[tool]),
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        is_captured=True,
        timeout_s=PART_S,
    )


def _rows(tool: str, found: Found) -> Iterable[Row]:
    command = 'make gpu-check ARGS="--only sanitizer"'
    row = partial(Row, group="gpu-check", command=command, commit=COMMIT)
    name = f"sanitizer: {tool}"
    yield row(name=f"{name}: kernels that ran", value=found.ran, unit="kernels", better="higher")
    yield row(name=f"{name}: kernels with errors", value=len(found.wrong), unit="kernels",
              better="lower", target="0")  # fmt: skip
    yield row(name=f"{name}: time", value=round(found.seconds, 1), unit="s", better="lower",
              target="300")  # fmt: skip
