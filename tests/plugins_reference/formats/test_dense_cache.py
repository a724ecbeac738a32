"""The cache of expanded weights: content-keyed, atomic, bounded, and never in the way."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
from tests.support.gguf_files import weights, write_gguf

from tokenspeed_reference.formats import dense_cache
from tokenspeed_reference.formats.dense_cache import DenseCache, content_digest
from tokenspeed_reference.formats.gguf import GgufFormat


def load(path: Path) -> dict[str, torch.Tensor]:
    source = GgufFormat().open(path)
    pairs = source.tensors(torch.float32, keep_packed=False)
    return {name: weight.plain.clone() for name, weight in pairs if weight.plain is not None}


def cached_files(folder: Path) -> list[Path]:
    return sorted((folder / "weights").iterdir()) if (folder / "weights").exists() else []


def test_second_start_dequantises_nothing(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q4_1")
    first = load(tmp_path / "m.gguf")
    assert len(cached_files(cache_folder)) == 1

    def refuse(*_: object) -> None:
        raise AssertionError("dequantised again")

    monkeypatch.setattr("tokenspeed_reference.formats.gguf_quants.dequantise", refuse)
    second = load(tmp_path / "m.gguf")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_key_follows_content_not_name_or_time(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", weights(1), type_name="Q8_0")
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    os.utime(tmp_path / "b.gguf", (1, 1))
    assert content_digest(tmp_path / "a.gguf") == content_digest(tmp_path / "b.gguf")
    changed = bytearray((tmp_path / "a.gguf").read_bytes())
    changed[-5] ^= 1
    (tmp_path / "b.gguf").write_bytes(changed)
    assert content_digest(tmp_path / "a.gguf") != content_digest(tmp_path / "b.gguf")


def test_changed_weights_under_the_same_name_are_not_served_from_the_cache(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q8_0")
    first = load(tmp_path / "m.gguf")
    write_gguf(tmp_path / "m.gguf", weights(2), type_name="Q8_0")
    assert not torch.equal(first["lm_head.weight" if "lm_head.weight" in first else
                                 "model.embed_tokens.weight"],
                           load(tmp_path / "m.gguf")["model.embed_tokens.weight"])  # fmt: skip


def test_a_load_that_stops_early_leaves_no_file(tmp_path: Path, cache_folder: Path) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q8_0")
    pairs = GgufFormat().open(tmp_path / "m.gguf").tensors(torch.float32, keep_packed=False)
    next(iter(pairs))
    del pairs
    assert cached_files(cache_folder) == []


def test_a_damaged_cached_file_is_made_again(
    tmp_path: Path, cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q8_0")
    first = load(tmp_path / "m.gguf")
    (cached,) = cached_files(cache_folder)
    cached.write_bytes(cached.read_bytes()[:-9])
    with caplog.at_level(logging.WARNING, "tokenspeed"):
        second = load(tmp_path / "m.gguf")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert "made again" in caplog.text
    assert len(cached_files(cache_folder)) == 1


def test_a_full_disk_costs_the_cache_and_not_the_load(
    tmp_path: Path,
    cache_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q8_0")
    device = Path("/dev/full")
    real = dense_cache.tempfile.NamedTemporaryFile

    def full_disk(**options: object) -> object:
        file = real(dir=options["dir"], prefix=".new-", delete=False, buffering=0)
        os.dup2(os.open(device, os.O_WRONLY), file.fileno())
        return file

    monkeypatch.setattr(dense_cache.tempfile, "NamedTemporaryFile", full_disk)
    with caplog.at_level(logging.WARNING, "tokenspeed"):
        assert len(load(tmp_path / "m.gguf")) == 11
    assert "No space left" in caplog.text
    assert cached_files(cache_folder) == []


def test_the_file_used_longest_ago_is_evicted(tmp_path: Path, cache_folder: Path) -> None:
    folder = cache_folder / "weights"
    folder.mkdir(parents=True)
    for age, name in enumerate(("new", "middle", "old")):
        (folder / f"{name}.safetensors").write_bytes(b"0" * 400)
        os.utime(folder / f"{name}.safetensors", (1000 - age, 1000 - age))
    assert DenseCache(max_bytes=1000).has_room(400)
    assert [file.stem for file in cached_files(cache_folder)] == ["new"]


def test_files_of_killed_writers_are_removed_and_those_of_live_ones_kept(
    cache_folder: Path,
) -> None:
    folder = cache_folder / "weights"
    folder.mkdir(parents=True)
    for name in (".new-old", ".new-now"):
        (folder / name).write_bytes(b"0")
    os.utime(folder / ".new-old", (1000, 1000))
    assert DenseCache(max_bytes=1000).has_room(10)
    assert [file.name for file in cached_files(cache_folder)] == [".new-now"]


def test_what_is_larger_than_half_the_bound_is_not_kept(cache_folder: Path) -> None:
    assert not DenseCache(max_bytes=1000).has_room(501)


@pytest.mark.parametrize("damage", ["folder", "other name", "other type"])
def test_a_cached_file_that_is_not_what_its_name_says_is_made_again(
    tmp_path: Path, cache_folder: Path, damage: str
) -> None:
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q4_1")
    first = load(tmp_path / "m.gguf")
    (file,) = cached_files(cache_folder)
    whole = file.read_bytes()
    if damage == "folder":
        file.unlink()
        (file / "sub").mkdir(parents=True)
    elif damage == "other name":
        file.write_bytes(whole.replace(b"embed_tokens", b"embed_tokans", 1))
    else:
        file.write_bytes(whole.replace(b'"F32"', b'"I32"'))
    again = load(tmp_path / "m.gguf")
    assert all(torch.equal(first[name], again[name]) for name in first)
    load(tmp_path / "m.gguf")
    assert cached_files(cache_folder) == [file]
    assert file.is_file()


@pytest.mark.parametrize("kind", ["a file", "too long"])
def test_an_unusable_cache_folder_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / ("x" * 300 if kind == "too long" else "file")
    if kind == "a file":
        folder.touch()
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(folder))
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q4_1")
    assert load(tmp_path / "m.gguf")


def test_a_file_that_cannot_be_made_is_in_nobodys_way(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(dense_cache.tempfile, "NamedTemporaryFile", refuse)
    write_gguf(tmp_path / "m.gguf", weights(1), type_name="Q4_1")
    assert load(tmp_path / "m.gguf")
    assert cached_files(cache_folder) == []
