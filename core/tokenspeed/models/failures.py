"""What a model class raises while an engine is built, told with its class and file."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError, TokenSpeedError, plugin_code, told

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def model_errors(model_class: type, doing: str) -> Iterator[None]:
    """Turn an error that a model does not explain itself into one that names its class and file.

    Args:
        doing: what it does, such as "it was built".
    Raises:
        PluginError: anything but one of our own errors or want of memory was raised.
    """
    try:
        with plugin_code():
            yield
    except (TokenSpeedError, MemoryError):
        raise
    except Exception as error:
        raise PluginError(
            f"model {model_class.__name__} of {model_class.__module__} failed while {doing}: "
            f"{told(error)}; correct its file, or serve it with another",
            id="model-failed",
        ) from error
