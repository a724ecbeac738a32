"""The GGUF format: every type against the public package, packed rows, names, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.gguf_files import HEADS, KV_HEADS, stored_rows, weights, write_gguf

from tokenspeed_reference.formats.gguf import GgufFormat
from tokenspeed_reference.formats.gguf_names import hf_name
from tokenspeed_sdk import CheckpointError, LinearWeight

PACKED = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
TYPES = ("F32", "F16", "BF16", *PACKED)


def load(
    path: Path, dtype: torch.dtype = torch.float32, *, keep_packed: bool = False
) -> dict[str, LinearWeight]:
    return dict(GgufFormat().open(path).tensors(dtype, keep_packed=keep_packed))


def expected(name: str, rows: NDArray[Any], type_name: str, *, arch: str) -> torch.Tensor:
    """Dequantise with the public package and put q and k rows in rotate-half order, row by row."""
    kind = gguf.GGMLQuantizationType[type_name if rows.ndim == 2 else "F32"]
    values = gguf.quants.dequantize(rows, kind).astype(np.float32)
    heads = HEADS if "attn_q." in name else KV_HEADS
    if arch == "llama" and ("attn_q." in name or "attn_k." in name):
        dim = len(values) // heads
        order = [h * dim + 2 * (i % (dim // 2)) + i // (dim // 2) for h in range(heads)
                 for i in range(dim)]  # fmt: skip
        values = values[order]
    return torch.from_numpy(values.copy())


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_dense_values_equal_the_public_packages(tmp_path: Path, type_name: str, arch: str) -> None:
    path = tmp_path / "m.gguf"
    stored = write_gguf(path, weights(1, arch=arch), arch=arch, type_name=type_name)
    for _ in range(2):  # the second time from the cache
        loaded = load(path)
        assert len(loaded) == len(stored)
        for name, rows in stored.items():
            plain = loaded[hf_name(name)].plain
            assert plain is not None
            assert torch.equal(plain, expected(name, rows, type_name, arch=arch)), name
            assert loaded[hf_name(name)].shape == tuple(plain.shape)


@pytest.mark.parametrize("type_name", PACKED)
def test_packed_rows_expand_to_the_dense_values(tmp_path: Path, type_name: str) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, weights(2), type_name=type_name)
    dense, packed = load(path), load(path, keep_packed=True)
    kind = gguf.GGMLQuantizationType[type_name]
    for name, weight in packed.items():
        plain = dense[name].plain
        assert plain is not None
        assert weight.shape == tuple(plain.shape)
        if len(weight.shape) == 1:
            assert weight.packing == ""
            continue
        assert weight.plain is None
        assert weight.packing == type_name.lower()
        data = weight.packed["data"]
        assert data.dtype == torch.uint8
        assert data.shape[0] == weight.shape[0]
        assert torch.equal(torch.from_numpy(gguf.quants.dequantize(data.numpy(), kind)), plain)


def test_plain_types_are_not_packed_when_asked_to_keep_packed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(3), type_name="F16")
    assert {w.packing for w in load(tmp_path / "m.gguf", keep_packed=True).values()} == {""}


def test_dtype_is_the_one_asked_for(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(3), type_name="Q8_0")
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        plains = [weight.plain for weight in load(tmp_path / "m.gguf", dtype).values()]
        assert {plain.dtype for plain in plains if plain is not None} == {dtype}


def test_tensors_come_in_file_order_and_count_their_bytes(tmp_path: Path) -> None:
    stored = write_gguf(tmp_path / "m.gguf", weights(4), type_name="Q4_1")
    source = GgufFormat().open(tmp_path / "m.gguf")
    assert source.total_bytes == sum(rows.nbytes for rows in stored.values())
    seen = [name for name, _ in source.tensors(torch.float32, keep_packed=True)]
    assert seen == [hf_name(name) for name in stored]
    assert source.bytes_read == source.total_bytes


@pytest.mark.parametrize("keep_packed", [False, True])
@pytest.mark.parametrize("is_cached", [False, True])
def test_tensors_of_other_ranks_are_left_out(
    tmp_path: Path, keep_packed: bool, is_cached: bool
) -> None:
    write_gguf(tmp_path / "m.gguf", weights(4), type_name="Q4_1")
    source = GgufFormat().open(tmp_path / "m.gguf")
    if is_cached:
        assert load(tmp_path / "m.gguf")
    names = [*load(tmp_path / "m.gguf", keep_packed=True)]
    skipped = set(names[1::2])
    found = dict(source.tensors(torch.float32, keep_packed=keep_packed, skip=skipped))
    whole = load(tmp_path / "m.gguf", keep_packed=keep_packed)
    assert [*found] == [name for name in whole if name not in skipped]
    for name, weight in found.items():
        if weight.plain is not None:
            assert torch.equal(weight.plain, whole[name].plain)  # type: ignore[arg-type]
        else:
            assert torch.equal(weight.packed["data"], whole[name].packed["data"])
    assert source.bytes_read == source.total_bytes


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_config_is_made_from_metadata(tmp_path: Path, arch: str) -> None:
    write_gguf(tmp_path / "m.gguf", weights(5, arch=arch), arch=arch)
    config = GgufFormat().open(tmp_path / "m.gguf").config()
    assert config["architectures"] == [
        {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[arch] + "ForCausalLM"
    ]
    wanted = {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 32,
        "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "vocab_size": 40, "eos_token_id": 2,
        "tie_word_embeddings": arch != "qwen3",
    }  # fmt: skip
    assert {key: config[key] for key in wanted} == wanted


def test_llama3_rope_divisors_become_rope_scaling(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_theta": 50000.0,
    }  # fmt: skip
    hf_config = LlamaConfig(
        hidden_size=256, num_attention_heads=8, head_dim=32, rope_parameters=scaling,
        max_position_embeddings=131072,
    )  # fmt: skip
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](hf_config, torch.device("cpu"))
    plain = 50000.0 ** (-torch.arange(0, 32, 2) / 32)
    tensors = {**weights(6), "rope_freqs.weight": (plain / frequencies).float().numpy()}
    write_gguf(tmp_path / "m.gguf", tensors)
    made = GgufFormat().open(tmp_path / "m.gguf").config()["rope_scaling"]
    assert made == {key: value for key, value in scaling.items() if key != "rope_theta"}
    assert "rope_freqs.weight" not in load(tmp_path / "m.gguf")


def test_other_rope_divisors_are_refused(tmp_path: Path) -> None:
    tensors = {**weights(6), "rope_freqs.weight": np.linspace(1, 9, 16, dtype=np.float32)}
    write_gguf(tmp_path / "m.gguf", tensors)
    with pytest.raises(CheckpointError, match="16 divisors up to 9"):
        GgufFormat().open(tmp_path / "m.gguf")


def test_named_rope_scaling_is_passed_on(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    write_gguf(tmp_path / "m.gguf", weights(6), metadata=metadata)
    made = GgufFormat().open(tmp_path / "m.gguf").config()["rope_scaling"]
    assert made == {"rope_type": "linear", "factor": 4.0}


def test_an_unknown_tensor_name_is_refused(tmp_path: Path) -> None:
    tensors = {**weights(7), "blk.0.ffn_gate_exps.weight": np.ones((32, 32), np.float32)}
    write_gguf(tmp_path / "m.gguf", tensors)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ffn_gate_exps\.weight'"):
        GgufFormat().open(tmp_path / "m.gguf")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(7), arch="gemma2")
    with pytest.raises(CheckpointError, match="'gemma2', supported are llama, qwen2, qwen3"):
        GgufFormat().open(tmp_path / "m.gguf")


def test_an_unsupported_type_is_refused_with_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer_weights = weights(8)
    write_gguf(path, writer_weights, type_name="Q5_0")
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight'.*Q5_0, supported are F32"):
        GgufFormat().open(path)


@pytest.mark.parametrize("keep", [0, 3, 20, 700, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, weights(9), type_name="Q8_0")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        GgufFormat().open(path)


def test_flipped_header_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, weights(9), type_name="Q8_0")
    whole = path.read_bytes()
    random = np.random.default_rng(3)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        damaged[int(random.integers(0, 1900))] = int(random.choice([0, 1, 255, 77]))
        path.write_bytes(damaged)
        try:
            list(GgufFormat().open(path).tensors(torch.float32, keep_packed=True))
        except CheckpointError:
            refused += 1
    assert refused > 100


def test_gguf_files_match_by_suffix_or_magic(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1))
    (tmp_path / "plain").write_bytes((tmp_path / "m.gguf").read_bytes())
    (tmp_path / "other.bin").write_bytes(b"none")
    names = [path.name for path in sorted(tmp_path.iterdir()) if GgufFormat().matches(path)]
    assert names == ["m.gguf", "plain"]


def test_stored_rows_of_the_factory_are_finite() -> None:
    for type_name in PACKED:
        rows = stored_rows(np.ones((2, 256), np.float32), type_name)
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[type_name])
        assert np.isfinite(values).all()
