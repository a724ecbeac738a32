"""Portable kernels run in triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
HAS_GPU = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated

    from tests.support.interpreter import replace_once

    replace_once()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let exp(200) be inf, as on a GPU: numpy, which interprets, would warn."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
            )


@pytest.fixture(autouse=True)
def halves_are_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a kernel computes in bfloat16: the interpreter takes its bits for integers.

    What is loaded must be cast to float32 before anything but a move or a helper of `tl.dot`.
    """
    if HAS_GPU:
        return
    from triton.runtime.interpreter import InterpreterBuilder

    for name in ("binary_op", "unary_op", "ternary_op", "create_dot"):
        monkeypatch.setattr(InterpreterBuilder, name, _watched(getattr(InterpreterBuilder, name)))


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(builder: Any, *args: Any) -> Any:
        halves = [item for item in args if str(getattr(item, "dtype", "")) == "bf16"]
        assert not halves, f"{method.__name__} of bfloat16: cast what was loaded to float32 first"
        return method(builder, *args)

    return call
