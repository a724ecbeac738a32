"""Token embeddings. Legend: T tokens, V vocabulary, D hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops import packing
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.weights import LinearWeight


def _lookup_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, vocab, hidden in ((0, 5, 8), (1, 5, 8), (9, 100, 64), (4, 1, 3)):
        ids = draw.integers(-2, vocab + 2, tokens)
        name = f"{tokens} of {vocab} words, some outside"
        yield Case(name, (ids, draw.floats(vocab, hidden)))
        yield Case(f"{name}, int32", (ids.int(), draw.floats(vocab, hidden)))


def _packed_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for name in domain.values("packing", *packing.LAYOUTS):
        weight = packing.random_weight(name, (20, 512), draw.random)
        calls = tuple((draw.integers(-3, 23, tokens),) for tokens in (0, 1, 9))
        yield Case(name, (weight, draw.dtype), traits={"packing": name}, calls=calls)


@operator(
    "embedding.lookup",
    tolerance=EXACT,
    cases=_lookup_cases,
    tokens=("token_ids_T",),
    placement="V[T], V D -> T D",
)
def embedding(token_ids_T: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
    """Take the rows of the token ids; an id outside [0, V) gives zeros and reads nothing.

    A rank that holds some rows of a table is given the ids less its first row.

    Args:
        token_ids_T: (T,) int64 or int32, device.
        weight_VD: (V, D) float.
    Returns:
        (T, D), dtype of the weight; exact.
    Source: Megatron-LM, Shoeybi et al. 2019, section 3 (an embedding cut along its vocabulary).
    """
    return _rows(weight_VD, token_ids_T)


@operator(
    "embedding.packed",
    cases=_packed_cases,
    placement="V[T], V D, - -> T D",
)
def packed_embedding(
    weight: LinearWeight, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare look-ups in a low-bit table; called once, while loading.

    Args:
        weight: packed, (V, D).
        dtype: of the rows returned.
    Returns:
        A callable: (T,) token ids, outside [0, V) as in `embedding.lookup` -> (T, D) of `dtype`.
    Source: `embedding.lookup` over the block formats of ggml, see ops/packing.py.
    """
    dense = packing.decode(weight)
    return lambda token_ids_T: _rows(dense, token_ids_T).to(dtype)


def _rows(table_VD: torch.Tensor, token_ids_T: torch.Tensor) -> torch.Tensor:
    ids_T = token_ids_T.long()
    near_T = ids_T.clamp(0, table_VD.shape[0] - 1)
    return table_VD[near_T].masked_fill((near_T != ids_T)[:, None], 0.0)
