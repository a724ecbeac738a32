"""Vocabularies of any size over any number of ranks: rows without a token fill the last parts.

Embedding and head have `padded_size` rows; those behind the vocabulary are zeros. No id is looked
up there, and logits are cut to the vocabulary before anybody sees them.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.placement import ParallelGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.placement import Shards
    from tokenspeed.placement.mesh import Mesh

NAME = "vocab_size"


def padded_size(vocab_size: int, parts: int) -> int:
    """Return the rows of which each part has as many."""
    return -(-vocab_size // parts) * parts


def rows_of(vocab_size: int, shards: Shards | None) -> int:
    """Return the rows of embedding and head, of all ranks together."""
    if shards is None:
        return vocab_size
    whole_group, _ = shards.place(ParallelGroup.VOCAB_TP, 0)  # nothing is cut into any parts
    return padded_size(vocab_size, whole_group)


def padded_config(config: Mapping[str, Any], mesh: Mesh) -> Mapping[str, Any]:
    """Return the config of a model whose vocabulary has the rows that a mesh needs."""
    return _with_rows(config, mesh.size(mesh.groups[ParallelGroup.VOCAB_TP]))


def roomy_config(config: Mapping[str, Any], numbers: Iterable[int]) -> Mapping[str, Any]:
    """Return the config of a model whose vocabulary fits any of these numbers of ranks."""
    return _with_rows(config, lcm(*numbers))


def _with_rows(config: Mapping[str, Any], parts: int) -> Mapping[str, Any]:
    vocab_size = config.get(NAME)
    if not isinstance(vocab_size, int):  # the model says what is wrong, or needs none
        return config
    rows = padded_size(vocab_size, parts)
    return config if rows == vocab_size else {**config, NAME: rows}
