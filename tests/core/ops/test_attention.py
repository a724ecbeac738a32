"""Attention in parts is attention in one: prefix and own tokens, or any cut of the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.kernel import Domain
from tokenspeed.ops.attention import merge_attention, paged_attention, varlen_attention
from tokenspeed.ops.kv import gather_kv
from tokenspeed_reference.kernels import attention as kernels

VARLENS = [varlen_attention.signature, kernels.varlen_attention]
MERGES = [merge_attention.signature, kernels.merge_attention]


def starts(*lengths: int) -> Any:
    return np.cumsum([0, *lengths], dtype=np.int32)


def random_qkv(queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(4)
    q = torch.randn(queries, 4, 8, generator=random, dtype=torch.float64)
    k, v = torch.randn(2, keys, 2, 8, generator=random, dtype=torch.float64)
    return q, k, v


def test_softmax_of_two_keys_by_hand() -> None:
    q = torch.tensor([[[1.0]]], dtype=torch.float64)
    k = torch.tensor([[[0.0]], [[1.0]]], dtype=torch.float64)
    v = torch.tensor([[[10.0]], [[20.0]]], dtype=torch.float64)
    out, lse = varlen_attention.signature(q, k, v, starts(1), starts(2), scale=1.0)
    share = np.e / (1 + np.e)
    assert out.item() == pytest.approx(10 * (1 - share) + 20 * share)
    assert lse.item() == pytest.approx(np.log(1 + np.e))


@pytest.mark.parametrize("varlen", VARLENS)
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("prefix", [0, 1, 13])
def test_a_prefix_and_the_own_tokens_merge_to_the_whole(
    varlen: Any, merge: Any, prefix: int
) -> None:
    q, k, v = (x.float() for x in random_qkv(7, prefix + 7))
    whole, total = varlen(q, k, v, starts(7), starts(prefix + 7), scale=0.5)
    before = varlen(
        q, k[:prefix], v[:prefix], starts(7), starts(prefix), scale=0.5, is_causal=False
    )
    own = varlen(q, k[prefix:], v[prefix:], starts(7), starts(7), scale=0.5)
    out, lse = merge(torch.stack([before[0], own[0]]), torch.stack([before[1], own[1]]))
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cuts", [(20,), (5, 15), (1, 1, 18), (0, 20)])
def test_any_cut_of_the_keys_merges_to_the_whole(cuts: tuple[int, ...]) -> None:
    q, k, v = random_qkv(3, 20)
    options = {"scale": 0.7, "is_causal": False}
    whole, total = varlen_attention.signature(q, k, v, starts(3), starts(20), **options)
    parts, start = [], 0
    for count in cuts:
        own = (q, k[start : start + count], v[start : start + count])
        parts.append(varlen_attention.signature(*own, starts(3), starts(count), **options))
        start += count
    out, lse = merge_attention.signature(*(torch.stack(list(x)) for x in zip(*parts, strict=True)))
    torch.testing.assert_close(out, whole)
    torch.testing.assert_close(lse, total)


def test_paged_attention_is_varlen_attention_over_what_is_gathered() -> None:
    assert paged_attention.cases is not None
    for case in paged_attention.cases(Domain(traits={"head_dim": (16,), "block_tokens": (16,)})):
        q, cache, batch = case.args
        if not len(q):
            continue
        k, v = gather_kv.signature(cache, batch)
        keys = batch.context_tokens + np.diff(batch.query_start)
        got, _ = varlen_attention.signature(
            q.double(), k.double(), v.double(), batch.query_start, starts(*keys), **case.options
        )
        cache = type(cache)(cache.k.double(), cache.v.double())
        want = paged_attention.signature(q.double(), cache, batch, **case.options)
        torch.testing.assert_close(got, want)
