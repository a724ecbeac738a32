"""Filters of a draw, in place: by a sort of the whole row, or by a look at what the sort can spare.

Looking waits for a device that computes beside the host, and costs the host itself nothing. Both
keep the same tokens. Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import torch


def keep_top_k(logits_RV: torch.Tensor, top_k_R: torch.Tensor, *, looks: bool) -> None:
    """Forbid all below the k-th best value; ties with it stay.

    Args:
        looks: sort as far as the largest k only.
    """
    vocab_size = most = logits_RV.shape[-1]
    wanted_R = torch.where((top_k_R <= 0) | (top_k_R > vocab_size), vocab_size, top_k_R).long()
    limited_R = wanted_R < vocab_size
    if looks:
        if not limited_R.any():
            return
        most = int(wanted_R[limited_R].max())
        best = logits_RV.topk(most, dim=-1).values
    else:
        best = logits_RV.sort(dim=-1, descending=True).values
    cut = best.gather(1, (wanted_R.clamp(max=most) - 1)[:, None])
    logits_RV.masked_fill_((logits_RV < cut) & limited_R[:, None], -torch.inf)


def keep_top_p(probs_RV: torch.Tensor, top_p_R: torch.Tensor, *, looks: bool) -> None:
    """Zero all below the value at which the sorted sum reaches p; ties with it stay.

    Args:
        looks: sort only what can be kept.
    """
    if looks:
        for probs_V, top_p in zip(probs_RV, top_p_R.tolist(), strict=True):
            if top_p < 1:
                _keep_few(probs_V, top_p)
        return
    ordered = probs_RV.sort(dim=-1, descending=True).values
    before = (ordered.double().cumsum(dim=-1) < top_p_R[:, None]).sum(dim=-1, keepdim=True)
    cut = ordered.gather(1, before.clamp(max=probs_RV.shape[-1] - 1))
    probs_RV.masked_fill_((probs_RV < cut) & (top_p_R < 1)[:, None], 0)


def _keep_few(probs_V: torch.Tensor, top_p: float) -> None:
    """Filter one row.

    Tokens below (1 - p) / V together weigh less than 1 - p: none of them is the last one kept,
    so that only the few above need sorting.
    """
    # Half of it, since the probabilities sum to 1 only up to rounding.
    floor = 0.5 * (1 - top_p) / probs_V.shape[0]
    ordered = probs_V[probs_V >= floor].sort(descending=True).values
    num_before = int((ordered.double().cumsum(dim=0) < top_p).sum())
    cut = ordered[min(num_before, ordered.shape[0] - 1)]
    probs_V.masked_fill_(probs_V < cut, 0)
