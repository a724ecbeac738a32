"""Files under which ranks meet go with their groups, those of killed groups with a later one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenspeed_sdk.collectives.meeting import OLD_S, forget, open_store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_file_of_a_killed_group_goes_with_a_later_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    open_store("killed", rank=0, timeout_s=5.0).set("a", "b")
    (killed,) = next(tmp_path.iterdir()).iterdir()
    open_store("joining", rank=0, timeout_s=5.0).set("a", "b")
    assert killed.exists()  # it may be joining yet
    age_s = killed.stat().st_mtime - OLD_S - 1
    os.utime(killed, (age_s, age_s))
    open_store("later", rank=1, timeout_s=5.0).set("a", "b")
    assert killed.exists()  # rank 0 looks, not each
    open_store("later", rank=0, timeout_s=5.0).set("a", "b")
    assert not killed.exists()
    for name in ("joining", "later"):
        forget(name)
    assert not [*killed.parent.iterdir()]
