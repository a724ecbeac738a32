"""Where the configured model lies: checked before anything is loaded, in one wording."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.errors import ConfigError


def existing_model(model: str) -> Path:
    """Return the path of a model that was named.

    Raises:
        ConfigError: nothing is there.
    """
    path = Path(model).expanduser()
    if not path.exists():
        raise ConfigError(
            f"model {model!r} is not on this machine: a Hugging Face folder or a .gguf file is "
            "needed, nothing is downloaded by name; check the path"
        )
    return path
