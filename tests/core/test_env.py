"""The environment is read, and OpenMP calmed, before anything heavy loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.env import OPENMP_SPINS, cache_dir, limit_openmp_spinning


def test_the_cache_folder_is_the_given_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_a_users_own_openmp_setting_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import os

    for each in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "ACTIVE")
    limit_openmp_spinning()
    assert os.environ[name] == "ACTIVE"
    assert os.environ.get("GOMP_SPINCOUNT") in (None, "ACTIVE")


def test_without_one_the_spinning_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "")
    monkeypatch.delenv("GOMP_SPINCOUNT")
    limit_openmp_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == OPENMP_SPINS
