"""Sampler slot: logits to tokens, for rows that each have their own parameters.

Randomness is Philox4x32-10 keyed by (seed, output position, purpose), so a seeded request draws the
same numbers whatever else is in the batch, and on every device. The key is the seed, low word
first; the counter is (position low, position high, purpose, 0). Of the words w that come out, the
number is ((w0 >> 5) 2^26 + (w1 >> 6)) / 2^53, in [0, 1). The token is the first one, in the order
of the ids, whose cumulated probability is above it. What top_k leaves is renormalised before top_p
counts; top_p and min_p then look at the same probabilities. R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Scores = tuple["TokenLogprobs | None", ...] | Callable[[], tuple["TokenLogprobs | None", ...]]

PURPOSE_SAMPLE = 0
"""Philox purpose of the categorical draw; drafts and acceptance get their own later."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, of the distribution before temperature and penalties.

    Args:
        token_id: the chosen (or prompt) token.
        logprob: its natural-log probability.
        rank: 1 for the most likely; tokens with a higher logit come before it, and equal ones with
            a lower id.
        top: (token id, logprob) of the most likely tokens, best first and the lower id first on a
            tie, as many as asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Per-row sampling parameters of one step; built by `sampling/`, read by a Sampler.

    Everything None is neutral for the whole batch, so that plain greedy batches cost an argmax.
    A filter keeps every token that ties with the last one it keeps.

    Args:
        temperature_R: (R,) float32; 0 is greedy. None: all rows greedy.
        top_k_R: (R,) int32; 0 is off.
        top_p_R: (R,) float32 in (0, 1]; 1 is off.
        min_p_R: (R,) float32 in [0, 1]; 0 is off.
        seeds_R: (R,) int64, the request's seed (reinterpreted as unsigned).
        output_index_R: (R,) int64, index of the sampled token in the request's output.
        penalties: None or the three penalties with the counts they need.
        bias: None or (rows (K,), token ids (K,), values (K,)): added to logits; -inf forbids.
        num_logprobs_R: host tuple, -1: none asked, n >= 0: the chosen token's and the top n.
    """

    temperature_R: torch.Tensor | None
    top_k_R: torch.Tensor | None
    top_p_R: torch.Tensor | None
    min_p_R: torch.Tensor | None
    seeds_R: torch.Tensor
    output_index_R: torch.Tensor
    penalties: Penalties | None
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
    num_logprobs_R: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition (prompt and output), frequency and presence (output only) penalties.

    Args:
        repetition_R, frequency_R, presence_R: (R,) float32; neutral 1, 0, 0.
        output_counts_RV: (R, V) int32, how often each token stands in the row's output.
        prompt_mask_RV: (R, V) bool, tokens of the row's prompt.
    """

    repetition_R: torch.Tensor
    frequency_R: torch.Tensor
    presence_R: torch.Tensor
    output_counts_RV: torch.Tensor
    prompt_mask_RV: torch.Tensor


@dataclass(frozen=True, slots=True)
class SampleResult:
    """Sampled tokens.

    Args:
        tokens_R: (R,) integer, device.
        failed_R: (R,) bool, device.
        logprobs: of rows that asked, on the host; None: no row did. Or a function that returns
            them, so that `sample` need not wait for the device: what they take is launched in
            `sample`, copied to the host without blocking, and put together in the function. It is
            called once, when what was launched by then, those copies included, is done; work that
            it gave to the device itself would stand behind the next step's.
    """

    tokens_R: torch.Tensor
    failed_R: torch.Tensor
    logprobs: Scores | None = None


def scores_of(scores: Scores) -> tuple[TokenLogprobs | None, ...]:
    """Return log probabilities, asked for where they were put off; see SampleResult."""
    return scores() if callable(scores) else scores


class Sampler(Protocol):
    """Turns logits into tokens. Required: sample, logprobs_of. Optional: none.

    An offer whose `requires` has graph_safe (True, False) is captured into device graphs, with a
    batch of fixed tensors; without it, it is called behind them.
    """

    def sample(self, logits_RV: torch.Tensor, batch: SamplingBatch) -> SampleResult:
        """Sample one token a row.

        Order: bias -> penalties -> temperature -> top_k -> top_p -> min_p -> draw. Greedy rows
        take the argmax after bias and penalties (lowest id on a tie). Rows with a NaN or +Inf
        logit, or without any finite one, are marked failed and get token 0.

        Args:
            logits_RV: (R, V) any float dtype, device; may be overwritten.
        """
        ...

    def logprobs_of(
        self, logits_TV: torch.Tensor, token_ids_T: torch.Tensor, num_top: int
    ) -> Scores:
        """Score given tokens (prompt logprobs): one entry a row of logits.

        Returns:
            Them, or a function that returns them later; see SampleResult.
        """
        ...
