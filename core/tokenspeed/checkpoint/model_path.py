"""Where a model lies, as the user wrote it: looked at once, so that odd paths fail by name."""

from __future__ import annotations

import errno
from pathlib import Path

from tokenspeed.errors import ConfigError


def expand_model_path(model: str) -> Path:
    """Return the path of a model, which may be missing.

    Raises:
        ConfigError: a path that cannot be looked at: too long, unreadable, an unknown home.
    """
    try:
        path = Path(model).expanduser()
        path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
            return path
        cause = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"model {model[:200]!r} cannot be looked at: {cause}; a Hugging Face folder or a .gguf "
            "file is needed; check the path"
        ) from error
    return path


def existing_model(model: str) -> Path:
    """Return the path of a model that was named.

    Raises:
        ConfigError: nothing is there, or the path cannot be looked at.
    """
    path = expand_model_path(model)
    if not path.exists():
        raise ConfigError(
            f"model {model!r} is not on this machine: a Hugging Face folder or a .gguf file is "
            "needed, nothing is downloaded by name; check the path"
        )
    return path
