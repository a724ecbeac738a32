"""The paged cache: storing keys and values, reading them back, copying blocks.

A backend of the attention slot (`contracts/attention.py`) owns the write; it plans once a step.
Legend: T query tokens, K kv heads, H head dim, V value dim, R rows, S cached tokens, B blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.batches import ROWS, batch_of, cache_for
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.attention import AttentionBatch, KVView
    from tokenspeed.contracts.kernel import Domain


def rows_of(batch: AttentionBatch) -> Iterator[tuple[slice, int, Any]]:
    """Yield (query tokens, cached tokens before them, block table) of each row."""
    for row, context in enumerate(batch.context_tokens.tolist()):
        query = slice(int(batch.query_start[row]), int(batch.query_start[row + 1]))
        yield query, context, batch.block_tables[row]


def cached(
    cache: torch.Tensor, table: Any, first: int, stop: int, block_tokens: int
) -> torch.Tensor:
    """Return what a row has cached at the positions [first, stop): (S, K, H)."""
    import torch

    places = torch.arange(first, stop)
    blocks = torch.from_numpy(table[first // block_tokens : -(-stop // block_tokens)]).long()
    block_of_place = blocks[places // block_tokens - first // block_tokens]
    return cache[block_of_place.to(cache.device), :, (places % block_tokens).to(cache.device)]


def _write_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for block_tokens in domain.values("block_tokens", 16):
        for head_dim in domain.values("head_dim", 16, 80):
            traits = {"block_tokens": block_tokens, "head_dim": head_dim}
            for name, shapes in ROWS.items():
                batch = batch_of(shapes, block_tokens, draw)
                k, v = (
                    draw.beside(int(batch.query_start[-1]), 2, head_dim, axis=1) for _ in range(2)
                )
                cache = cache_for(batch, 2, head_dim, draw)
                yield Case(f"{name}, {block_tokens} x {head_dim}", (k, v, cache, batch), {}, traits)
        if "mla" in domain.values("cache", "gqa", "mla"):
            yield from _latent_writes(block_tokens, draw)


def _latent_writes(block_tokens: int, draw: Draw) -> Iterator[Case]:
    traits = {"block_tokens": block_tokens, "cache": "mla", "head_dim": 20, "v_head_dim": 16}
    for name, shapes in ROWS.items():
        batch = batch_of(shapes, block_tokens, draw)
        latent = draw.beside(int(batch.query_start[-1]), 1, 20, axis=1)
        cache = cache_for(batch, 1, 20, draw, traits)
        args = (latent, latent[..., :16], cache, batch)
        yield Case(f"{name}, latent, {block_tokens}", args, {}, traits)


def _gather_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for block_tokens in domain.values("block_tokens", 16):
        traits = {"block_tokens": block_tokens}
        for name, shapes in ROWS.items():
            batch = batch_of(shapes, block_tokens, draw)
            yield Case(f"{name}, {block_tokens}", (cache_for(batch, 3, 8, draw), batch), {}, traits)


def _copy_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for name, copies in {
        "no copies": (),
        "a tail": ((3, 1, 5),),
        "one token, a whole block": ((0, 4, 1), (2, 1, 16)),
        "to two targets": ((5, 0, 7), (5, 3, 16)),
    }.items():
        blocks = draw.beside(4, 6, 2, 16, 8, axis=0)
        table = torch.tensor(copies, dtype=torch.int64).view(-1, 3)
        yield Case(name, (blocks, table))


@operator(
    "kv.write",
    tolerance=EXACT,
    cases=_write_cases,
    slot="attention",
    placement="T K H!, T K V!, -, - ->",
)
def write_kv(k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, batch: AttentionBatch) -> None:
    """Store each token's key and value at its position: block p // block_tokens of its row.

    Args:
        k_TKH: (T, K, H) float, device.
        v_TKH: (T, K, V); of a latent cache the first V elements of k, which are stored once.
        kv: written in place.
        batch: the step's rows.
    Returns:
        Nothing.
    Source: Efficient Memory Management for LLM Serving with PagedAttention, Kwon et al. 2023.
    """
    for query, context, table in rows_of(batch):
        for token in range(query.start, query.stop):
            position = context + token - query.start
            block, offset = int(table[position // batch.block_tokens]), position
            kv.k[block, :, offset % batch.block_tokens] = k_TKH[token].to(kv.k.dtype)
            kv.v[block, :, offset % batch.block_tokens] = v_TKH[token].to(kv.v.dtype)


@operator(
    "kv.gather",
    tolerance=EXACT,
    cases=_gather_cases,
    placement="-, - -> S! K! H!, S! K! V!",
)
def gather_kv(kv: KVView, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the keys and values of the rows, each from position 0 to its last query token.

    Args:
        kv: holds the step's own tokens already; read only.
        batch: the step's rows; it has no window.
    Returns:
        Keys and values, (S, K, H) each, row after row; S is the sum of the rows' tokens.
    Source: PagedAttention, Kwon et al. 2023, read the other way round.
    """
    import torch

    def read(cache: torch.Tensor) -> torch.Tensor:
        rows = [
            cached(cache, table, 0, context + query.stop - query.start, batch.block_tokens)
            for query, context, table in rows_of(batch)
        ]
        return torch.cat([cache[:0, :, 0], *rows])

    return read(kv.k), read(kv.v)


@operator(
    "kv.copy_tokens",
    tolerance=EXACT,
    cases=_copy_cases,
    placement="-, - ->",
)
def copy_tokens(blocks_LBKSH: torch.Tensor, copies_C3: torch.Tensor) -> None:
    """Copy the first tokens of blocks to other blocks, in every layer.

    Args:
        blocks_LBKSH: (layers, B, ..., tokens of a block, width) any dtype, device; written in
            place.
        copies_C3: (C, 3) int64 host: source block, target block, tokens from the block's first. No
            target is a source or a target of another copy.
    Returns:
        Nothing.
    Source: copy on write of PagedAttention, Kwon et al. 2023, token by token.
    """
    for source, target, count in copies_C3.tolist():
        blocks_LBKSH[:, target, ..., :count, :] = blocks_LBKSH[:, source, ..., :count, :]
