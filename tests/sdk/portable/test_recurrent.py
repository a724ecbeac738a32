"""Recurrent layers: what the operators' cases miss."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.triton_targets import TARGETS, compile_for

from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.compare import compare
from tokenspeed.ops.state import random_rows
from tokenspeed_sdk import Case, StateRows
from tokenspeed_sdk.portable.recurrent.conv import causal_conv
from tokenspeed_sdk.portable.recurrent.delta import gated_delta_rule, kda_delta_rule
from tokenspeed_sdk.portable.recurrent.rows import cut_rows

RULES = {
    "linear_attention.gated_delta": gated_delta_rule,
    "kda.delta_rule": kda_delta_rule,
}
HOST = torch.device("cpu")


def rule_case(
    operator: str,
    lengths: tuple[int, ...],
    *,
    heads: tuple[int, int] = (1, 2),
    dims: tuple[int, int] = (16, 40),
    dtype: torch.dtype = torch.float32,
    decay: float = 0.5,
) -> Case:
    random = torch.Generator().manual_seed(4)
    tokens, (key_heads, value_heads), (key_dim, value_dim) = sum(lengths), heads, dims
    rows, query_start = random_rows(lengths, random)
    decays = (tokens, value_heads, key_dim)[: 3 if operator.startswith("kda") else 2]
    args = (
        torch.randn(tokens, key_heads, key_dim, generator=random).to(dtype),
        torch.randn(tokens, key_heads, key_dim, generator=random).to(dtype),
        torch.randn(tokens, value_heads, value_dim, generator=random).to(dtype),
        -decay * torch.rand(decays, generator=random),
        torch.rand(tokens, value_heads, generator=random),
        torch.randn(2 * len(lengths) + 1, value_heads, key_dim, value_dim, generator=random),
        rows,
        query_start,
    )
    return Case(f"{lengths}", args)


@pytest.mark.parametrize("operator", RULES)
@pytest.mark.parametrize("lengths", [(2, 63, 64), (65, 1, 128)])
def test_a_rule_is_the_same_at_the_ends_of_chunks(operator: str, lengths: tuple[int, ...]) -> None:
    case = rule_case(operator, lengths)
    outcome = compare(OPERATORS[operator], RULES[operator], case, dtype="float32")
    assert outcome.agrees, outcome


@pytest.mark.parametrize("operator", RULES)
def test_equal_keys_that_are_learnt_whole_and_never_forgotten_keep_their_digits(
    operator: str,
) -> None:
    case = rule_case(operator, (64,), dims=(16, 16), heads=(1, 1), decay=0.0)
    q, k, v, decay, beta, *rest = case.args
    same = Case("equal keys", (q, k[:1].repeat(64, 1, 1), v, decay, torch.ones_like(beta), *rest))
    outcome = compare(OPERATORS[operator], RULES[operator], same, dtype="float32")
    assert outcome.agrees, outcome


@pytest.mark.parametrize("operator", RULES)
def test_a_rule_of_a_row_is_the_same_in_every_batch(operator: str) -> None:
    case = rule_case(operator, (1, 70, 1, 5), dims=(8, 4))
    assert depends_on_batch(OPERATORS[operator], RULES[operator], case) == ""


def test_a_convolution_of_a_row_is_the_same_in_every_batch() -> None:
    case = conv_case((1, 70, 1, 2), channels=130)
    assert depends_on_batch(OPERATORS["conv.causal_silu"], causal_conv, case) == ""


@pytest.mark.parametrize("lengths", [(1, 1, 1), (2, 3, 64, 65, 1)])
def test_a_convolution_leaves_its_last_inputs(lengths: tuple[int, ...]) -> None:
    outcome = compare(
        OPERATORS["conv.causal_silu"],
        causal_conv,
        conv_case(lengths, channels=130),
        dtype="float32",
    )
    assert outcome.agrees, outcome


def conv_case(lengths: tuple[int, ...], *, channels: int) -> Case:
    random = torch.Generator().manual_seed(4)
    rows, query_start = random_rows(lengths, random)
    x = torch.randn(sum(lengths), channels + 3, generator=random)[:, 1:-2]
    weight = torch.randn(channels, 4, generator=random)
    state = torch.randn(2 * len(lengths) + 1, channels, 3, generator=random)
    return Case(f"{lengths}", (x, weight, state, rows, query_start))


@pytest.mark.parametrize("lengths", [(1, 1), (3, 4)])
@pytest.mark.parametrize("operator", RULES)
def test_states_beyond_32_bits_are_reached(operator: str, lengths: tuple[int, ...]) -> None:
    beyond = 2**31 + 4096
    case = rule_case(operator, lengths, dims=(4, 4), heads=(1, 1))
    *inputs, state, _, query_start = case.args
    memory = torch.empty(beyond + 64)  # its pages are never touched
    far = memory.as_strided((2, 1, 4, 4), (beyond, 16, 4, 1))
    far.copy_(state[:2])
    rows = StateRows(torch.tensor([1, -1]), torch.tensor([1, 0]))
    near = state[:2].clone()
    wanted = RULES[operator](*inputs, near, rows, query_start)
    assert RULES[operator](*inputs, far, rows, query_start).equal(wanted)
    assert far.equal(near)
    assert not near.equal(state[:2])


@pytest.mark.parametrize("operator", RULES)
def test_padded_rows_leave_every_block_but_the_sentinel_alone(operator: str) -> None:
    case = rule_case(operator, (1, 1, 1), dims=(4, 4))
    *inputs, state, _, query_start = case.args
    rows = StateRows(torch.tensor([2, -1, 0]), torch.tensor([2, 0, 0]))
    before = state.clone()
    RULES[operator](*inputs, state, rows, query_start)
    assert state[1].equal(before[1])
    assert state[3:].equal(before[3:])
    assert not state[2].equal(before[2])


def test_steps_of_one_token_are_not_cut_on_the_host() -> None:
    assert cut_rows(np.arange(6, dtype=np.int32), 5, HOST) is None


def test_a_cut_is_known_by_its_content() -> None:
    query_start = np.array([0, 1, 131, 133], np.int32)
    first = cut_rows(query_start, 133, HOST)
    assert cut_rows(query_start.copy(), 133, HOST) is first
    assert first is not None
    assert first.singles.tolist() == [[0, 0]]
    assert first.chunks.tolist() == [[1, 1, 64], [1, 65, 64], [1, 129, 2], [2, 131, 2]]
    assert first.longer.tolist() == [[1, 0, 3], [2, 3, 1]]
    query_start[1] = 2  # the same array, filled anew
    assert cut_rows(query_start, 133, HOST) is not first


def test_inputs_that_are_no_rows_of_memory_are_taken() -> None:
    operator = "linear_attention.gated_delta"
    case = rule_case(operator, (1, 3), dims=(4, 4))
    turned: list[Any] = [*case.args]
    turned[2] = turned[2].mT.contiguous().mT
    outcome = compare(
        OPERATORS[operator], RULES[operator], Case("turned", tuple(turned)), dtype="float32"
    )
    assert outcome.agrees, outcome


KERNELS = {
    "step:delta_step": ({"V": 32, "ALL": True}, {"num_warps": 4}),
    "chunks:relate_chunk": (
        {"V": 128, "C": 64, "WIDE": False, "PRECISION": "tf32"},
        {"num_warps": 8, "num_stages": 1},
    ),
    "chunks:carry_chunks": (
        {"V": 32, "WIDTH": 128, "C": 64, "WIDE": False},
        {"num_warps": 4, "num_stages": 2},
    ),
}
POINTERS = {
    **dict.fromkeys(("q", "k", "v", "out", "u", "w", "mixed", "queries", "keys"), "*bf16"),
    **dict.fromkeys(("log_decay", "beta", "state", "kept"), "*fp32"),
    **dict.fromkeys(("read", "write"), "*i64"),
    **dict.fromkeys(("singles", "chunks", "longer"), "*i32"),
    "scale": "fp32",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("has_channels", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_heads_of_128_fit_a_processor(kernel: str, has_channels: bool, target: str) -> None:
    special, options = KERNELS[kernel]
    module, _, name = kernel.partition(":")
    path = f"tokenspeed_sdk.portable.recurrent.{module}"
    constants = {"KEYS": 128, "VALUES": 128, "K": 128, "CHANNELS": has_channels, **special}
    names = getattr(import_module(path), name).arg_names
    types = {word: POINTERS.get(word, "i32") for word in names if word not in constants}
    launch = compile_for(f"{path}:{name}", types, constants, target, **options)
    print(f"{launch.registers} registers, {launch.spilled} spilled, {launch.shared_bytes} shared")
    assert launch.shared_bytes <= {"sm_90": 232448, "gfx942": 65536}[target]
    if name != "relate_chunk":  # which is wide, and reads what it spilled once
        assert launch.spilled == 0
