"""Philox4x32-10 against the published known answers, and its numbers as a distribution."""

from __future__ import annotations

import torch

from tokenspeed_reference.philox import philox4x32, uniform

# Random123, tests/kat_vectors: counter, key, answer of philox4x32 with 10 rounds.
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def test_known_answers_in_one_batch() -> None:
    counters = torch.tensor([words(counter) for counter, _, _ in KNOWN]).T
    keys = torch.tensor([words(key) for _, key, _ in KNOWN]).T
    assert philox4x32(counters, keys).T.tolist() == [words(answer) for _, _, answer in KNOWN]


def test_a_number_depends_on_seed_position_and_purpose_only() -> None:
    seeds, positions = torch.tensor([5, -7, 5, 2**62]), torch.tensor([0, 3, 1, 2**33])
    batch = uniform(seeds, positions, 0)
    for row in range(4):
        assert uniform(seeds[row : row + 1], positions[row : row + 1], 0)[0] == batch[row]
    assert len(set(batch.tolist())) == 4
    assert not torch.equal(batch, uniform(seeds, positions, 1))


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    steps, zeros = torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64)
    for numbers in (uniform(zeros, steps, 0), uniform(steps, zeros, 0)):
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = torch.histc(numbers.float(), 100, 0, 1)
        # 99 degrees of freedom: 149 is the 99.9 % quantile.
        assert ((counts - 1000) ** 2 / 1000).sum() < 149
