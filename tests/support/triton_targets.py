"""Compiles triton kernels for GPUs that are not there, in a child: a wrong operation can kill it.

`launches_of` runs an offer over its operators' cases on the CPU. Every launch is compiled for its
target instead, with the signature, constants and alignments that triton derives of the arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGETS: Mapping[str, tuple[str, int | str, int]] = {
    "sm_90": ("cuda", 90, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Name -> backend, architecture and threads of a warp."""

REAL_SHAPES = "real shapes"
"""Stands for an offer: a family's function in `triton_real_shapes`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One compiled variant of a kernel.

    Args:
        kernel: its name.
        target: name in TARGETS.
        signature: parameter -> type.
        constants: parameter -> value.
        shared_bytes: shared memory of a program.
        registers: of a thread.
        spilled: bytes of a thread's stack (or registers) that hold what did not fit; 0: none.
        asm: the assembly.
    """

    kernel: str
    target: str
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    shared_bytes: int
    registers: int
    spilled: int
    asm: str


def launches_of(family: str) -> dict[tuple[str, str], list[Launch] | str]:
    """Compile what the offers of a family launch over all their cases, for every target.

    Where `triton_real_shapes` has a function of the family's name, what that launches too, as if
    it were an offer named REAL_SHAPES.

    Returns:
        (offer, target) -> its launches, or why there are none: the compiler's words, or that it
        killed the process.
    """
    found: dict[tuple[str, str], list[Launch] | str] = {}
    ended = _child({"family": family})
    for line in map(json.loads, ended.stdout.splitlines()):
        key = line["offer"], line["target"]
        found[key] = "the compiler's process died:\n" + ended.stderr[-4000:]
        if "error" in line:
            found[key] = line["error"]
        elif "launches" in line:
            found[key] = [Launch(**launch) for launch in line["launches"]]
    return found


def compile_for(
    kernel: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Any],
    target: str,
    **options: int,
) -> Launch:
    """Compile one variant; pointers and strides count as aligned to 16.

    Args:
        kernel: "package.module:function".
        signature: parameter -> type such as "*bf16" or "i32", for all that are no constants.
        constants: parameter -> value.
        target: name in TARGETS.
        options: num_warps, num_stages.
    """
    work = {"kernel": kernel, "signature": {**signature}, "constants": {**constants}}
    ended = _child({**work, "options": options, "target": target})
    assert ended.returncode == 0, f"{work} for {target}:\n{ended.stderr[-4000:]}"
    return Launch(**json.loads(ended.stdout))


def _child(work: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    command = [sys.executable, "-m", "tests.support.triton_child", json.dumps(work)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
