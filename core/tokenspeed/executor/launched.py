"""A step that was launched: what of it is on its way to the host, and its result once that is read.

Legend: R rows, N rows that sample, P sampled positions, E rows with an embedding, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.sampler import scores_of
from tokenspeed.contracts.step import StepResult
from tokenspeed.executor.host_link import PASSED
from tokenspeed.executor.targets import spread_accepted, spread_tokens, verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.sampler import Scores, TokenLogprobs
    from tokenspeed.executor.host_link import StepEvent
    from tokenspeed.executor.requests import ExecutorRequest
    from tokenspeed.executor.targets import Targets, Verified


@dataclass(frozen=True, slots=True)
class SampledOnDevice:
    """The sampled positions of a step.

    Args:
        requests_N: whose rows they are; a slot may have another owner when they are read.
        tokens_P: (P,) int64 host, there when the step's event has passed; -1: it failed.
        logprobs: see SampleResult.
    """

    targets: Targets
    requests_N: Sequence[ExecutorRequest]
    tokens_P: torch.Tensor
    logprobs: Scores | None

    def verified(self) -> Verified:
        """Return what is final of it; only when the step's event has passed."""
        tokens_P = self.tokens_P.numpy()
        scores = None if self.logprobs is None else scores_of(self.logprobs)
        return verify(self.targets, np.maximum(tokens_P, 0), tokens_P < 0, scores)


@dataclass(slots=True)
class LaunchedStep:
    """One step.

    Args:
        event: passes when all that the other fields hold is on the host.
        sampled: None: no row sampled.
        prompt_scores: of each row that asked: the scores of its chunk, in pieces.
        embedded: the rows whose prompts end here and ask for it, and (E, D) float32 host.
        result: once it was read; error: what reading it raised.
    """

    step_id: int
    num_rows: int
    event: StepEvent = PASSED
    sampled: SampledOnDevice | None = None
    prompt_scores: Sequence[tuple[int, Sequence[Scores]]] = ()
    embedded: tuple[Sequence[int], torch.Tensor] | None = None
    result: StepResult | None = None
    error: BaseException | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it was read."""
        return self.result is not None or self.error is not None

    def result_of(self, verified: Verified | None, reasons: Mapping[int, str]) -> StepResult:
        """Return its result; only when its event has passed.

        Args:
            verified: of `sampled`.
            reasons: rows that fail for another reason than their logits, and why.
        """
        prompt_logprobs = tuple((row, _joined(parts)) for row, parts in self.prompt_scores)
        if self.sampled is None or verified is None:
            tokens = np.full(self.num_rows, -1, dtype=np.int32)
            return StepResult(self.step_id, tokens, prompt_logprobs=prompt_logprobs)
        targets = self.sampled.targets
        return StepResult(
            self.step_id,
            spread_tokens(targets, verified, self.num_rows),
            accepted=spread_accepted(targets, verified, self.num_rows),
            failed=_spread_failed(targets, verified, self.num_rows, reasons),
            logprobs=_spread_logprobs(targets, verified, self.num_rows),
            prompt_logprobs=prompt_logprobs,
            reasons=reasons or None,
            embeddings=self._embeddings(),
        )

    def _embeddings(self) -> tuple[tuple[int, NDArray[np.float32]], ...]:
        if self.embedded is None:
            return ()
        rows, states_ED = self.embedded
        # Copied: the memory they came to belongs to a later step soon.
        return tuple(zip(rows, states_ED.numpy().copy(), strict=True))


def _joined(parts: Sequence[Scores]) -> tuple[TokenLogprobs, ...]:
    entries = [entry for part in parts for entry in scores_of(part)]
    return tuple(entry for entry in entries if entry is not None)


def _spread_failed(
    targets: Targets, verified: Verified, num_rows: int, reasons: Mapping[int, str]
) -> NDArray[np.bool_] | None:
    if not verified.failed_N.any() and not reasons:
        return None
    failed = np.zeros(num_rows, dtype=np.bool_)
    failed[targets.rows_N] = verified.failed_N
    failed[list(reasons)] = True
    return failed


def _spread_logprobs(
    targets: Targets, verified: Verified, num_rows: int
) -> tuple[tuple[TokenLogprobs, ...] | None, ...] | None:
    if verified.logprobs_N is None:
        return None
    spread: list[tuple[TokenLogprobs, ...] | None] = [None] * num_rows
    for row, entries in zip(targets.rows_N.tolist(), verified.logprobs_N, strict=True):
        spread[row] = entries
    return tuple(spread)
