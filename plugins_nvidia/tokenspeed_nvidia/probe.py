"""Asks the driver library which GPUs there are. No torch, no CUDA context: safe before forking."""

from __future__ import annotations

import ctypes

from tokenspeed_sdk import CapacityError, DeviceFacts, PluginError

DRIVER_LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_HOPPER = 9  # from compute capability 9 on, features of one chip are spelled with an "a"


def find_devices(index: int = 0) -> tuple[DeviceFacts, ...]:
    """Return the facts of one device, with the count of all.

    Raises:
        CapacityError: there are not so many.
        PluginError: no driver library, the driver refuses, or it lists no device.
    """
    driver = _Driver(_open_driver())
    count = driver.integer("cuDeviceGetCount")
    if count == 0:
        raise PluginError(
            "no NVIDIA device found: the driver lists 0 devices; check nvidia-smi and "
            "CUDA_VISIBLE_DEVICES",
            id="device-not-found",
        )
    if index >= count:
        raise CapacityError(
            f"GPU {index} is asked for, this process sees {count} (CUDA_VISIBLE_DEVICES may hide "
            "some); give the host fewer ranks, or more GPUs"
        )
    device = driver.integer("cuDeviceGet", index)
    major = driver.integer("cuDeviceGetAttribute", _MAJOR, device)
    minor = driver.integer("cuDeviceGetAttribute", _MINOR, device)
    facts = DeviceFacts(
        kind="cuda",
        name=driver.name(device),
        arch=f"sm_{major}{minor}{'a' if major >= _HOPPER else ''}",
        count=count,
        memory_bytes=driver.memory_bytes(device),
    )
    return (facts,)


def _open_driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(DRIVER_LIBRARY)
    except OSError as error:
        raise PluginError(
            f"no NVIDIA device found: {DRIVER_LIBRARY} cannot be opened ({error}); install the "
            "NVIDIA driver, or give the container access to the GPU",
            id="device-not-found",
        ) from error


class _Driver:
    """The five driver calls a probe needs; every result code is checked."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._call("cuInit", 0)

    def integer(self, function: str, *arguments: int) -> int:
        """Call a function whose first argument is an int to fill."""
        value = ctypes.c_int()
        self._call(function, ctypes.byref(value), *arguments)
        return value.value

    def name(self, device: int) -> str:
        """Return the product name."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), device)
        return text.value.decode("utf-8", "replace")

    def memory_bytes(self, device: int) -> int:
        """Return total device memory."""
        value = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(value), device)
        return value.value

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code == _NO_DEVICE:
            raise PluginError(
                f"no NVIDIA device found: {function} returned CUDA error {code}; check nvidia-smi "
                "and CUDA_VISIBLE_DEVICES",
                id="device-not-found",
            )
        if code != 0:
            raise PluginError(
                f"no NVIDIA device found: {function} returned CUDA error {code}; the driver is "
                "installed and does not work: check that it is loaded (nvidia-smi)",
                id="device-failed",
            )
