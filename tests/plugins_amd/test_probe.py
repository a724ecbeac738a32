"""The AMD probe reads the kernel driver's topology; a copy of its layout stands in for the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed_amd.probe import TOPOLOGY, find_devices
from tokenspeed_sdk import PluginError


def node(topology: Path, number: int, properties: str, name: str = "", heap_bytes: int = 0) -> None:
    folder = topology / str(number)
    bank = folder / "mem_banks" / "0"
    bank.mkdir(parents=True)
    (folder / "properties").write_text(properties)
    (folder / "name").write_text(f"{name}\n")
    (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {heap_bytes}\nflags 0\n")


def test_gpus_are_told_from_cpus_and_counted(tmp_path: Path) -> None:
    node(tmp_path, 0, "cpu_cores_count 64\nsimd_count 0\n")
    for number in (1, 2):
        node(tmp_path, number, "simd_count 1216\ngfx_target_version 90402\n", "ip disc", 2**37)
    (facts,) = find_devices(tmp_path)
    assert (facts.kind, facts.name, facts.arch) == ("hip", "ip disc", "gfx942")
    assert (facts.count, facts.memory_bytes) == (2, 2**37)


@pytest.mark.parametrize(
    ("version", "arch"), [("90010", "gfx90a"), ("90500", "gfx950"), ("110001", "gfx1101")]
)
def test_architecture_names_follow_the_drivers_number(
    tmp_path: Path, version: str, arch: str
) -> None:
    node(tmp_path, 0, f"simd_count 8\ngfx_target_version {version}\n")
    (facts,) = find_devices(tmp_path)
    assert facts.arch == arch
    assert facts.name in ("", arch)


def test_no_gpu_in_the_topology_is_said(tmp_path: Path) -> None:
    node(tmp_path, 0, "simd_count 0\n")
    with pytest.raises(PluginError, match="lists no GPU"):
        find_devices(tmp_path)


@pytest.mark.skipif(TOPOLOGY.is_dir(), reason="this machine has the driver")
def test_no_driver_is_said_with_the_fix() -> None:
    with pytest.raises(PluginError, match=r"no AMD device found: .*load the amdgpu driver"):
        find_devices()
