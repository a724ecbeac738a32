"""GGUF checkpoints: one file with weights and configuration.

Low-bit matrices are yielded packed, or expanded through the content-keyed cache. Llama files store
the rows of q and k interleaved for another rotary layout; that is undone here, packed or not.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from tokenspeed_reference.formats.dense_cache import CacheWriter, DenseCache
from tokenspeed_reference.formats.gguf_config import config_from_gguf
from tokenspeed_reference.formats.gguf_names import ROPE_FACTORS, hf_name
from tokenspeed_reference.formats.gguf_quants import (
    PLAIN_DTYPES,
    check_type,
    is_packable,
    read_packed,
    read_plain,
)
from tokenspeed_reference.formats.safetensors import read_tensor
from tokenspeed_sdk import CheckpointError, GgufHeader, GgufTensor, LinearWeight, SafetensorsHeader

MAGIC = b"GGUF"
_HEADS_KEY = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


class GgufFormat:
    """Opens .gguf files."""

    name = "gguf"

    def matches(self, path: Path) -> bool:
        """Say whether `path` is named .gguf or starts with GGUF's magic."""
        if not path.is_file():
            return False
        if path.suffix == ".gguf":
            return True
        with path.open("rb") as file:
            return file.read(4) == MAGIC

    def open(self, path: Path) -> GgufSource:
        """Parse the header and check every tensor's name and type.

        Raises:
            CheckpointError: missing, truncated or damaged; another architecture; an unsupported
                tensor type or name.
        """
        return GgufSource(GgufHeader.read(path))


class GgufSource:
    """An opened file. Tensors come in file order."""

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._config = config_from_gguf(header, _rope_factors(header))
        self._tensors = tuple(
            (hf_name(tensor.name), tensor)
            for tensor in sorted(header.tensors.values(), key=lambda tensor: tensor.offset)
            if tensor.name != ROPE_FACTORS
        )
        for _, tensor in self._tensors:
            check_type(header, tensor)
            self._check_heads(tensor)
        self.bytes_read = 0
        self.total_bytes = sum(tensor.num_bytes for _, tensor in self._tensors)

    def config(self) -> Mapping[str, Any]:
        """Return the equivalent of config.json."""
        return self._config

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool, skip: Container[str] = ()
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield every tensor by its Hugging Face name.

        Args:
            keep_packed: yield low-bit matrices as stored, see `gguf_quants.read_packed`.
            skip: names that are neither read nor yielded.
        """
        self.bytes_read = 0
        weights = self._packed(dtype, skip) if keep_packed else self._dense(dtype, skip)
        for name, tensor in self._tensors:
            if name not in skip:
                yield name, next(weights)
            self.bytes_read += tensor.num_bytes
        next(weights, None)  # what it does behind the last tensor

    def close(self) -> None:
        """Nothing is held open; mappings go with their tensors."""

    def _packed(self, dtype: torch.dtype, skip: Container[str]) -> Iterator[LinearWeight]:
        for _, tensor in self._without(skip):
            if is_packable(tensor):
                weight = read_packed(self._header, tensor)
                data = self._undo_interleave(tensor, weight.packed["data"])
                yield LinearWeight(weight.shape, None, weight.packing, {"data": data})
            else:
                yield self._expand(tensor, dtype)

    def _dense(self, dtype: torch.dtype, skip: Container[str]) -> Iterator[LinearWeight]:
        tensors = self._without(skip)
        if all(tensor.type_name in PLAIN_DTYPES for _, tensor in tensors):
            return (self._expand(tensor, dtype) for _, tensor in tensors)
        cache = DenseCache()
        path = cache.path_for(self._header.path, dtype)
        if path is None:
            return (self._expand(tensor, dtype) for _, tensor in tensors)
        cached = cache.open(path, self._shapes())
        if cached is not None:
            return self._from_cache(cached, tensors)
        num_bytes = dtype.itemsize * sum(torch.Size(t.shape).numel() for _, t in self._tensors)
        # A cache of a part of the tensors would be none.
        if len(tensors) < len(self._tensors) or not cache.has_room(num_bytes):
            return (self._expand(tensor, dtype) for _, tensor in tensors)
        return self._expand_into(path, dtype)

    def _without(self, skip: Container[str]) -> list[tuple[str, GgufTensor]]:
        return [item for item in self._tensors if item[0] not in skip]

    def _from_cache(
        self, cached: SafetensorsHeader, tensors: list[tuple[str, GgufTensor]]
    ) -> Iterator[LinearWeight]:
        for name, tensor in tensors:
            yield LinearWeight(tensor.shape, read_tensor(cached.path, cached.tensors[name]))

    def _expand_into(self, path: Path, dtype: torch.dtype) -> Iterator[LinearWeight]:
        writer = CacheWriter(path, self._shapes(), dtype)
        try:
            for _, tensor in self._tensors:
                weight = self._expand(tensor, dtype)
                assert weight.plain is not None
                writer.add(weight.plain)
                yield weight
            writer.finish()
        finally:
            writer.discard()

    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tensor.shape) for name, tensor in self._tensors]

    def _expand(self, tensor: GgufTensor, dtype: torch.dtype) -> LinearWeight:
        plain = read_plain(self._header, tensor).to(dtype)
        return LinearWeight(tensor.shape, self._undo_interleave(tensor, plain))

    def _undo_interleave(self, tensor: GgufTensor, rows: torch.Tensor) -> torch.Tensor:
        """Return q and k rows of a llama file in rotate-half order.

        Source: llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute; this is its inverse.
        """
        if self._config["model_type"] != "llama":
            return rows
        num_heads = self._num_heads(tensor)
        if num_heads is None:
            return rows
        split = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
        return split.transpose(1, 2).reshape(rows.shape)

    def _num_heads(self, tensor: GgufTensor) -> int | None:
        key = _HEADS_KEY.get(tensor.name.rsplit(".", 2)[-2])
        return None if key is None else int(self._config[key])

    def _check_heads(self, tensor: GgufTensor) -> None:
        num_heads, head_dim = self._num_heads(tensor), self._config["head_dim"]
        if num_heads is not None and tensor.shape[0] != num_heads * head_dim:
            raise CheckpointError(
                f"cannot load tensor {tensor.name!r} of {self._header.path}: it has "
                f"{tensor.shape[0]} rows, {num_heads} heads of {head_dim} need "
                f"{num_heads * head_dim}; the file is damaged; fetch or convert it again"
            )


def _rope_factors(header: GgufHeader) -> Any:
    tensor = header.tensors.get(ROPE_FACTORS)
    return None if tensor is None else read_plain(header, tensor).float().numpy()
