"""Opens the tokenizer that belongs to a model path, whatever kind of checkpoint it is."""

from __future__ import annotations

from pathlib import Path

from tokenspeed.errors import ConfigError
from tokenspeed.tokenizer import gguf_tokenizer, hf_folder
from tokenspeed.tokenizer.tokenizer import Tokenizer


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Load the tokenizer of a Hugging Face folder or a .gguf file.

    Raises:
        ConfigError: neither of the two; or a GGUF tokenizer that is not supported, by name.
        CheckpointError: a file of it is damaged.
    """
    path = Path(path)
    if path.is_dir():
        return hf_folder.load(path, name=path.name)
    if path.is_file() and path.suffix == ".gguf":
        return gguf_tokenizer.load(path, name=path.stem)
    raise ConfigError(
        f"cannot load a tokenizer from {path}: it is neither a folder nor a .gguf file; a Hugging "
        "Face folder with tokenizer.json or a .gguf file is needed; check the path"
    )
