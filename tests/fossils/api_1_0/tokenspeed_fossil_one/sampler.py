"""Sampling row by row; draws are Philox numbers as the contract asks."""

from __future__ import annotations

import torch

from tokenspeed_sdk import PURPOSE_SAMPLE, SampleResult, TokenLogprobs

MASK = 0xFFFFFFFF


class Sampler:
    def __init__(self, *, device, vocab_size):
        self._device = device

    def sample(self, logits_RV, batch):
        raw = logits_RV.float().log_softmax(-1)
        logits = logits_RV.float()
        if batch.bias is not None:
            rows, ids, values = batch.bias
            logits.index_put_((rows, ids), values, accumulate=True)
        if batch.penalties is not None:
            logits = _penalised(logits, batch.penalties)
        rows = [self._row(logits[r], batch, r) for r in range(len(logits))]
        tokens = torch.tensor([token for token, _ in rows], device=logits_RV.device)
        failed = torch.tensor([bad for _, bad in rows], device=logits_RV.device)
        scores = None
        if batch.num_logprobs_R is not None:
            wanted = batch.num_logprobs_R
            scores = tuple(
                None if count < 0 or rows[r][1] else _scored(raw[r], rows[r][0], count)
                for r, count in enumerate(wanted)
            )
        return SampleResult(tokens, failed, scores)

    def logprobs_of(self, logits_TV, token_ids_T, num_top):
        raw = logits_TV.float().log_softmax(-1)
        return tuple(
            _scored(raw[t], token, num_top) for t, token in enumerate(token_ids_T.tolist())
        )

    def _row(self, logits_V, batch, r):
        bad = logits_V.isnan().any() or (logits_V == torch.inf).any()
        if bad or not logits_V.isfinite().any():
            return 0, True
        heat = 0.0 if batch.temperature_R is None else float(batch.temperature_R[r])
        if heat == 0:
            return int(logits_V.argmax()), False
        probs = (logits_V / heat).softmax(-1)
        filters = (batch.top_k_R, batch.top_p_R, batch.min_p_R)
        probs = _filtered(probs, *(_at(values, r) for values in filters))
        total = probs.double().cumsum(-1)
        point = _uniform(int(batch.seeds_R[r]), int(batch.output_index_R[r])) * total[-1]
        token = int(torch.searchsorted(total, point, right=True))
        return min(token, int(probs.nonzero()[-1])), False


def _at(values, r):
    return None if values is None else values[r].item()


def _filtered(probs, top_k, top_p, min_p):
    if top_k:
        probs = torch.where(probs >= probs.topk(min(top_k, len(probs))).values[-1], probs, 0)
        probs = probs / probs.sum()
    if top_p is not None and top_p < 1:
        ordered = probs.sort(descending=True).values
        last = min(int((ordered.cumsum(-1) < top_p).sum()), len(ordered) - 1)
        probs = torch.where(probs >= ordered[last], probs, 0)
        probs = probs / probs.sum()
    if min_p:
        probs = torch.where(probs >= min_p * probs.max(), probs, 0)
    return probs


def _penalised(logits, penalties):
    seen = penalties.output_counts_RV > 0
    repeated = penalties.repetition_R[:, None]
    scaled = torch.where(logits > 0, logits / repeated, logits * repeated)
    logits = torch.where(seen | penalties.prompt_mask_RV, scaled, logits)
    logits = logits - penalties.frequency_R[:, None] * penalties.output_counts_RV
    return logits - penalties.presence_R[:, None] * seen


def _scored(raw_V, token, count):
    value = raw_V[token]
    order = raw_V.sort(descending=True, stable=True).indices[:count]
    top = tuple((int(i), float(raw_V[i])) for i in order)
    rank = 1 + int((raw_V > value).sum()) + int((raw_V[:token] == value).sum())
    return TokenLogprobs(token, float(value), rank, top)


def _uniform(seed, position):
    counter = [position & MASK, (position >> 32) & MASK, PURPOSE_SAMPLE, 0]
    key = [seed & MASK, (seed >> 32) & MASK]
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32) ^ counter[1] ^ key[0],
            second & MASK,
            (first >> 32) ^ counter[3] ^ key[1],
            first & MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & MASK, (key[1] + 0xBB67AE85) & MASK]
    return ((counter[0] >> 5 << 26) | (counter[1] >> 6)) * 2.0**-53
