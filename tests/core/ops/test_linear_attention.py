"""The gated delta rule and its convolution: known values, and state rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.model import StateRows
from tokenspeed.ops.conv import causal_conv
from tokenspeed.ops.linear_attention import delta_gates, gated_delta_rule
from tokenspeed_reference.kernels import conv as conv_kernels
from tokenspeed_reference.kernels import linear_attention as kernels

RULES = [gated_delta_rule.signature, kernels.gated_delta_rule]
CONVOLUTIONS = [causal_conv.signature, conv_kernels.causal_conv]


def one_row(read: int, write: int, length: int) -> tuple[StateRows, Any]:
    rows = StateRows(torch.tensor([read]), torch.tensor([write]))
    return rows, np.array([0, length], np.int32)


def random_rule(tokens: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, tokens, 1, 8, generator=random)
    v = torch.randn(tokens, 2, 4, generator=random)
    log_decay = -torch.rand(tokens, 2, generator=random)
    return q, k, v, log_decay, torch.rand(tokens, 2, generator=random)


@pytest.mark.parametrize("rule", RULES)
def test_a_learning_rate_of_one_answers_the_key_with_its_value(rule: Any) -> None:
    k = torch.tensor([[[3.0, 0.0]], [[0.0, 2.0]]])
    v = torch.tensor([[[5.0]], [[7.0]]])
    state = torch.full((2, 1, 2, 1), torch.nan)
    none, full = torch.zeros(2, 1), torch.ones(2, 1)
    out = rule(k, k, v, none, full, state, *one_row(-1, 1, 2))
    assert (out.flatten() * 2**0.5).tolist() == pytest.approx([5.0, 7.0], rel=1e-5)
    assert state[1].flatten().tolist() == pytest.approx([5.0, 7.0], rel=1e-5)
    assert state[0].isnan().all()


@pytest.mark.parametrize("rule", RULES)
def test_the_state_decays(rule: Any) -> None:
    k, v = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0]]])
    state = torch.tensor([8.0, 4.0]).view(1, 1, 2, 1)
    half = torch.tensor([[0.5]]).log()
    out = rule(k, k, v, half, torch.zeros(1, 1), state, *one_row(0, 0, 1))
    assert state.flatten().tolist() == pytest.approx([4.0, 2.0])
    assert out.item() == pytest.approx(4.0 / 2**0.5, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cuts", [(50, 100), (1, 64, 65), (130, 7, 13)])
def test_a_row_goes_on_where_the_state_was_written(rule: Any, cuts: tuple[int, ...]) -> None:
    tokens = 150
    inputs = random_rule(tokens)
    state = torch.full((4, 2, 8, 4), torch.nan)
    whole = rule(*inputs, state, *one_row(-1, 3, tokens))
    parts, start, read = [], 0, -1
    for write, length in enumerate((*cuts, tokens - sum(cuts))[: len(cuts) + 1]):
        if length:
            now = (x[start : start + length] for x in inputs)
            parts.append(rule(*now, state, *one_row(read, write % 3, length)))
            start, read = start + length, write % 3
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[read], state[3], rtol=1e-4, atol=1e-5)


def test_strong_decays_stay_finite() -> None:
    q, k, v, log_decay, beta = random_rule(200)
    state = torch.zeros(1, 2, 8, 4)
    inputs = (q, k, v, log_decay * 200, beta)
    got = kernels.gated_delta_rule(*inputs, state.clone(), *one_row(-1, 0, 200))
    want = gated_delta_rule.signature(*inputs, state, *one_row(-1, 0, 200))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_one_token_rows_are_bitwise_the_same_in_every_batch() -> None:
    inputs = random_rule(40)
    state = torch.randn(80, 2, 8, 4, generator=torch.Generator().manual_seed(1))
    rows = StateRows(torch.arange(40), torch.arange(40, 80))
    together = kernels.gated_delta_rule(*inputs, state, rows, np.arange(41, dtype=np.int32))
    for row in (0, 13, 39):
        alone = (x[row : row + 1] for x in inputs)
        again = kernels.gated_delta_rule(*alone, state, *one_row(row, 0, 1))
        assert torch.equal(again, together[row : row + 1])
        assert torch.equal(state[0], state[40 + row])
        state[0] = state[40]


def test_gates_of_known_values() -> None:
    zeros = torch.zeros(1, 1, dtype=torch.float64)
    log_decay, beta = delta_gates.signature(zeros, zeros, zeros[0] + 1, zeros[0])
    assert log_decay.item() == pytest.approx(-np.e * np.log(2))
    assert beta.item() == 0.5


@pytest.mark.parametrize("convolve", CONVOLUTIONS)
def test_the_convolution_sees_its_last_inputs_in_order(convolve: Any) -> None:
    x = torch.tensor([[1.0], [10.0]])
    state = torch.tensor([[[300.0, 200.0]], [[0.0, 0.0]]])
    weight = torch.tensor([[1.0, 2.0, 3.0]])
    out = convolve(x, weight, state, *one_row(0, 1, 2))
    assert out.flatten().tolist() == pytest.approx([300 + 2 * 200 + 3, 200 + 2 + 30])
    assert state.tolist() == [[[300.0, 200.0]], [[1.0, 10.0]]]


@pytest.mark.parametrize("convolve", CONVOLUTIONS)
def test_a_fresh_convolution_reads_zeros_and_updates_its_row_in_place(convolve: Any) -> None:
    state = torch.full((1, 1, 2), torch.nan)
    weight = torch.tensor([[1.0, 2.0, 3.0]])
    convolve(torch.tensor([[7.0]]), weight, state, *one_row(-1, 0, 1))
    out = convolve(torch.tensor([[5.0]]), weight, state, *one_row(0, 0, 1))
    assert out.item() == pytest.approx(29.0)
    assert state.tolist() == [[[7.0, 5.0]]]
