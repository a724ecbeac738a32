"""Attention: over the paged cache, over packed rows, and the merge of partial results.

`attention.paged` is what a backend of the attention slot computes (`contracts/attention.py`).
Legend: T query tokens, R rows, N query heads, K kv heads, H head dim, V value dim, S keys, P parts.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.batches import ROWS, batch_of, cache_for
from tokenspeed.ops.declare import operator
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.kv import cached, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.attention import AttentionBatch, KVView
    from tokenspeed.contracts.kernel import Domain

KV_HEADS = {1: 4, 8: 1}
"""Query heads of a kv head -> kv heads; 2 of any other ratio."""


def _paged_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    blocks, dims = domain.values("block_tokens", 16), domain.values("head_dim", 16, 80)
    ratios = domain.values("gqa_ratio", 3, 1, 8)
    if not (blocks and dims):
        return
    kinds = [
        (window, sinks, softcap)
        for window in domain.values("window", 0, 1, 17)
        for sinks in domain.values("sinks", False, True)
        for softcap in domain.values("softcap", 0.0, 2.0)
    ]
    for index, ((name, shapes), kind, block_tokens) in enumerate(
        product(ROWS.items(), kinds, blocks)
    ):
        window, sinks, softcap = kind
        traits = {
            "block_tokens": block_tokens,
            "head_dim": dims[index % len(dims)],
            "window": window,
            "sinks": sinks,
            "softcap": softcap,
        }
        yield _paged_case(name, shapes, ratios[index % len(ratios)], traits, draw)
    for kind, head_dim, value_dim in (("gqa", 16, 12), ("mla", 20, 16)):
        if kind in domain.values("cache", "gqa", "mla"):
            traits = {"block_tokens": blocks[0], "cache": kind, "head_dim": head_dim}
            traits["v_head_dim"] = value_dim
            for name, shapes in ROWS.items():
                yield _paged_case(name, shapes, 4 if kind == "mla" else 2, traits, draw)
    for head_dim in domain.values("head_dim", 16, 6, 64, 80, 128):
        traits = {"block_tokens": blocks[0], "head_dim": head_dim}
        for ratio in ratios:
            rows = ((17, 1), (31, 1), (15, 3))
            yield _paged_case("few rows", rows, ratio, traits, draw)


def _paged_case(
    name: str,
    shapes: tuple[tuple[int, int], ...],
    ratio: int,
    traits: dict[str, Any],
    draw: Draw,
) -> Case:
    window, head_dim = traits.get("window", 0), traits["head_dim"]
    kv_heads = 1 if traits.get("cache") == "mla" else KV_HEADS.get(ratio, 2)
    heads, traits = ratio * kv_heads, {**traits, "gqa_ratio": ratio}
    batch = batch_of(shapes, traits["block_tokens"], draw, window=window)
    q = draw.beside(int(batch.query_start[-1]), heads, head_dim, axis=1)
    options: dict[str, Any] = {"scale": 1.3 * head_dim**-0.5}
    if traits.get("sinks"):
        options["sinks_N"] = draw.floats(heads, scale=4)
    if traits.get("softcap"):
        options["softcap"] = traits["softcap"]
    kind = ", ".join(f"{key} {value}" for key, value in traits.items())
    cache = cache_for(batch, kv_heads, head_dim, draw, traits)
    return Case(f"{name}, {kind}", (q, cache, batch), options, traits)


def _varlen_cases(domain: Domain) -> Iterator[Case]:
    import numpy as np

    draw = Draw(domain)
    rows = {
        "no rows": (),
        "one key": ((1, 1),),
        "decodes": ((1, 40), (1, 3)),
        "prompts": ((17, 17), (2, 2)),
        "chunks after a cached prefix": ((5, 30), (16, 33)),
        "queries without keys": ((4, 0), (3, 9)),
    }
    for index, ((name, shapes), is_causal) in enumerate(product(rows.items(), (True, False))):
        if is_causal and any(queries > keys for queries, keys in shapes):
            continue
        heads, kv_heads = ((6, 2), (4, 4), (8, 1))[index % 3]
        for window, softcap, sinks in ((0, 0.0, False), (7 * is_causal, 2.0, True)):
            query_start, key_start = (
                np.cumsum([0, *(shape[axis] for shape in shapes)], dtype=np.int32)
                for axis in (0, 1)
            )
            q = draw.beside(int(query_start[-1]), heads, 12, axis=1)
            k = draw.beside(int(key_start[-1]), kv_heads, 12, axis=1)
            v = draw.floats(int(key_start[-1]), kv_heads, 8)
            options = {
                "scale": 0.4,
                "is_causal": is_causal,
                "window": window,
                "softcap": softcap,
                "sinks_N": draw.floats(heads, scale=3) if sinks else None,
            }
            kind = "causal" if is_causal else "all keys"
            named = f"{name}, {kind}, window {window}, softcap {softcap}, sinks {sinks}"
            yield Case(named, (q, k, v, query_start, key_start), options)


def _merge_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for parts, tokens, heads, dim in ((1, 3, 2, 8), (2, 0, 2, 8), (2, 5, 6, 16), (5, 1, 1, 7)):
        out, lse = draw.floats(parts, tokens, heads, dim), draw.wide(parts, tokens, heads, scale=20)
        yield Case(f"{parts} parts, {tokens} x {heads} x {dim}", (out, lse))
    lse = draw.wide(3, 4, 2)
    lse[0, 1], lse[:2, 2], lse[:, 3] = -torch.inf, -torch.inf, -torch.inf
    yield Case("parts that saw nothing", (draw.floats(3, 4, 2, 8), lse))


@operator(
    "attention.paged",
    cases=_paged_cases,
    slot="attention",
    tokens=("q_TNH",),
    placement="Q N H!, T K H!, T K V!, N -> Q N V!; K<N, T<Q",
)
def paged_attention(
    q_TNH: torch.Tensor,
    kv: KVView,
    batch: AttentionBatch,
    *,
    scale: float,
    sinks_N: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attend each token to its row's cache at positions up to its own: softmax(scale q k) v.

    With a window the last `batch.window` positions are seen. A sink is one more score, whose value
    is zero.

    Args:
        q_TNH: (T, N, H) float, device; query head n reads kv head n * K // N.
        kv: holds the step's own tokens already; read only. Its values may have another width than
            its keys, or be the first part of them (latent attention: one kv head).
        batch: the step's rows.
        scale: multiplies q k.
        sinks_N: (N,) float, or None.
        softcap: scores s become softcap tanh(s / softcap); 0: none.
    Returns:
        (T, N, V), dtype of q.
    Source: Attention Is All You Need, Vaswani et al. 2017; GQA, Ainslie et al. 2023; sinks:
        Efficient Streaming Language Models with Attention Sinks, Xiao et al. 2023; softcap: Gemma
        2 report, 2024; latent: DeepSeek-V2, 2024, section 2.1.
    """

    out = q_TNH.new_empty(*q_TNH.shape[:2], kv.v.shape[-1])
    for query, context, table in rows_of(batch):
        for token in range(query.start, query.stop):
            position = context + token - query.start
            first = max(0, position + 1 - batch.window) if batch.window else 0
            k_SKH, v_SKV = (
                cached(cache, table, first, position + 1, batch.block_tokens).to(q_TNH.dtype)
                for cache in (kv.k, kv.v)
            )
            scores_NS = _scores(q_TNH[token], k_SKH, scale, softcap)
            out[token], _ = _weighted(scores_NS, v_SKV, sinks_N)
    return out


@operator(
    "attention.varlen",
    cases=_varlen_cases,
    result_dtypes=("", "float32"),
    placement="T! N H!, S! K H!, S! K V, -, -, N -> T! N V, T! N; K<N",
)
def varlen_attention(
    q_TNH: torch.Tensor,
    k_SKH: torch.Tensor,
    v_SKV: torch.Tensor,
    query_start: Any,
    key_start: Any,
    *,
    scale: float,
    is_causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend rows of any lengths, packed one after another, to their own keys.

    The last query of a row stands at its last key: query t of T sees the keys up to S - T + t where
    it is causal, and of these the last `window`. So a chunk attends to a cached prefix and itself,
    or, not causal, to the prefix alone, to be merged with the rest by `attention.merge`.

    Args:
        q_TNH: (T, N, H) float, device; query head n reads kv head n * K // N.
        k_SKH, v_SKV: (S, K, H) and (S, K, V) same dtype.
        query_start, key_start: (R + 1,) int32 host; where the queries and keys of each row start. A
            causal row has at least as many keys as queries.
        scale: multiplies q k.
        is_causal: False: every query sees every key of its row.
        window: of a causal row, keys that a query sees, itself included; 0: all.
        softcap: scores s become softcap tanh(s / softcap); 0: none.
        sinks_N: (N,) float, or None: one more score a head, whose value is zero.
    Returns:
        (T, N, V), dtype of q, zeros where nothing is seen; and (T, N) float32, the logarithm of the
        sum of the exponentials of the scores, the sink's included; -inf where nothing is seen.
    Source: FlashAttention-2, Dao 2023, section 3.1, for the second result.
    """
    import torch

    out = q_TNH.new_zeros(*q_TNH.shape[:2], v_SKV.shape[-1])
    lse = q_TNH.new_zeros(q_TNH.shape[:2], dtype=torch.promote_types(q_TNH.dtype, torch.float32))
    for row in range(len(query_start) - 1):
        queries = range(int(query_start[row]), int(query_start[row + 1]))
        keys = range(int(key_start[row]), int(key_start[row + 1]))
        for token in queries:
            last = keys.stop - queries.stop + token if is_causal else keys.stop - 1
            first = max(keys.start, last + 1 - window) if window else keys.start
            scores_NS = _scores(q_TNH[token], k_SKH[first : last + 1], scale, softcap)
            out[token], lse[token] = _weighted(scores_NS, v_SKV[first : last + 1], sinks_N)
    return out, lse


@operator(
    "attention.merge",
    cases=_merge_cases,
    result_dtypes=("", "float32"),
    placement="P! T N V, P! T N -> T N V, T N",
)
def merge_attention(
    out_PTNV: torch.Tensor, lse_PTN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join attention over disjoint sets of keys: sum over p of exp(lse_p - lse) out_p.

    Args:
        out_PTNV: (P, T, N, V) float, device.
        lse_PTN: (P, T, N) float32; -inf where a part has seen nothing.
    Returns:
        (T, N, V), dtype of `out_PTNV`, zeros where no part has seen anything; and lse (T, N)
        float32, the logarithm of the sum of the exponentials of the parts'.
    Source: FlashInfer, Ye et al. 2025, section 2.2 (attention states compose).
    """
    lse_TN = lse_PTN.logsumexp(0)
    shares_PTN = (lse_PTN - lse_TN).exp().masked_fill(lse_PTN == float("-inf"), 0.0)
    return (shares_PTN[..., None] * out_PTNV).sum(0), lse_TN


def _scores(q_NH: torch.Tensor, k_SKH: torch.Tensor, scale: float, softcap: float) -> torch.Tensor:
    """Return (N, S)."""
    group = q_NH.shape[0] // k_SKH.shape[1]
    k_NHS = k_SKH.permute(1, 2, 0).repeat_interleave(group, dim=0)
    scores_NS = (q_NH[:, None] @ k_NHS).squeeze(1) * scale
    return softcap * (scores_NS / softcap).tanh() if softcap else scores_NS


def _weighted(
    scores_NS: torch.Tensor, v_SKV: torch.Tensor, sinks_N: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (N, V), and (N,) the logsumexp of the scores."""
    import torch

    if sinks_N is not None:
        scores_NS = torch.cat([scores_NS, sinks_N[:, None]], dim=1)
    lse_N = scores_NS.logsumexp(1)
    weights_NS = (scores_NS - lse_N[:, None]).exp()[:, : v_SKV.shape[0]]
    v_NSV = v_SKV.permute(1, 0, 2).repeat_interleave(len(lse_N) // v_SKV.shape[1], dim=0)
    return (weights_NS[:, None] @ v_NSV).squeeze(1), lse_N
