"""The name that a checkpoint gives its kind of model, such as "qwen3"."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.checkpoint.gguf import GgufHeader
from tokenspeed.checkpoint.json_file import read_optional_json_object


def model_type_of(path: Path | str) -> str:
    """Return `model_type` of config.json, or a GGUF file's architecture; "": it has none.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = Path(path)
    if path.is_dir():
        named = read_optional_json_object(path / "config.json").get("model_type")
    else:
        named = GgufHeader.read(path).metadata.get("general.architecture")
    return named if isinstance(named, str) else ""
