"""Random damage to any file of a model ends in success or in an error of ours, and in time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.damage import (
    JSON_FILES,
    check_damage,
    load_all,
    write_tiny_folder,
    write_tiny_gguf,
)

CASES = 40
MANY_CASES = 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    return write_tiny_folder(tmp_path / "m")


@pytest.fixture
def gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    return write_tiny_gguf(tmp_path / "m.gguf")


def damage_folder(folder: Path, copy: Path, *, cases: int, seed: int) -> set[str]:
    chance = random.Random(seed)
    return {
        check_damage(folder, copy, JSON_FILES[case % len(JSON_FILES)], load_all, chance)
        for case in range(cases)
    }


def damage_gguf(file: Path, copy: Path, *, cases: int, seed: int) -> set[str]:
    chance = random.Random(seed)
    return {check_damage(file, copy, file.name, load_all, chance) for _ in range(cases)}


def test_the_undamaged_models_load(folder: Path, gguf_file: Path) -> None:
    load_all(folder)
    load_all(gguf_file)


def test_damaged_folders_fail_by_name_or_load(folder: Path, tmp_path: Path) -> None:
    outcomes = damage_folder(folder, tmp_path / "copy", cases=CASES, seed=7)
    assert {"CheckpointError", "ConfigError"} <= outcomes


def test_damaged_gguf_files_fail_by_name_or_load(gguf_file: Path, tmp_path: Path) -> None:
    outcomes = damage_gguf(gguf_file, tmp_path / "copy.gguf", cases=CASES // 4, seed=7)
    assert "CheckpointError" in outcomes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_much_damage_to_folders_fails_by_name_or_loads(
    folder: Path, tmp_path: Path, seed: int
) -> None:
    damage_folder(folder, tmp_path / "copy", cases=MANY_CASES, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_much_damage_to_gguf_files_fails_by_name_or_loads(
    gguf_file: Path, tmp_path: Path, seed: int
) -> None:
    damage_gguf(gguf_file, tmp_path / "copy.gguf", cases=MANY_CASES // 3, seed=seed)
