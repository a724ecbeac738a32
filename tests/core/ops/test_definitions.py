"""Definitions of known value. What every operator must say: tests/docs/test_operators_page.py."""

from __future__ import annotations

import math

import pytest
import torch

from tokenspeed import ops


def test_rms_norm_of_a_known_row() -> None:
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    got = ops.norm.rms_norm.signature(x, torch.tensor([1.0, 2.0]), eps=0.0)
    assert got[0].tolist() == pytest.approx([3 / math.sqrt(12.5), 8 / math.sqrt(12.5)])


def test_rotary_turns_a_pair_by_its_angle() -> None:
    angle = math.pi / 6
    cos, sin = math.cos(angle), math.sin(angle)
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    got = ops.rotary.apply_rotary.signature(
        x, torch.tensor([[[cos, cos]]]).double(), torch.tensor([[[-sin, sin]]]).double()
    )
    assert got.flatten().tolist() == pytest.approx([cos, sin, -sin, cos])


def test_silu_mul_gates_with_the_first_half() -> None:
    gate_up = torch.tensor([[0.0, 1.0, 5.0, 2.0]], dtype=torch.float64)
    got = ops.activation.silu_mul.signature(gate_up)[0].tolist()
    assert got == pytest.approx([0.0, 2 / (1 + math.exp(-1))])


def test_gelu_mul_gates_with_the_first_half_in_both_forms() -> None:
    gate_up = torch.tensor([[0.0, 1.0, -2.0, 5.0, 2.0, 3.0]], dtype=torch.float64)
    share = {gate: (1 + math.erf(gate / math.sqrt(2))) / 2 for gate in (1.0, -2.0)}
    got = ops.activation.gelu_mul.signature(gate_up)[0].tolist()
    assert got == pytest.approx([0.0, 2 * share[1.0], -6 * share[-2.0]])
    near = ops.activation.gelu_mul.signature(gate_up, tanh=True)[0].tolist()
    assert near == pytest.approx([0.0, 2 * 0.8411919906083, -6 * 0.02270115295611], rel=1e-9)
