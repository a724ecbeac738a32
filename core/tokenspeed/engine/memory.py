"""Memory that is not there, as one error of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tokenspeed.errors import CapacityError

# torch has an error class of its own for some devices only.
_WANT_OF_MEMORY = re.compile("alloc|out of memory|overflow", re.IGNORECASE)


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Turn a failed allocation into a CapacityError.

    Args:
        what: what is being made, for the message.
    """
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:300] or type(error).__name__
        if isinstance(error, RuntimeError) and not _WANT_OF_MEMORY.search(cause):
            raise
        raise CapacityError(
            f"no memory for {what}: {cause}; it must fit beside what else runs; use a smaller or "
            "quantised model, lower max_context_tokens, or free memory"
        ) from error
