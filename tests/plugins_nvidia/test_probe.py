"""The NVIDIA probe asks the driver library; a tiny library with its five calls stands in for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from tests.support.scripted import write_scripted_model
from tests.support.server import run_cli

from tokenspeed_nvidia import probe
from tokenspeed_sdk import PluginError

DRIVER = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int* count) { *count = COUNT; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = 7; return ordinal != 0; }
int cuDeviceGetName(char* name, int length, int device) {
  strncpy(name, "NVIDIA H200", length); return device != 7; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = 150ull << 30; return device != 7; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? MAJOR : 0; return device != 7; }
"""


def driver(folder: Path, *, init: int = 0, count: int = 8, major: int = 9) -> Path:
    """Build a driver library that answers like the real one."""
    compiler = shutil.which("cc") or shutil.which("c++")
    assert compiler, "a C compiler is needed: apt-get install g++"
    source, library = folder / "driver.c", folder / "libdriver.so"
    source.write_text(DRIVER)
    defines = [f"-DINIT={init}", f"-DCOUNT={count}", f"-DMAJOR={major}"]
    command = [compiler, "-x", "c", "-shared", "-fPIC", *defines, str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=120)
    return library


@pytest.mark.parametrize(("major", "arch"), [(9, "sm_90a"), (10, "sm_100a"), (8, "sm_80")])
def test_facts_come_from_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, major: int, arch: str
) -> None:
    monkeypatch.setattr(probe, "DRIVER_LIBRARY", str(driver(tmp_path, major=major)))
    (facts,) = probe.find_devices()
    assert (facts.kind, facts.name, facts.arch) == ("cuda", "NVIDIA H200", arch)
    assert (facts.count, facts.memory_bytes) == (8, 150 * 2**30)


@pytest.mark.parametrize(
    ("code", "diagnostic"), [(999, "device-failed"), (100, "device-not-found")]
)
def test_a_driver_that_refuses_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, diagnostic: str
) -> None:
    monkeypatch.setattr(probe, "DRIVER_LIBRARY", str(driver(tmp_path, init=code)))
    with pytest.raises(PluginError, match=f"cuInit returned CUDA error {code}") as caught:
        probe.find_devices()
    assert caught.value.id == diagnostic


def test_a_driver_without_devices_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "DRIVER_LIBRARY", str(driver(tmp_path, count=0)))
    with pytest.raises(PluginError, match="the driver lists 0 devices"):
        probe.find_devices()


def test_a_missing_driver_is_said_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "DRIVER_LIBRARY", "libnot_there.so.1")
    with pytest.raises(PluginError, match=r"no NVIDIA device found: libnot_there.*install"):
        probe.find_devices()


def test_a_torch_without_cuda_is_said_with_the_fix() -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch reaches a GPU")
    from tokenspeed_nvidia.device import CudaRuntime

    with pytest.raises(PluginError, match=r"torch .* does not reach the GPU .*CPU build") as caught:
        CudaRuntime()
    assert caught.value.id == "device-failed"


@pytest.mark.needs_nvidia
def test_the_real_driver_answers() -> None:
    (facts,) = probe.find_devices()
    assert facts.arch.startswith("sm_")
    assert facts.memory_bytes > 2**30


def test_a_start_that_finds_a_gpu_it_cannot_use_says_what_to_pass(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this torch reaches a GPU")
    driver(tmp_path).rename(tmp_path / probe.DRIVER_LIBRARY)
    model = write_scripted_model(tmp_path / "model")
    environ = {"LD_LIBRARY_PATH": str(tmp_path), "TOKENSPEED_CACHE_DIR": str(tmp_path / "cache")}
    flags = ("--prompt", "Hi", "--kv-gib", "0.001")
    done = run_cli("generate", str(model), *flags, environ=environ)
    assert done.returncode == 4, done.stderr
    assert "does not reach the GPU" in done.stderr
    assert "or use --plugins reference" in done.stderr
