"""Verification of drafts: a draft is right when it is the very token that would have come.

At each draft's position the target's token is sampled as it would be without drafts: with the
request's own random number for that output position, and with the counts of the tokens before it.
So the answer is the same for greedy and sampled requests alike, and nothing is approximated.
Source: Accelerating Large Language Model Decoding with Speculative Sampling, Chen et al. 2023;
with one random number a position, equality takes the place of their rejection step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def num_accepted(drafts: Sequence[int], targets: Sequence[int], failed: Sequence[bool]) -> int:
    """Return how many leading drafts are right.

    Args:
        targets: sampled tokens: one for each draft's place, and one after the last draft.
        failed: positions whose logits were no numbers. A token that came of such a position is
            never accepted: the step after this one meets it again, as the first of its row.
    """
    for place, draft in enumerate(drafts):
        if draft != targets[place] or failed[place + 1]:
            return place
    return len(drafts)
