"""Weight-format slot: opens a checkpoint and yields tensors under Hugging Face names.

A tensor is either plain (a torch tensor) or packed (low-bit, kept as stored); a packed one names
the operator that multiplies with it. Legend: O output features, I input features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """One checkpoint tensor.

    Args:
        shape: logical shape, (O, I) for matrices.
        plain: the tensor in its logical shape, or None when packed.
        packing: name of the packed layout such as "q4_1"; "" when plain.
        packed: named parts of the packed form; their meaning belongs to the packing's operator.
    """

    shape: tuple[int, ...]
    plain: torch.Tensor | None
    packing: str = ""
    packed: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes in memory."""
        parts = self.packed.values() if self.plain is None else (self.plain,)
        return sum(part.nbytes for part in parts)


class WeightSource(Protocol):
    """An opened checkpoint."""

    total_bytes: int
    """Bytes to be read, as stored, for progress."""
    bytes_read: int
    """Bytes of the tensors that `tensors` has yielded and the caller has taken."""

    def config(self) -> Mapping[str, Any]:
        """Return config.json, or its equivalent made from the checkpoint's own metadata."""
        ...

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield every tensor once, by Hugging Face name, plain ones converted to `dtype`.

        A source that can leave tensors unread has one more keyword, `skip: Container[str] = ()`:
        names that are not yielded, since other ranks hold them; they count as read. One that makes
        its tensors up has `wanted: Mapping[str, tuple[int, ...]]`, name -> shape of what the model
        takes, and `device`, where to make them.

        Raises:
            CheckpointError: damaged or truncated file, unsupported tensor type; names the tensor.
        """
        ...

    def close(self) -> None:
        """Release files and mappings."""
        ...


class WeightFormat(Protocol):
    """Recognises and opens one family of checkpoint files."""

    name: str

    def matches(self, path: Path) -> bool:
        """Say whether this format can open the file or folder; reads at most a header."""
        ...

    def open(self, path: Path) -> WeightSource:
        """Open it.

        Raises:
            CheckpointError: missing, truncated or damaged.
        """
        ...
