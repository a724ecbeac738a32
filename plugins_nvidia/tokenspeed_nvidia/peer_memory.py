"""Memory of one GPU that kernels on the other GPUs of the host write into, through the driver.

Plain allocations, exported and opened by inter-process handles: no multicast, no virtual-memory
objects. Ranks may see other GPUs under other numbers, or only their own.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tokenspeed_sdk import EngineError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


class PeerMemory:
    """So many zeroed bytes on this rank's GPU, and the same of every other rank.

    Args:
        store: in which the group's ranks find each other's handles.
        context: a CUDA context is current in the calling thread.
    Raises:
        EngineError: the driver refuses; ranks on other hosts, or GPUs without a way to each other.
    """

    def __init__(self, store: Store, *, rank: int, size: int, num_bytes: int) -> None:
        from tokenspeed_nvidia.probe import DRIVER_LIBRARY

        self._driver = ctypes.CDLL(DRIVER_LIBRARY)
        own = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(own), ctypes.c_size_t(num_bytes))
        self._call("cuMemsetD8_v2", own, ctypes.c_ubyte(0), ctypes.c_size_t(num_bytes))
        self._call("cuCtxSynchronize")
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), own)
        store.set(f"memory-{rank}", bytes(handle).hex())
        self._own = own.value
        self._opened: list[int] = []
        self.addresses: list[int] = []
        """Of every rank's bytes as this GPU sees them, in the order of the ranks."""
        for other in range(size):
            if other == rank:
                self.addresses.append(own.value)
            else:
                self.addresses.append(self._open(store.get(f"memory-{other}").decode()))

    def close(self) -> None:
        """Give everything back; every rank is done with it."""
        for address in self._opened:
            self._driver.cuIpcCloseMemHandle(ctypes.c_uint64(address))
        if self._own:
            self._driver.cuMemFree_v2(ctypes.c_uint64(self._own))
        self._own, self._opened = 0, []

    def _open(self, text: str) -> int:
        handle = _Handle.from_buffer_copy(bytes.fromhex(text))
        address = ctypes.c_uint64()
        self._call(
            "cuIpcOpenMemHandle_v2",
            ctypes.byref(address),
            handle,
            ctypes.c_uint(_LAZY_PEER_ACCESS),
        )
        self._opened.append(address.value)
        return address.value

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code != 0:
            raise EngineError(
                f"memory shared between GPUs: {function} returned CUDA error {code}; the GPUs need "
                "a way to each other (nvidia-smi topo -m), and the ranks one host; or pin the "
                "communicator to nvidia/nccl"
            )
