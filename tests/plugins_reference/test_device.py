"""The CPU device: facts without torch, arenas that cost nothing until they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tokenspeed.errors import CapacityError
from tokenspeed_reference.device import GIB, CpuRuntime, usable_cores


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def test_facts_name_a_real_machine() -> None:
    runtime = CpuRuntime()
    facts = runtime.facts
    assert facts.kind == "cpu"
    assert facts.name
    assert facts.arch
    assert 0 < runtime.free_memory_bytes() <= facts.memory_bytes
    assert runtime.torch_device() == torch.device("cpu")


def test_facts_are_read_without_torch() -> None:
    code = (
        "import sys; from tokenspeed_reference.device import cpu_facts; cpu_facts(); "
        "import tokenspeed_reference; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_an_arena_is_zero_aligned_and_costs_memory_only_where_written() -> None:
    before = resident_bytes()
    arena = CpuRuntime().allocate_arena(GIB)
    assert arena.shape == (GIB,)
    assert arena.dtype == torch.uint8
    assert arena.data_ptr() % 4096 == 0
    assert resident_bytes() - before < 64 << 20
    assert int(arena[-1]) == 0
    arena[12345] = 7
    assert arena[12344:12347].tolist() == [0, 7, 0]


def test_an_arena_beyond_memory_is_refused_with_both_sizes() -> None:
    with pytest.raises(CapacityError, match=r"1048576\.00 GiB wanted, .* GiB of memory are free"):
        CpuRuntime().allocate_arena(GIB << 20)


def test_threads_do_not_exceed_the_cores_this_process_may_use() -> None:
    CpuRuntime()
    assert 1 <= torch.get_num_threads() <= usable_cores()
