"""Sampling: what a sampler draws from, scores of tokens, masks of logits.

The sampler slot (`contracts/sampler.py`) binds a Sampler object, which draws; `compare_draws.py`
compares its draws with the distribution. Legend: R rows, V vocabulary, W words of 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.sampling_batches import SETTINGS, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.sampler import Penalties, SamplingBatch


def _distribution_cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for name, setting in SETTINGS.items():
        yield Case(name, (draw.floats(1, 50, scale=2), batch_of([setting], 50, draw)))
    everything = [*SETTINGS.values()]
    logits = draw.floats(len(everything), 50, scale=2)
    logits[:, 10:14] = logits[:, 20:24]
    yield Case("all together, with ties", (logits, batch_of(everything, 50, draw)))
    yield Case("no rows", (draw.floats(0, 50), batch_of([], 50, draw)))
    one = torch.full((1, 50), -torch.inf, dtype=draw.dtype)
    one[0, 37] = -3.0
    yield Case("one token is left", (one, batch_of([SETTINGS["everything"]], 50, draw)))


def _logprob_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for rows, vocab in ((0, 5), (1, 1), (3, 50), (2, 1000)):
        logits, tokens = draw.floats(rows, vocab, scale=4), draw.integers(0, vocab, rows)
        yield Case(f"{rows} rows of {vocab}", (logits, tokens))
    yield Case("all tie", (draw.floats(3, 9) * 0, draw.integers(0, 9, 3)))


def _mask_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for rows, vocab in ((0, 40), (1, 1), (2, 32), (3, 33), (2, 1000)):
        bits = draw.integers(-(2**31), 2**31, rows, -(-vocab // 32)).int()
        yield Case(f"{rows} rows of {vocab}", (draw.floats(rows, vocab), bits))
    yield Case("nothing is allowed", (draw.floats(2, 40), draw.integers(0, 1, 2, 2).int()))


@operator(
    "sampling.distribution",
    cases=_distribution_cases,
    slot="sampler",
    placement="R! V!, - -> R! V!",
)
def next_token_distribution(logits_RV: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Turn logits into the probabilities that a token is drawn from.

    Order: bias -> penalties -> temperature -> top_k -> top_p -> min_p, then renormalise. Tokens
    that tie with the last one kept by top_k or top_p are kept too, so that the result does not
    depend on how a sort breaks ties. Temperature 0 puts everything on the best, lowest id.

    Args:
        logits_RV: (R, V) float, finite or -inf.
        batch: each row's parameters.
    Returns:
        (R, V) probabilities.
    Source: The Curious Case of Neural Text Degeneration, Holtzman et al. 2020 (top_p); Min-p
        Sampling, Nguyen et al. 2024; the penalties are those of the OpenAI API and of CTRL, Keskar
        et al. 2019.
    """
    import torch

    logits = logits_RV.clone()
    if batch.bias is not None:
        rows, ids, values = batch.bias
        logits[rows, ids] += values.to(logits.dtype)
    if batch.penalties is not None:
        logits = _penalised(logits, batch.penalties)
    probs_R = [_row(logits[row], batch, row) for row in range(logits.shape[0])]
    return torch.stack(probs_R) if probs_R else logits


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


@operator(
    "sampling.logprobs",
    cases=_logprob_cases,
    slot="sampler",
    result_dtypes=("float32", "float32"),
    tokens=("logits_RV", "token_ids_R"),
    placement="R V!, R -> R, R",
)
def token_logprobs(
    logits_RV: torch.Tensor, token_ids_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Score given tokens: log softmax at the token, and the token's rank.

    Args:
        logits_RV: (R, V) float, device, finite or -inf.
        token_ids_R: (R,) int64, device, in [0, V).
    Returns:
        Natural-log probability (R,) float32; and rank (R,) int64, 1 for the most likely: tokens
        with a higher logit come before it, and equal ones with a lower id.
    Source: the `logprobs` of the OpenAI API; the rank is ours.
    """
    import torch

    own_R1 = logits_RV.gather(1, token_ids_R[:, None])
    ids_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    tied_before = (logits_RV == own_R1) & (ids_V < token_ids_R[:, None])
    ranks_R = 1 + ((logits_RV > own_R1) | tied_before).sum(1)
    return (own_R1 - logits_RV.logsumexp(1, keepdim=True)).squeeze(1), ranks_R


@operator(
    "logits.mask",
    tolerance=EXACT,
    cases=_mask_cases,
    overwrites=("logits_RV",),
    tokens=("logits_RV", "allowed_RW"),
    placement="R V!, R W! -> R V!",
)
def mask_logits(logits_RV: torch.Tensor, allowed_RW: torch.Tensor) -> torch.Tensor:
    """Set the logits of tokens that are not allowed to -inf.

    Args:
        logits_RV: (R, V) float, device. May be overwritten.
        allowed_RW: (R, W) int32, device, W = V / 32 rounded up; bit v mod 32 of word v // 32, the
            lowest first, says whether token v is allowed. Bits from V on mean nothing.
    Returns:
        (R, V), dtype of the logits.
    Source: XGrammar, Dong et al. 2024, section 4 (the token mask as a bit set).
    """
    import torch

    ids_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    bits_RV = allowed_RW[:, ids_V // 32] >> (ids_V % 32)
    return logits_RV.masked_fill(bits_RV & 1 == 0, float("-inf"))
