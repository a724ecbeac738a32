"""The portable sampler draws the plain one's tokens: by the same numbers, filters exact, ties kept.

The two sum in other orders and have other exps. A token would differ where a number falls within
about 1e-6 of a boundary between two tokens; none of these does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.triton_samples import philox_numbers

from tokenspeed.ops.draw import Draw
from tokenspeed.ops.sampling_batches import SETTINGS, Setting, batch_of
from tokenspeed_reference.sampler import PhiloxSampler
from tokenspeed_sdk import PURPOSE_SAMPLE, Domain
from tokenspeed_sdk.conformance import philox, sampler_check
from tokenspeed_sdk.portable.sampling import sampler as sampler_module
from tokenspeed_sdk.portable.sampling.sampler import TritonSampler

if TYPE_CHECKING:
    from tokenspeed_sdk import SamplingBatch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FILTERS = {
    "none": Setting(0.8),
    "top_k": Setting(1.2, top_k=7),
    "top_k, top_p": Setting(1.0, 40, 0.9),
    "top_p": Setting(1.0, top_p=0.6),
    "top_p of nearly all": Setting(1.0, top_p=0.9999999),
    "min_p": Setting(1.5, min_p=0.1),
    "min_p of one": Setting(1.5, min_p=1.0),
    "all": Setting(2.0, 30, 0.8, 0.05),
    "greedy": Setting(0.0, 5, 0.5),
}

QUICK = ("none", "all", "top_p")
"""Those of the default suite."""


@pytest.fixture(autouse=True)
def few_rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try many cuts at once: 4 rounds for 11, each of which costs the interpreter the same."""
    if DEVICE.type == "cpu" and "as_on_a_gpu" not in request.fixturenames:
        monkeypatch.setattr(sampler_module, "WAYS", 256)


@pytest.fixture
def as_on_a_gpu() -> None:
    """Leave the sampler as it is."""


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut rows into many chunks and tiles, and leave little room for candidates."""
    for name, value in {"CHUNK": 64, "TILE": 64, "ROOM": 20, "WARPS": 1}.items():
        monkeypatch.setattr(sampler_module, name, value)


def draw() -> Draw:
    return Draw(Domain(seed=5))


def moved(batch: SamplingBatch) -> SamplingBatch:
    from tokenspeed.ops.compare import copied

    result: SamplingBatch = copied(batch, DEVICE)
    return result


def both(logits_RV: torch.Tensor, batch: SamplingBatch) -> tuple[list[int], list[int]]:
    """Return the tokens of the plain sampler, and of the portable one."""
    vocab_size = logits_RV.shape[1]
    plain = PhiloxSampler(device=torch.device("cpu"), vocab_size=vocab_size)
    portable = TritonSampler(device=DEVICE, vocab_size=vocab_size)
    wanted = plain.sample(logits_RV.clone(), batch)
    got = portable.sample(logits_RV.clone().to(DEVICE), moved(batch))
    assert got.failed_R.cpu().equal(wanted.failed_R)
    assert got.failed_R.dtype == torch.bool
    assert got.tokens_R.dtype == torch.int64
    return wanted.tokens_R.tolist(), got.tokens_R.tolist()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_every_setting_draws_the_tokens_of_the_plain_sampler(dtype: str) -> None:
    source = Draw(Domain(dtype, seed=5))
    logits = source.floats(len(SETTINGS), 50, scale=2)
    logits[:, 10:14] = logits[:, 20:24]
    wanted, got = both(logits, batch_of([*SETTINGS.values()], 50, source))
    assert got == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("setting", FILTERS.values(), ids=FILTERS)
def test_a_large_vocabulary_draws_the_tokens_of_the_plain_sampler(setting: Setting) -> None:
    logits = draw().floats(2, 20_001, scale=3)
    batch = replace(batch_of([setting] * 2, 20_001, draw()), penalties=None, bias=None)
    wanted, got = both(logits, batch)
    assert got == wanted


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, id=name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name, setting in FILTERS.items()
    ],
)
def test_rows_of_many_chunks_draw_the_tokens_of_the_plain_sampler(setting: Setting) -> None:
    logits = draw().floats(2, 201, scale=3)
    logits[:, 70:90] = logits[:, 120:140]  # ties at every cut
    batch = replace(batch_of([setting] * 2, 201, draw()), penalties=None, bias=None)
    wanted, got = both(logits, batch)
    assert got == wanted


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("room", [1, pytest.param(256, marks=pytest.mark.slow)])
def test_a_filter_that_keeps_more_than_there_is_room_for_is_as_exact(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "ROOM", room)
    logits = draw().floats(3, 150, scale=1)
    settings = [Setting(1.0, top_k=33), Setting(1.0, top_p=0.95), Setting(1.0, 0, 0.7, 0.2)]
    batch = replace(batch_of(settings, 150, draw()), penalties=None, bias=None)
    wanted, got = both(logits, batch)
    assert got == wanted


def test_a_cut_among_equal_logits_keeps_them_all() -> None:
    draws = 8
    logits = torch.zeros(draws, 40)
    logits[:, 30:] = -50.0
    batch = batch_of([Setting(1.0, top_k=3)] * draws, 40, draw())
    wanted, got = both(logits, replace(batch, penalties=None, bias=None))
    assert got == wanted
    assert max(got) > 20  # far behind the third


def test_negative_zero_ties_with_zero() -> None:
    logits = torch.tensor([[-0.0, 0.0, -0.0, -9.0]]).repeat(5, 1)
    batch = batch_of([Setting(1.0, top_k=1)] * 5, 4, draw())
    wanted, got = both(logits, replace(batch, penalties=None, bias=None))
    assert got == wanted
    assert len(set(got)) > 1


def test_tokens_that_are_forbidden_are_never_drawn() -> None:
    logits = torch.full((4, 33), -torch.inf)
    logits[:, 17] = -5.0
    settings = [Setting(), Setting(1.0, 5, 0.5, 0.1), Setting(1.0, top_k=2), Setting(0.0)]
    batch = replace(batch_of(settings, 33, draw()), penalties=None, bias=None)
    assert both(logits, batch)[1] == [17] * 4


def test_a_bias_that_is_named_twice_is_added_twice() -> None:
    batch = batch_of([Setting(0.0)], 8, draw())
    rows, ids, values = torch.tensor([0, 0]), torch.tensor([5, 5]), torch.tensor([0.4, 0.4])
    batch = replace(batch, penalties=None, bias=(rows, ids, values))
    logits = torch.zeros(1, 8)
    logits[0, 2] = 0.6
    assert both(logits, batch) == ([5], [5])


@pytest.mark.parametrize(
    "check",
    [
        sampler_check.check_greedy,
        sampler_check.check_failed_rows,
        sampler_check.check_scores,
        pytest.param(sampler_check.check_draws, marks=pytest.mark.slow),
        sampler_check.check_rows_are_independent,
    ],
    ids=lambda check: check.__name__,
)
def test_the_conformance_kit_passes(check: Any) -> None:
    check(TritonSampler(device=DEVICE, vocab_size=50), 50, DEVICE)


def test_logits_in_a_wider_tensor_are_read_where_they_are() -> None:
    wide = draw().beside(3, 60)
    batch = replace(batch_of([Setting()] * 3, 60, draw()), penalties=None, bias=None)
    portable = TritonSampler(device=DEVICE, vocab_size=60)
    wanted = portable.sample(wide.contiguous().to(DEVICE), moved(batch)).tokens_R
    strided = torch.empty_strided(wide.shape, wide.stride(), device=DEVICE).copy_(wide)
    assert portable.sample(strided, moved(batch)).tokens_R.equal(wanted)


def test_numbers_are_philoxs_bit_by_bit() -> None:
    seeds = [0, 1, -1, 2**40 + 17, -(2**63), 2**63 - 1, 123456789]
    places = [0, 1, 5, 2**33 + 3, 7, 2**31, 40960]
    numbers = torch.zeros(len(seeds), dtype=torch.float64, device=DEVICE)
    philox_numbers[(len(seeds),)](
        torch.tensor(seeds, device=DEVICE), torch.tensor(places, device=DEVICE), numbers
    )
    wanted = [
        philox.uniform(seed, place, PURPOSE_SAMPLE)
        for seed, place in zip(seeds, places, strict=True)
    ]
    assert numbers.tolist() == wanted
