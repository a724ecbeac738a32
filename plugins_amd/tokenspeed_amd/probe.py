"""Reads from sysfs which GPUs the kernel driver lists. No torch, no ROCm library."""

from __future__ import annotations

from pathlib import Path

from tokenspeed_sdk import DeviceFacts, PluginError

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
_PUBLIC_HEAPS = {"1", "2"}  # frame buffer, host-visible and not (kfd_sysfs.h, HSA_HEAPTYPE_*)


def find_devices(topology: Path = TOPOLOGY) -> tuple[DeviceFacts, ...]:
    """Return the facts of the first GPU, with the count of all of its architecture.

    Args:
        topology: the driver's folder of nodes; CPUs are nodes too, with `simd_count 0`.
    Raises:
        PluginError: the compute driver is not loaded, or it lists no GPU.
    """
    if not topology.is_dir():
        raise PluginError(
            f"no AMD device found: {topology} does not exist; load the amdgpu driver, or give the "
            "container access to /dev/kfd and /dev/dri",
            id="device-not-found",
        )
    gpus = [node for node in sorted(topology.iterdir(), key=_number) if _is_gpu(node)]
    if not gpus:
        raise PluginError(
            f"no AMD device found: {topology} lists no GPU; check rocm-smi and the amdgpu driver",
            id="device-not-found",
        )
    arch = _arch(gpus[0])
    facts = DeviceFacts(
        kind="hip",
        name=_text(gpus[0] / "name") or arch,
        arch=arch,
        count=sum(_arch(node) == arch for node in gpus),
        memory_bytes=_memory_bytes(gpus[0]),
    )
    return (facts,)


def _number(node: Path) -> int:
    return int(node.name) if node.name.isdigit() else 0


def _is_gpu(node: Path) -> bool:
    return _properties(node).get("simd_count", "0") != "0"


def _arch(node: Path) -> str:
    """`gfx_target_version` 90402 means gfx942: major 9, minor 4, stepping 2 in hexadecimal."""
    version = int(_properties(node).get("gfx_target_version", "0"))
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _memory_bytes(node: Path) -> int:
    banks = [_properties(bank) for bank in (node / "mem_banks").glob("*")]
    public = [bank for bank in banks if bank.get("heap_type") in _PUBLIC_HEAPS]
    return sum(int(bank.get("size_in_bytes", "0")) for bank in public)


def _properties(folder: Path) -> dict[str, str]:
    lines = _text(folder / "properties").splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
