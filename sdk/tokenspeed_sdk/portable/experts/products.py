# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The two products of an expert, over tiles of the pairs that chose it.

A pair is a token and one of its chosen experts: pair p of X a token belongs to token p / X. Both
products and what lies between them have a row a pair, wherever its tile is.
Legend: T tokens, X chosen experts a token, P pairs, E experts, D hidden, F features of an expert;
M rows, N columns and K terms of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.dot import dot


@triton.jit
def _sorted_tile(work_ptr, tile, most_tiles, BLOCK_M: tl.constexpr):
    """Return the expert (-1: none), pairs and their presence of a tile of sorted pairs."""
    expert = tl.load(work_ptr + tile)
    first = tl.load(work_ptr + most_tiles + tile, mask=expert >= 0, other=0)
    end = tl.load(work_ptr + 2 * most_tiles + tile, mask=expert >= 0, other=0)
    place_M = first + tl.arange(0, BLOCK_M)
    inside_M = place_M < end
    pair_M = tl.load(work_ptr + 3 * most_tiles + place_M, mask=inside_M, other=0)
    return expert, pair_M, inside_M


@triton.jit
def _direct_tile(
    experts_ptr,
    tile,
    num_pairs,
    num_experts,
    TOP_K: tl.constexpr,
    BY_EXPERT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """Return as `_sorted_tile`; a row is a token, all of which fit.

    A tile stands for an expert, or for a pair: then it has that pair's expert, unless an earlier
    pair has it too.
    """
    slot_X = tl.arange(0, BLOCK_X)
    pair_MX = tl.arange(0, BLOCK_M)[:, None] * TOP_K + slot_X[None, :]
    inside_MX = (slot_X < TOP_K)[None, :] & (pair_MX < num_pairs)
    expert_MX = tl.load(experts_ptr + pair_MX, mask=inside_MX, other=-1).to(tl.int32)
    if BY_EXPERT:
        expert = tile
    else:
        expert = tl.load(experts_ptr + tile).to(tl.int32)
        expert = tl.where(expert < num_experts, expert, -1)
    is_its_MX = (expert_MX == expert) & inside_MX
    first = tl.min(tl.where(is_its_MX, pair_MX, num_pairs))
    if BY_EXPERT:
        is_due = first < num_pairs
    else:
        is_due = first == tile
    pair_M = tl.max(tl.where(is_its_MX, pair_MX, 0), 1)
    inside_M = tl.max(is_its_MX.to(tl.int32), 1) > 0
    return tl.where(is_due, expert, -1), pair_M, inside_M


@triton.jit
def _product(
    a_ptr,
    a_row_M,
    a_stride,
    inside_M,
    w_ptr,
    w_row_N,
    terms,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Return rows of a times rows of w, float32; w's rows are contiguous and all exist."""
    k = tl.arange(0, BLOCK_K)
    a_MK = a_ptr + a_row_M.to(tl.int64)[:, None] * a_stride + k[None, :]
    w_KN = w_ptr + w_row_N.to(tl.int64)[None, :] * terms + k[:, None]
    sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, terms, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_MK + start, mask=inside_M[:, None], other=0.0)
            w = tl.load(w_KN + start)
        else:
            inside_K = start + k < terms
            a = tl.load(a_MK + start, mask=inside_M[:, None] & inside_K[None, :], other=0.0)
            w = tl.load(w_KN + start, mask=inside_K[:, None], other=0.0)
        sum_MN = dot(a, w, sum_MN)
    return sum_MN


@triton.jit
def moe_gate_up_kernel(
    x_ptr,
    experts_ptr,
    work_ptr,
    w_ptr,
    bias_ptr,
    hidden_ptr,
    x_stride,
    num_pairs,
    num_experts,
    most_tiles,
    terms,
    features,
    alpha,
    limit,
    CLAMPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SORTED: tl.constexpr,
    BY_EXPERT: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_X: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Write (P, F): the gate of the first product; columns of a tile are gate and up in turn."""
    num_n = tl.cdiv(features, BLOCK_N // 2)
    tile = tl.program_id(0) // num_n
    if SORTED:
        expert, pair_M, inside_M = _sorted_tile(work_ptr, tile, most_tiles, BLOCK_M)
    else:
        expert, pair_M, inside_M = _direct_tile(
            experts_ptr, tile, num_pairs, num_experts, TOP_K, BY_EXPERT, BLOCK_M, BLOCK_X
        )
    if expert < 0:
        return
    first = tl.program_id(0) % num_n * (BLOCK_N // 2)
    column_N = tl.arange(0, BLOCK_N)
    feature_N = tl.minimum(first + column_N // 2, features - 1)
    row_N = column_N % 2 * features + feature_N
    weight = w_ptr + expert.to(tl.int64) * (2 * features * terms.to(tl.int64))
    gate_up_MN = _product(
        x_ptr,
        pair_M // TOP_K,
        x_stride,
        inside_M,
        weight,
        row_N,
        terms,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        EVEN_K,
    )
    if HAS_BIAS:
        bias_N = tl.load(bias_ptr + expert.to(tl.int64) * (2 * features) + row_N)
        gate_up_MN += bias_N.to(tl.float32)[None, :]
    gate, up = tl.split(tl.reshape(gate_up_MN, [BLOCK_M, BLOCK_N // 2, 2]))
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.maximum(tl.minimum(up, limit), -limit)
        result = gate / (1 + tl.exp(-alpha * gate)) * (up + 1)
    else:
        result = gate / (1 + tl.exp(-gate)) * up
    feature = first + tl.arange(0, BLOCK_N // 2)
    at = hidden_ptr + pair_M.to(tl.int64)[:, None] * features + feature[None, :]
    inside = inside_M[:, None] & (feature < features)[None, :]
    tl.store(at, result.to(hidden_ptr.dtype.element_ty), mask=inside)


@triton.jit
def moe_down_kernel(
    hidden_ptr,
    experts_ptr,
    work_ptr,
    w_ptr,
    bias_ptr,
    weights_ptr,
    out_ptr,
    num_pairs,
    num_experts,
    most_tiles,
    terms,
    features,
    HAS_BIAS: tl.constexpr,
    SORTED: tl.constexpr,
    BY_EXPERT: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_X: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    """Write (P, D): each pair's second product, weighed; `terms` is F, `features` D."""
    num_n = tl.cdiv(features, BLOCK_N)
    tile = tl.program_id(0) // num_n
    if SORTED:
        expert, pair_M, inside_M = _sorted_tile(work_ptr, tile, most_tiles, BLOCK_M)
    else:
        expert, pair_M, inside_M = _direct_tile(
            experts_ptr, tile, num_pairs, num_experts, TOP_K, BY_EXPERT, BLOCK_M, BLOCK_X
        )
    if expert < 0:
        return
    feature_N = tl.program_id(0) % num_n * BLOCK_N + tl.arange(0, BLOCK_N)
    row_N = tl.minimum(feature_N, features - 1)
    weight = w_ptr + expert.to(tl.int64) * (features * terms.to(tl.int64))
    result_MN = _product(
        hidden_ptr,
        pair_M,
        terms,
        inside_M,
        weight,
        row_N,
        terms,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        EVEN_K,
    )
    if HAS_BIAS:
        bias_N = tl.load(bias_ptr + expert.to(tl.int64) * features + row_N)
        result_MN += bias_N.to(tl.float32)[None, :]
    share_M = tl.load(weights_ptr + pair_M, mask=inside_M, other=0.0).to(tl.float32)
    result_MN *= share_M[:, None]
    at = out_ptr + pair_M.to(tl.int64)[:, None] * features + feature_N[None, :]
    inside = inside_M[:, None] & (feature_N < features)[None, :]
    tl.store(at, result_MN.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def moe_sum_kernel(
    results_ptr,
    experts_ptr,
    out_ptr,
    num_experts,
    hidden,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum a token's pairs in the order in which they were chosen; what is not held is not read."""
    token = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for slot in tl.static_range(TOP_K):
        expert = tl.load(experts_ptr + token * TOP_K + slot)
        is_held = (expert >= 0) & (expert < num_experts)
        at = results_ptr + (token * TOP_K + slot) * hidden + feature
        inside = feature < tl.where(is_held, hidden, 0)
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    at = out_ptr + token * hidden + feature
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=feature < hidden)
