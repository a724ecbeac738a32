"""What the tokenizers library raises for damaged input, as one error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenspeed.errors import CheckpointError, TokenSpeedError


@contextmanager
def library_errors(file: Path, expected: str) -> Iterator[None]:
    """Turn whatever the library raises into a CheckpointError that names `file`.

    Args:
        expected: what was expected and what to do, for the message.
    """
    try:
        yield
    except TokenSpeedError:
        raise
    except Exception as error:  # The library raises bare Exception, wrong types raise anything.
        raise _damaged(file, error, expected) from error
    except BaseException as error:
        # A panic of the library is no Exception, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _damaged(file, error, expected) from error


def _damaged(file: Path, error: BaseException, expected: str) -> CheckpointError:
    cause = str(error) or type(error).__name__
    return CheckpointError(f"cannot use the tokenizer of {file}: {cause[:300]}; {expected}")
