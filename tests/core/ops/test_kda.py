"""Kimi delta attention: known values, and the chunked form against the plain recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.model import StateRows
from tokenspeed.ops.kda import kda_delta_rule, kda_gates
from tokenspeed.ops.linear_attention import gated_delta_rule
from tokenspeed_reference.kernels import kda as kernels

RULES = [kda_delta_rule.signature, kernels.kda_delta_rule]
GATES = [kda_gates.signature, kernels.kda_gates]


def one_row(read: int, write: int, length: int) -> tuple[StateRows, Any]:
    rows = StateRows(torch.tensor([read]), torch.tensor([write]))
    return rows, np.array([0, length], np.int32)


def random_rule(tokens: int, *, decay: float = 1.0) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, tokens, 1, 8, generator=random)
    v = torch.randn(tokens, 2, 4, generator=random)
    log_decay = -decay * torch.rand(tokens, 2, 8, generator=random)
    return q, k, v, log_decay, torch.rand(tokens, 2, generator=random)


@pytest.mark.parametrize("rule", RULES)
def test_each_channel_decays_by_its_own_number(rule: Any) -> None:
    k, v = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0]]])
    state = torch.tensor([8.0, 4.0]).view(1, 1, 2, 1)
    log_decay = torch.tensor([[[0.5, 0.25]]]).log()
    rule(k, k, v, log_decay, torch.zeros(1, 1), state, *one_row(0, 0, 1))
    assert state.flatten().tolist() == pytest.approx([4.0, 1.0])


@pytest.mark.parametrize("rule", RULES)
def test_a_learning_rate_of_one_answers_the_key_with_its_value(rule: Any) -> None:
    k = torch.tensor([[[3.0, 0.0]], [[0.0, 2.0]]])
    v = torch.tensor([[[5.0]], [[7.0]]])
    state = torch.full((2, 1, 2, 1), torch.nan)
    out = rule(k, k, v, torch.zeros(2, 1, 2), torch.ones(2, 1), state, *one_row(-1, 1, 2))
    assert (out.flatten() * 2**0.5).tolist() == pytest.approx([5.0, 7.0], rel=1e-5)
    assert state[1].flatten().tolist() == pytest.approx([5.0, 7.0], rel=1e-5)
    assert state[0].isnan().all()


@pytest.mark.parametrize("rule", RULES)
def test_equal_channels_are_the_gated_delta_rule(rule: Any) -> None:
    q, k, v, log_decay, beta = random_rule(50)
    alike = log_decay[..., :1].expand(-1, -1, 8).contiguous()
    states = torch.zeros(2, 2, 8, 4)
    got = rule(q, k, v, alike, beta, states, *one_row(-1, 0, 50))
    plain = gated_delta_rule.signature
    want = plain(q, k, v, log_decay[..., 0], beta, states, *one_row(-1, 1, 50))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[0], states[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cuts", [(50, 100), (1, 16, 17), (130, 7, 13)])
def test_a_row_goes_on_where_the_state_was_written(rule: Any, cuts: tuple[int, ...]) -> None:
    tokens = 150
    inputs = random_rule(tokens)
    state = torch.full((4, 2, 8, 4), torch.nan)
    whole = rule(*inputs, state, *one_row(-1, 3, tokens))
    parts, start, read = [], 0, -1
    for write, length in enumerate((*cuts, tokens - sum(cuts))):
        if length:
            now = (x[start : start + length] for x in inputs)
            parts.append(rule(*now, state, *one_row(read, write % 3, length)))
            start, read = start + length, write % 3
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state[read], state[3], rtol=1e-4, atol=1e-5)


def test_one_token_rows_are_bitwise_the_same_in_every_batch() -> None:
    inputs = random_rule(40)
    state = torch.randn(80, 2, 8, 4, generator=torch.Generator().manual_seed(1))
    rows = StateRows(torch.arange(40), torch.arange(40, 80))
    together = kernels.kda_delta_rule(*inputs, state, rows, np.arange(41, dtype=np.int32))
    for row in (0, 13, 39):
        alone = (x[row : row + 1] for x in inputs)
        again = kernels.kda_delta_rule(*alone, state, *one_row(row, 0, 1))
        assert torch.equal(again, together[row : row + 1])
        assert torch.equal(state[0], state[40 + row])
        state[0] = state[40]


@pytest.mark.parametrize("gates", GATES)
def test_gates_of_known_values(gates: Any) -> None:
    zeros = torch.zeros(1, 1, 2, dtype=torch.float64)
    a_log = torch.ones(1, dtype=torch.float64)
    bias = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    log_decay, beta = gates(zeros, zeros[..., 0], a_log, bias)
    softplus = np.log1p(np.exp([0.0, 1.0]))
    assert log_decay.flatten().tolist() == pytest.approx((-np.e * softplus).tolist(), rel=1e-6)
    assert beta.item() == 0.5
    bounded, _ = gates(zeros, zeros[..., 0], a_log, bias, lower_bound=-5.0)
    wanted = -5.0 / (1 + np.exp(-np.e * np.array([0.0, 1.0])))
    assert bounded.flatten().tolist() == pytest.approx(wanted.tolist(), rel=1e-6)
