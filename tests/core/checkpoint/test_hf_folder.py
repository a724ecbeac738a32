"""Model folders: config and shards are found; what is missing or damaged is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenspeed.checkpoint import HfFolder, is_hf_folder
from tokenspeed.errors import CheckpointError


def make_folder(path: Path, *, index: object = None, files: tuple[str, ...] = ()) -> Path:
    (path / "config.json").write_text('{"model_type": "llama"}')
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for file in files:
        (path / file).write_bytes(b"")
    return path


def test_a_single_file_is_found(tmp_path: Path) -> None:
    folder = HfFolder.read(make_folder(tmp_path, files=("model.safetensors",)))
    assert folder.config == {"model_type": "llama"}
    assert [shard.name for shard in folder.shards] == ["model.safetensors"]
    assert is_hf_folder(tmp_path)


def test_shards_come_from_the_index_once_each(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}
    folder = HfFolder.read(
        make_folder(tmp_path, index=index, files=("m-1.safetensors", "m-2.safetensors"))
    )
    assert [shard.name for shard in folder.shards] == ["m-1.safetensors", "m-2.safetensors"]
    assert folder.shard_of["c"].name == "m-2.safetensors"


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, "names gone.safetensors, which is not there"),
        ({"weight_map": {"a": "../x.safetensors"}}, "in the same folder"),
        ({"weight_map": {"a": 3}}, "weight_map names 3"),
        ({"weight_map": {}}, "weight_map is {}"),
        ([], "JSON list"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, index: object, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        HfFolder.read(make_folder(tmp_path, index=index))


def test_a_folder_without_safetensors_lists_what_it_holds(tmp_path: Path) -> None:
    make_folder(tmp_path, files=("pytorch_model.bin",))
    assert not is_hf_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds config\.json, pytorch_model\.bin"):
        HfFolder.read(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]"])
def test_a_damaged_config_is_refused(tmp_path: Path, content: bytes) -> None:
    make_folder(tmp_path, files=("model.safetensors",))
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        HfFolder.read(tmp_path)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: No such file"):
        HfFolder.read(tmp_path)
