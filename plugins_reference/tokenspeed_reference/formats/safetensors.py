"""Safetensors checkpoints: a Hugging Face folder (single file or sharded), tensors mapped."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tokenspeed_reference.formats.mapping import map_tensor
from tokenspeed_sdk import (
    CheckpointError,
    HfFolder,
    LinearWeight,
    SafetensorsHeader,
    SafetensorsTensor,
    is_hf_folder,
)

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class SafetensorsFormat:
    """Opens folders with config.json and safetensors weights."""

    name = "safetensors"

    def matches(self, path: Path) -> bool:
        """Say whether `path` is such a folder."""
        return is_hf_folder(path)

    def open(self, path: Path) -> SafetensorsSource:
        """Read config, index and every shard's header.

        Raises:
            CheckpointError: missing, truncated or damaged files, quantised weights.
        """
        folder = HfFolder.read(path)
        _refuse_quantised(path, folder.config)
        headers = tuple(SafetensorsHeader.read(shard) for shard in folder.shards)
        _check_index(folder, headers)
        return SafetensorsSource(folder.config, headers)


class SafetensorsSource:
    """An opened folder. Nothing stays open between two tensors."""

    def __init__(self, config: Mapping[str, Any], headers: tuple[SafetensorsHeader, ...]) -> None:
        self._config = config
        self._headers = headers
        self.bytes_read = 0
        self.total_bytes = sum(
            tensor.num_bytes for header in headers for tensor in header.tensors.values()
        )

    def config(self) -> Mapping[str, Any]:
        """Return config.json."""
        return self._config

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool, skip: Container[str] = ()
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield every tensor in file order; floating ones in `dtype`. Nothing here is packed.

        Args:
            skip: names that are neither mapped nor yielded.
        Raises:
            CheckpointError: a tensor type that has no plain form; names the tensor.
        """
        self.bytes_read = 0
        for header in self._headers:
            for tensor in header.tensors.values():
                if tensor.name not in skip:
                    plain = read_tensor(header.path, tensor)
                    if plain.is_floating_point():
                        plain = plain.to(dtype)
                    yield tensor.name, LinearWeight(tensor.shape, plain)
                self.bytes_read += tensor.num_bytes

    def close(self) -> None:
        """Nothing is held open; mappings go with their tensors."""


def read_tensor(path: Path, tensor: SafetensorsTensor) -> torch.Tensor:
    """Map one tensor in its stored dtype.

    Raises:
        CheckpointError: a dtype without a plain torch form.
    """
    if tensor.dtype not in TORCH_DTYPES:
        raise CheckpointError(
            f"cannot load tensor {tensor.name!r} of {path}: its dtype is {tensor.dtype}, supported "
            f"are {', '.join(TORCH_DTYPES)}; use an unquantised checkpoint"
        )
    return map_tensor(
        path,
        offset=tensor.offset,
        num_bytes=tensor.num_bytes,
        dtype=TORCH_DTYPES[tensor.dtype],
        shape=tensor.shape,
    )


def _refuse_quantised(path: Path, config: Mapping[str, Any]) -> None:
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise CheckpointError(
            f"cannot load {path}: quantization_config says {method!r}; unquantised safetensors and "
            "GGUF are supported; use one of these"
        )


def _check_index(folder: HfFolder, headers: tuple[SafetensorsHeader, ...]) -> None:
    by_path = {header.path: header.tensors for header in headers}
    for name, shard in folder.shard_of.items():
        if name not in by_path[shard]:
            raise CheckpointError(
                f"cannot load {folder.path}: the index puts tensor {name!r} into {shard.name}, "
                f"which has {len(by_path[shard])} tensors without it; index and shards must be of "
                "one checkpoint; fetch them again"
            )
    owners: dict[str, Path] = {}
    for header in headers:
        for name in header.tensors:
            if name in owners:
                raise CheckpointError(
                    f"cannot load {folder.path}: tensor {name!r} is in {owners[name].name} and in "
                    f"{header.path.name}; every tensor was expected once; fetch the shards again"
                )
            owners[name] = header.path
