"""A limit on the time that code of a plugin takes at the start: importing it, and its hooks.

A signal ends what hangs in Python or in a system call, with an error that names the plugin. Native
code that never returns to the interpreter is ended with the process, its stack on stderr, a moment
later. Without effect outside of the main thread, where no signal handler can be set.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.log import say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

LIMIT_S = 120.0
"""Most that a plugin may take; torch and its libraries come from a cold disk in less."""
AGAIN_S = 5.0
"""After which the signal comes again, if the plugin has swallowed it; twice, then the end."""


class _TimeUp(BaseException):
    """Passes every `except Exception` of a plugin."""


@contextmanager
def time_limit(who: str, *, limit_s: float | None = None) -> Iterator[None]:
    """Import a plugin and call its hooks, but not for longer than a limit.

    Args:
        who: the plugin's name.
        limit_s: None: LIMIT_S.
    Raises:
        PluginError: the time is up; the stack at that moment was written to stderr.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s = LIMIT_S if limit_s is None else limit_s
    message = (
        f"plugin {who} did not finish its import and its hooks in {limit_s:g} s, which is the "
        "limit; where it hangs stands in the log; fix the plugin, or leave it out"
    )
    is_up = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_up
        is_up = True
        say(f"tokenspeed: {message}")
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=False)  # the one that hangs
        raise _TimeUp(message)

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    faulthandler.dump_traceback_later(limit_s + 2 * AGAIN_S, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    except BaseException as error:
        if not is_up:
            raise
        raise PluginError(message, id="plugin-start-too-long") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        faulthandler.cancel_dump_traceback_later()
    if is_up:
        raise PluginError(message, id="plugin-start-too-long")
