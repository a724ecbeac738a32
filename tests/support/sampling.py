"""Factories of sampling batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokenspeed.contracts.sampler import SamplingBatch
from tokenspeed.executor import InlineLink
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.sampling.table import SamplingTable

NO_TOKENS = np.zeros(0, np.int32)


def make_batch(
    params: Sequence[SamplingParams],
    vocab_size: int,
    *,
    output_index: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    stop_ids: Sequence[int] = (),
) -> SamplingBatch:
    """Build the batch of one row for each of `params`, through a real table."""
    count = len(params)
    table = SamplingTable(count, vocab_size, InlineLink(torch.device("cpu")))
    for slot, one in enumerate(params):
        prompt = np.array(prompts[slot] if prompts else [], np.int32)
        output = np.array(outputs[slot] if outputs else [], np.int32)
        table.admit(slot, one, stop_ids, prompt, output)
    index = np.array([0] * count if output_index is None else output_index, np.int32)
    return table.batch(np.arange(count, dtype=np.int32), index)
