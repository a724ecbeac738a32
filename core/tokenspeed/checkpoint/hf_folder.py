"""A Hugging Face model folder: its config.json and its safetensors shards. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint.json_file import read_json_object, shown
from tokenspeed.errors import CheckpointError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class HfFolder:
    """What a model folder holds.

    Args:
        path: the folder.
        config: content of config.json.
        shards: safetensors files in name order.
        shard_of: tensor name -> its shard, from the index; empty for a single file.
    """

    path: Path
    config: Mapping[str, Any]
    shards: tuple[Path, ...]
    shard_of: Mapping[str, Path]

    @staticmethod
    def read(path: Path) -> HfFolder:
        """Read config and index; the shards themselves are not opened.

        Raises:
            CheckpointError: no config.json or weights, damaged JSON, a shard that is missing.
        """
        config = read_json_object(path / CONFIG_FILE)
        if (path / INDEX_FILE).is_file():
            shard_of = _read_index(path)
            return HfFolder(path, config, tuple(sorted(set(shard_of.values()))), shard_of)
        if (path / WEIGHTS_FILE).is_file():
            return HfFolder(path, config, (path / WEIGHTS_FILE,), {})
        found = sorted(entry.name for entry in path.iterdir())
        raise CheckpointError(
            f"no weights in {path}: it holds {', '.join(found[:12])}; {WEIGHTS_FILE} or "
            f"{INDEX_FILE} was expected; convert the weights to safetensors"
        )


def is_hf_folder(path: Path) -> bool:
    """Say whether `path` is a folder with config.json and safetensors weights."""
    return (path / CONFIG_FILE).is_file() and any(
        (path / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE)
    )


def _read_index(folder: Path) -> dict[str, Path]:
    index = folder / INDEX_FILE
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"cannot read {index}: weight_map is {shown(weight_map)}; an object of tensor name -> "
            "file was expected; fetch the file again"
        )
    return {name: _shard(folder, index, file) for name, file in weight_map.items()}


def _shard(folder: Path, index: Path, file: object) -> Path:
    # A bare file name only: an index must not reach outside its folder.
    if not isinstance(file, str) or Path(file).name != file or "\0" in file:
        raise CheckpointError(
            f"cannot read {index}: weight_map names {shown(file)}; a file name in the same folder "
            "was expected; fetch the index again"
        )
    if not (folder / file).is_file():
        raise CheckpointError(
            f"cannot read {folder}: {INDEX_FILE} names {file}, which is not there; every shard was "
            "expected in the folder; fetch the missing file"
        )
    return folder / file
