"""How a child process ended, in words; the kernel's memory killer shows as SIGKILL."""

from __future__ import annotations

import signal


def ending_of(return_code: int) -> str:
    """Return what to say of a process behind its name, from its return code as Popen has it."""
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    try:
        name = signal.Signals(-return_code).name
    except ValueError:  # a real-time signal has no name
        name = f"signal {-return_code}"
    hint = ", as the system does when memory is short" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
