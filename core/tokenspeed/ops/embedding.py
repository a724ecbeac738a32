"""Token embeddings. Legend: T tokens, V vocabulary, D hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops import packing
from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.weights import LinearWeight


def _lookup_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, vocab, hidden in ((1, 5, 8), (9, 100, 64)):
        ids = torch.randint(-2, vocab + 2, (tokens,), generator=random)
        yield (ids, torch.randn(vocab, hidden, generator=random)), {}


def _packed_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for name in packing.LAYOUTS:
        yield (packing.random_weight(name, (20, 512), random), torch.float32), {}


@operator("embedding.lookup", tolerance={}, cases=_lookup_cases)
def embedding(token_ids_T: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """Take the rows of the token ids, which are clamped to [0, V): an id never reads outside.

    Args:
        token_ids_T: (T,) int64 or int32, device.
        weight_VD: (V, D) float.
    Returns:
        (T, D), dtype of the weight; exact.
    """
    return weight_VD[token_ids_T.long().clamp(0, weight_VD.shape[0] - 1)]


@operator("embedding.packed", cases=_packed_cases)
def packed_embedding(
    weight: LinearWeight, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare look-ups in a low-bit table; called once, while loading.

    Args:
        weight: packed, (V, D).
        dtype: of the rows returned.
    Returns:
        A callable: (T,) token ids, clamped as `embedding.lookup` does -> (T, D) of `dtype`.
    """
    dense = packing.decode(weight)
    return lambda token_ids_T: dense[token_ids_T.long().clamp(0, dense.shape[0] - 1)].to(dtype)
