# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel of moe.route: a program chooses the experts of a few tokens.

An expert's rank is one 64-bit key, its score above and its number below, so that a single maximum
finds the best one and the lower number of a tie. Legend: T tokens, E experts, X chosen ones,
G groups of S experts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from tokenspeed_sdk import ops

TOKENS = 4
"""Most tokens of a program: a warp ranks the experts of each, without a barrier."""

NONE = tl.constexpr(-(2**63))
"""Key of what cannot be chosen: below that of every number, -inf and NaN included."""


@triton.jit
def _key(score, number, COUNT: tl.constexpr):
    """Return keys in the order of (score, -number)."""
    bits = score.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # magnitudes of negative numbers count down
    return (ordered.to(tl.int64) << 32) | (COUNT - 1 - number).to(tl.int64)


@triton.jit
def _score(key):
    """Return the score that a key was made of."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _number(key, COUNT: tl.constexpr):
    """Return the number that a key was made of."""
    return COUNT - 1 - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _eligible(
    keys_TE,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Return whether each expert's group is among the token's best."""
    left_TGS = tl.reshape(keys_TE, [BLOCK_T, BLOCK_G, BLOCK_S])
    worth_TG = tl.zeros([BLOCK_T, BLOCK_G], tl.float32)
    for _ in range(GROUP_BEST):
        best_TG = tl.max(left_TGS, 2)
        worth_TG += _score(best_TG)
        left_TGS = tl.where(left_TGS == best_TG[:, :, None], NONE, left_TGS)
    group = tl.arange(0, BLOCK_G)[None, :]
    left_TG = tl.where(group < GROUPS, _key(worth_TG, group, GROUPS), NONE)
    chosen_TG = tl.zeros([BLOCK_T, BLOCK_G], tl.int32)
    for _ in range(TOP_GROUPS):
        is_best_TG = left_TG == tl.max(left_TG, 1)[:, None]
        chosen_TG = tl.where(is_best_TG, 1, chosen_TG)
        left_TG = tl.where(is_best_TG, NONE, left_TG)
    chosen_TGS = tl.broadcast_to(chosen_TG[:, :, None], [BLOCK_T, BLOCK_G, BLOCK_S])
    return tl.reshape(chosen_TGS, [BLOCK_T, BLOCK_G * BLOCK_S]) > 0


@triton.jit
def moe_route_kernel(
    logits_ptr,
    bias_ptr,
    weights_ptr,
    experts_ptr,
    num_tokens,
    token_stride,
    scale,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_BEST: tl.constexpr,
    TOP_K: tl.constexpr,
    SOFTMAX: tl.constexpr,
    NORMALISE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    """Write weights and numbers of the best TOP_K of GROUPS x SIZE experts; each padded."""
    EXPERTS: tl.constexpr = GROUPS * SIZE
    token_T1 = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)[:, None]
    place = tl.arange(0, BLOCK_G * BLOCK_S)[None, :]
    number = place // BLOCK_S * SIZE + place % BLOCK_S
    is_expert = (place // BLOCK_S < GROUPS) & (place % BLOCK_S < SIZE)
    # Past the last token it is chosen for again, so that no number is undefined.
    at_TE = logits_ptr + tl.minimum(token_T1, num_tokens - 1) * token_stride + number
    logits_TE = tl.load(at_TE, mask=is_expert, other=-float("inf")).to(tl.float32)
    if SOFTMAX:
        powers_TE = tl.exp(logits_TE - tl.max(logits_TE, 1)[:, None])
        scores_TE = powers_TE / tl.sum(powers_TE, 1)[:, None]
    else:
        scores_TE = 1 / (1 + tl.exp(-logits_TE))
    ranks_TE = scores_TE
    if HAS_BIAS:
        ranks_TE += tl.load(bias_ptr + number, mask=is_expert, other=0.0).to(tl.float32)
    keys_TE = tl.where(is_expert, _key(ranks_TE, number, EXPERTS), NONE)
    if GROUPS > 1:
        eligible_TE = _eligible(keys_TE, GROUPS, TOP_GROUPS, GROUP_BEST, BLOCK_T, BLOCK_G, BLOCK_S)
        # Others rank as -inf: where more are asked for than are eligible, they come last.
        least = _key(tl.full([1, BLOCK_G * BLOCK_S], -float("inf"), tl.float32), number, EXPERTS)
        keys_TE = tl.where(is_expert & (eligible_TE == 0), least, keys_TE)
    slot = tl.arange(0, BLOCK_X)[None, :]
    weights_TX = tl.zeros([BLOCK_T, BLOCK_X], tl.float32)
    experts_TX = tl.zeros([BLOCK_T, BLOCK_X], tl.int32)
    for taken in range(TOP_K):
        best_T1 = tl.max(keys_TE, 1)[:, None]
        is_best_TE = keys_TE == best_T1
        score_T1 = tl.sum(tl.where(is_best_TE, scores_TE, 0.0), 1)[:, None]
        weights_TX = tl.where(slot == taken, score_T1, weights_TX)
        experts_TX = tl.where(slot == taken, _number(best_T1, EXPERTS), experts_TX)
        keys_TE = tl.where(is_best_TE, NONE, keys_TE)
    if NORMALISE:
        weights_TX = weights_TX / tl.sum(weights_TX, 1)[:, None]
    weights_TX = weights_TX * scale
    inside_TX = (token_T1 < num_tokens) & (slot < TOP_K)
    at_TX = token_T1 * TOP_K + slot
    tl.store(weights_ptr + at_TX, weights_TX.to(weights_ptr.dtype.element_ty), mask=inside_TX)
    tl.store(experts_ptr + at_TX, experts_TX.to(tl.int64), mask=inside_TX)


def route(
    logits_TE: torch.Tensor, bias_E: torch.Tensor | None = None, *, routing: ops.moe.Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute moe.route."""
    tokens, num_experts = logits_TE.shape
    weights_TX = logits_TE.new_empty(tokens, routing.top_k)
    experts_TX = torch.empty_like(weights_TX, dtype=torch.int64)
    if not tokens:
        return weights_TX, experts_TX
    if logits_TE.stride(1) != 1:
        logits_TE = logits_TE.contiguous()
    block_t = min(TOKENS, triton.next_power_of_2(tokens))
    moe_route_kernel[(triton.cdiv(tokens, block_t),)](
        logits_TE,
        bias_E,
        weights_TX,
        experts_TX,
        tokens,
        logits_TE.stride(0),
        routing.scale,
        GROUPS=routing.groups,
        SIZE=num_experts // routing.groups,
        TOP_GROUPS=routing.top_groups,
        GROUP_BEST=routing.group_best,
        TOP_K=routing.top_k,
        SOFTMAX=routing.score == "softmax",
        NORMALISE=routing.normalise,
        HAS_BIAS=bias_E is not None,
        BLOCK_T=block_t,
        BLOCK_G=triton.next_power_of_2(routing.groups),
        BLOCK_S=triton.next_power_of_2(num_experts // routing.groups),
        BLOCK_X=triton.next_power_of_2(routing.top_k),
        num_warps=block_t,
    )
    return weights_TX, experts_TX
