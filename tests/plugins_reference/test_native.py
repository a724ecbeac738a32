"""Native kernels at odd sizes: every instruction set agrees with the float64 definition, and a row
is bitwise the same whatever rows stand beside it and however many threads work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.support.attention import copy_kv, make_batch, make_kv, make_rows

from tokenspeed.contracts.attention import KVView
from tokenspeed.ops import OPERATORS, attention, kv, packing
from tokenspeed_reference import _cpu
from tokenspeed_reference.attention_native import NativePagedAttention
from tokenspeed_reference.kernels import native
from tokenspeed_reference.kernels.packed_native import packed_linear

ISAS = _cpu.instruction_sets()
ROWS = (1, 2, 3, 5, 7, 8, 33)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    _cpu.use(request.param)
    yield request.param
    _cpu.use(ISAS[0])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_portable_kernels_are_always_there_and_others_are_refused() -> None:
    assert ISAS[-1] == "portable"
    with pytest.raises(ValueError, match="sse9"):
        _cpu.use("sse9")


@pytest.mark.parametrize("features", [1, 3, 15, 16, 17, 64, 80, 576])
def test_norms_and_gate(isa: str, features: int) -> None:
    for rows in ROWS:
        x, residual = noise(rows, features) * 3, noise(rows, features, seed=2)
        weight = noise(features, seed=3)
        wide = OPERATORS["norm.add_rms"].signature
        expected = wide(x.double(), residual.double(), weight.double(), eps=1e-5)
        for got, want in zip(
            native.add_rms_norm(x, residual, weight, eps=1e-5), expected, strict=True
        ):
            assert_close(got, want)
        heads = noise(rows, 5, features)[:, 1:4]
        want = OPERATORS["norm.rms"].signature(heads.double(), weight.double(), eps=1e-5)
        assert_close(native.rms_norm(heads, weight, eps=1e-5), want)
        gate_up = noise(rows, 2 * features) * 30
        want = OPERATORS["activation.silu_mul"].signature(gate_up.double())
        assert_close(native.silu_mul(gate_up), want)


def test_the_gate_is_right_at_its_ends(isa: str) -> None:
    gate = torch.tensor([[-200.0, -88.0, -1e-8, 0.0, 1e-8, 88.0, 200.0, 1e30]])
    got = native.silu_mul(torch.cat([gate, torch.ones(1, 8)], dim=1))
    expected = OPERATORS["activation.silu_mul"].signature(
        torch.cat([gate, torch.ones(1, 8)], dim=1).double()
    )
    assert_close(got, expected)
    assert native.silu_mul(torch.tensor([[torch.nan, 1.0]])).isnan().all()


@pytest.mark.parametrize("head_dim", [2, 6, 64, 80, 128])
def test_rotary_beside_other_heads(isa: str, head_dim: int) -> None:
    for rows in ROWS:
        x, cos, sin = noise(rows, 9, head_dim), noise(rows, 1, head_dim), noise(rows, 1, head_dim)
        untouched = x[:, 4:].clone()
        expected = OPERATORS["rotary.apply"].signature(
            x[:, :4].double(), cos.double(), sin.double()
        )
        assert_close(native.apply_rotary(x[:, :4], cos, sin), expected)
        assert torch.equal(x[:, 4:], untouched)


@pytest.mark.parametrize("inputs", [1, 15, 16, 80, 576])
@pytest.mark.parametrize("outputs", [1, 5, 6, 7, 64])
def test_dense_product(isa: str, outputs: int, inputs: int) -> None:
    weight, bias = noise(outputs, inputs, seed=2) * inputs**-0.5, noise(outputs, seed=3)
    for rows in ROWS:
        x = noise(rows, inputs + 3)[:, :inputs]
        assert_close(native.linear(x, weight), x.double() @ weight.T.double())
        assert_close(native.linear(x, weight, bias), x.double() @ weight.T.double() + bias.double())


@pytest.mark.parametrize("name", packing.LAYOUTS)
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 40])
def test_packed_product_is_nearly_exact(isa: str, outputs: int, name: str) -> None:
    random = torch.Generator().manual_seed(4)
    weight = packing.random_weight(name, (outputs, 512), random)
    multiply, dense = packed_linear(weight, None), packing.decode(weight)
    for rows in ROWS:
        x = noise(rows, 515)[:, :512]
        expected = x.double() @ dense.T
        # Activations of 16 bits; q4_k and q6_k round their scales to half precision too.
        relative = 5e-4 if name in ("q4_k", "q6_k") else 3e-5
        bound = relative * (x.double().abs() @ dense.T.abs())
        assert ((multiply(x).double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["q4_1", "q8_0", "q6_k"])
def test_a_damaged_activation_reaches_every_output_of_its_row_alone(
    isa: str, name: str, bad: float
) -> None:
    multiply = packed_linear(
        packing.random_weight(name, (20, 512), torch.Generator().manual_seed(4)), None
    )
    x = noise(3, 512)
    healthy = multiply(x)
    x[1, 77] = bad
    got = multiply(x)
    assert not got[1].isfinite().any()
    assert torch.equal(got[[0, 2]], healthy[[0, 2]])


def test_zero_activations_give_zero(isa: str) -> None:
    weight = packing.random_weight("q4_1", (20, 64), torch.Generator().manual_seed(4))
    assert torch.equal(packed_linear(weight, None)(torch.zeros(2, 64)), torch.zeros(2, 20))


def attend(
    shapes: list[tuple[int, int]], kv_heads: int, group: int, head_dim: int, *, block_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the backend and what the definition computes."""
    rows = make_rows(shapes, block_tokens=block_tokens, seed=3)
    size = max(max(row.blocks) for row in rows) + 1
    cache = make_kv(
        size, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=torch.float32
    )
    backend = NativePagedAttention(
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_tokens=block_tokens,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    batch = make_batch(rows, block_tokens=block_tokens)
    tokens = int(batch.query_start[-1])
    q, k, v = (noise(tokens, heads, head_dim, seed=heads) for heads in (kv_heads * group, 9, 11))
    k, v = k[:, :kv_heads], v[:, :kv_heads]
    wide: KVView = copy_kv(cache, torch.float64)
    kv.write_kv.signature(k.double(), v.double(), wide, batch)
    expected = attention.paged_attention.signature(q.double(), wide, batch, scale=0.15)
    plan = backend.plan(batch)
    backend.write(k, v, cache, plan)
    assert torch.equal(cache.k.double(), wide.k)
    assert torch.equal(cache.v.double(), wide.v)
    return backend.attend(q, cache, plan, scale=0.15), expected


@pytest.mark.parametrize("keys", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("head_dim", [6, 64, 80, 128])
def test_decode_at_odd_lengths(isa: str, head_dim: int, keys: int) -> None:
    for kv_heads, group in ((1, 1), (3, 3), (8, 1), (2, 5), (1, 8)):
        assert_close(*attend([(keys - 1, 1)], kv_heads, group, head_dim, block_tokens=128))


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("block_tokens", [16, 128, 256])
def test_decode_of_many_rows(isa: str, block_tokens: int, rows: int) -> None:
    shapes = [(37 * row % 300, 1) for row in range(rows)]
    assert_close(*attend(shapes, 2, 3, 64, block_tokens=block_tokens))


def products() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    random = torch.Generator().manual_seed(5)
    weight, norm = noise(301, 576, seed=6), noise(576, seed=7)
    packed = {
        name: packed_linear(packing.random_weight(name, (301, 768), random), None)
        for name in ("q4_1", "q8_0", "q6_k")
    }
    return {
        "dense": lambda x: native.linear_invariant(x[:, :576], weight),
        "norm": lambda x: native.rms_norm(x[:, :576], norm, eps=1e-5),
        "gate": native.silu_mul,
        **packed,
    }


@pytest.mark.parametrize("name", ["dense", "norm", "gate", "q4_1", "q8_0", "q6_k"])
def test_a_row_is_bitwise_the_same_in_every_batch_and_on_two_threads(
    isa: str, two_threads: None, name: str
) -> None:
    kernel, x = products()[name], noise(33, 768)
    together = kernel(x)
    torch.set_num_threads(1)
    assert torch.equal(kernel(x), together)
    for row in range(33):
        for size in (1, 2, 3, 4, 5, 6, 7):
            assert torch.equal(kernel(x[row : row + size]), together[row : row + size])


def test_decode_is_bitwise_the_same_on_two_threads(isa: str, two_threads: None) -> None:
    shapes = [(900, 1), (3, 1), (128, 1), (511, 1)]
    together, _ = attend(shapes, 3, 3, 64, block_tokens=128)
    torch.set_num_threads(1)
    assert torch.equal(attend(shapes, 3, 3, 64, block_tokens=128)[0], together)
