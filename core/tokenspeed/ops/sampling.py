"""What a sampler draws from, in plain words; tests compare samplers with it.

The sampler slot (`contracts/sampler.py`) binds a Sampler object, not this operator.
Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    import torch

    from tokenspeed.contracts.sampler import Penalties, SamplingBatch


@operator("sampling.distribution")
def next_token_distribution(logits_RV: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Turn logits into the probabilities that a token is drawn from.

    Order: bias -> penalties -> temperature -> top_k -> top_p -> min_p, then renormalise. Tokens
    that tie with the last one kept by top_k or top_p are kept too, so that the result does not
    depend on how a sort breaks ties. Temperature 0 puts everything on the best, lowest id.

    Args:
        logits_RV: (R, V) float, finite or -inf.
    Returns:
        (R, V) probabilities.
    """
    import torch

    logits = logits_RV.clone()
    if batch.bias is not None:
        rows, ids, values = batch.bias
        logits[rows, ids] += values.to(logits.dtype)
    if batch.penalties is not None:
        logits = _penalised(logits, batch.penalties)
    return torch.stack([_row(logits[row], batch, row) for row in range(logits.shape[0])])


def _penalised(logits_RV: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    import torch

    counts = penalties.output_counts_RV
    repetition = penalties.repetition_R[:, None].to(logits_RV.dtype)
    scaled = torch.where(logits_RV > 0, logits_RV / repetition, logits_RV * repetition)
    logits = torch.where((counts > 0) | penalties.prompt_mask_RV, scaled, logits_RV)
    return (
        logits
        - penalties.frequency_R[:, None].to(logits.dtype) * counts
        - penalties.presence_R[:, None].to(logits.dtype) * (counts > 0)
    )


def _row(logits_V: torch.Tensor, batch: SamplingBatch, row: int) -> torch.Tensor:
    import torch

    temperature = 0.0 if batch.temperature_R is None else float(batch.temperature_R[row])
    if temperature == 0:
        return torch.zeros_like(logits_V).index_fill_(0, logits_V.argmax(), 1.0)
    scaled = logits_V / temperature
    top_k = 0 if batch.top_k_R is None else int(batch.top_k_R[row])
    if 0 < top_k < len(scaled):
        scaled[scaled < scaled.sort(descending=True).values[top_k - 1]] = -torch.inf
    probs = scaled.softmax(dim=0)
    top_p = 1.0 if batch.top_p_R is None else float(batch.top_p_R[row])
    if top_p < 1:
        ordered = probs.sort(descending=True).values
        num_before = int((ordered.cumsum(0) < top_p).sum())
        probs[probs < ordered[min(num_before, len(ordered) - 1)]] = 0
    min_p = 0.0 if batch.min_p_R is None else float(batch.min_p_R[row])
    probs[probs < min_p * probs.max()] = 0
    return probs / probs.sum()
