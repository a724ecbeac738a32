"""Calls of portable kernels in the shapes of real models, one function a family.

They are compiled beside what the operators' cases launch, which are small. Tensors are zeros on
the CPU; nothing is computed.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk import SamplingBatch

BF16 = torch.bfloat16
VOCAB = 151_936


def elementwise() -> None:
    """A decode step of two rows: hidden 4096 and 7168, heads of 128."""
    from tokenspeed_sdk.portable.elementwise import gates, norm, pointwise, rotary, rows

    for hidden in (4096, 7168, 16384):
        x, weight = _zeros(2, hidden), _zeros(hidden)
        norm.rms_norm(x, weight, eps=1e-6)
        norm.add_rms_norm(x, x, weight, eps=1e-6)
        pointwise.add_shared(x, x, _zeros(2, 1))
        rows.embedding(torch.zeros(2, dtype=torch.int64), _zeros(8, hidden))
    qkv = _zeros(2, 48, 128)
    norm.rms_norm(qkv[:, :32], _zeros(128), eps=1e-6)
    norm.gated_rms_norm(qkv, qkv, _zeros(128), eps=1e-6)
    rotary.apply_rotary(qkv[:, :40], _zeros(2, 1, 128), _zeros(2, 1, 128))
    gates.silu_mul(_zeros(2, 2 * 14336))
    gates.gelu_mul(_zeros(2, 2 * 14336), tanh=True)
    pointwise.softcap(_zeros(2, VOCAB), cap=30.0)


def cache() -> None:
    """A block of 128 tokens, 8 heads of 128 and one latent of 576."""
    from tokenspeed_sdk.portable.cache import copies

    table = torch.tensor([[1, 2, 77]])
    copies.copy_tokens(_zeros(3, 4, 8, 128, 128), table)
    copies.copy_tokens(_zeros(3, 4, 128, 576), table)


def sampling() -> None:
    """A vocabulary of 151,936: greedy rows, drawn ones, filtered ones."""
    from tokenspeed_sdk.portable.sampling.mask import mask_logits
    from tokenspeed_sdk.portable.sampling.sampler import TritonSampler

    logits = _zeros(2, VOCAB)
    mask_logits(logits, torch.zeros(2, VOCAB // 32, dtype=torch.int32))
    sampler = TritonSampler(device=torch.device("cpu"), vocab_size=VOCAB)
    hot, long = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    for temperature, top_p in ((None, None), (hot, None), (hot, hot)):
        batch = SamplingBatch(temperature, None, top_p, None, long, long, None, None, None)
        sampler.sample(logits, batch)


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=BF16)
