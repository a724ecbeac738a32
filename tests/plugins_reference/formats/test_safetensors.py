"""The safetensors format: values, dtypes, shards, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokenspeed_reference.formats.safetensors import SafetensorsFormat, SafetensorsSource
from tokenspeed_sdk import CheckpointError


def make_folder(path: Path, shards: dict[str, dict[str, torch.Tensor]], **config: object) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    for file, tensors in shards.items():
        save_file(tensors, path / file)
    if list(shards) != ["model.safetensors"]:
        weight_map = {name: file for file, tensors in shards.items() for name in tensors}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


def load(source: SafetensorsSource, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    loaded = {}
    for name, weight in source.tensors(dtype, keep_packed=True):
        assert weight.packing == ""
        assert weight.plain is not None
        assert weight.plain.shape == weight.shape
        loaded[name] = weight.plain
    return loaded


def test_shards_give_every_tensor_once_with_equal_values(tmp_path: Path) -> None:
    first = {"a": torch.randn(5, 7), "b": torch.randn(3).bfloat16()}
    second = {"c": torch.randn(2, 2, 2).half(), "ids": torch.arange(4)}
    make_folder(tmp_path, {"m-1.safetensors": first, "m-2.safetensors": second})
    source = SafetensorsFormat().open(tmp_path)
    loaded = load(source)
    for name, expected in {**first, **second}.items():
        wanted = expected.float() if expected.is_floating_point() else expected
        assert torch.equal(loaded[name], wanted)
        assert loaded[name].dtype == wanted.dtype
    assert source.bytes_read == source.total_bytes == 5 * 7 * 4 + 3 * 2 + 8 * 2 + 4 * 8


def test_tensors_of_other_ranks_are_not_even_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, {"model.safetensors": {"a": torch.ones(2), "b": torch.ones(3)}})
    source = SafetensorsFormat().open(tmp_path)
    mapped = []
    monkeypatch.setattr(
        "tokenspeed_reference.formats.safetensors.map_tensor",
        lambda path, *, shape, dtype, **_: mapped.append(shape) or torch.ones(shape, dtype=dtype),
    )
    found = dict(source.tensors(torch.float32, keep_packed=False, skip={"a"}))
    assert ([*found], mapped) == (["b"], [(3,)])
    assert source.bytes_read == source.total_bytes


def test_tensors_of_odd_sizes_are_read_although_the_next_one_is_unaligned(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3).half(), "b": torch.tensor([True]), "c": torch.randn(9).half()}
    make_folder(tmp_path, {"model.safetensors": tensors})
    loaded = load(SafetensorsFormat().open(tmp_path), torch.float16)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_writing_into_a_loaded_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    make_folder(tmp_path, {"model.safetensors": {"a": torch.ones(4, 4)}})
    before = (tmp_path / "model.safetensors").read_bytes()
    load(SafetensorsFormat().open(tmp_path))["a"].zero_()
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_truncated_shard_is_refused_at_open(tmp_path: Path) -> None:
    make_folder(tmp_path, {"model.safetensors": {"a": torch.ones(64, 64)}})
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*the file has"):
        SafetensorsFormat().open(tmp_path)


def test_an_index_that_disagrees_with_its_shard_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, {"m-1.safetensors": {"a": torch.ones(1)}, "m-2.safetensors": {}})
    index = {"weight_map": {"a": "m-1.safetensors", "z": "m-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="'z' into m-1"):
        SafetensorsFormat().open(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = {"m-1.safetensors": {"a": torch.ones(1)}, "m-2.safetensors": {"a": torch.ones(1)}}
    make_folder(tmp_path, {**shards, "m-3.safetensors": {"b": torch.ones(1)}})
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "m-2.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'a' is in m-1.safetensors and in m-2"):
        SafetensorsFormat().open(tmp_path)


def test_quantised_checkpoints_are_refused_by_method(tmp_path: Path) -> None:
    config = {"quant_method": "gptq"}
    make_folder(tmp_path, {"model.safetensors": {"a": torch.ones(1)}}, quantization_config=config)
    with pytest.raises(CheckpointError, match="'gptq'"):
        SafetensorsFormat().open(tmp_path)


def test_a_dtype_without_plain_form_is_refused_by_tensor(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(8).to(torch.float8_e4m3fn)}
    make_folder(tmp_path, {"model.safetensors": tensors})
    with pytest.raises(CheckpointError, match=r"'a'.*F8_E4M3"):
        load(SafetensorsFormat().open(tmp_path))


def test_only_folders_with_safetensors_match(tmp_path: Path) -> None:
    assert not SafetensorsFormat().matches(tmp_path)
    make_folder(tmp_path, {"model.safetensors": {"a": torch.ones(1)}})
    assert SafetensorsFormat().matches(tmp_path)
    assert not SafetensorsFormat().matches(tmp_path / "model.safetensors")
