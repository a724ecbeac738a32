"""The kernel ends this process with its parent, however that ends and whatever this one is in."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the thread that started this process ends, where the system has that.

    Elsewhere the end of the parent's pipe or socket has to do.

    Args:
        parent_pid: of the parent; one that is gone already is noticed here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
