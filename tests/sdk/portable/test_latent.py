"""Paged attention of latents: what the operator's cases miss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.portable import DEVICE
from tests.support.triton_targets import TARGETS, compile_for

from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.batches import batch_of
from tokenspeed.ops.compare import cases_within, compare
from tokenspeed.ops.draw import Draw
from tokenspeed_sdk import AttentionBatch, Case, DecodeRows, Domain, KVView
from tokenspeed_sdk.portable.latent.attend import attend_parts
from tokenspeed_sdk.portable.latent.backend import LatentAttention
from tokenspeed_sdk.portable.latent.offers import offers
from tokenspeed_sdk.portable.latent.parts import ROW_PARTS, cut
from tokenspeed_sdk.portable.latent.tiles import Tiles, tiles_for

PAGED = OPERATORS["attention.paged"]
KEY_DIM, VALUE_DIM, SCALE = 20, 16, 0.3
LENGTHS = (300, 1, 33)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def backend_of(heads: int, dtype: torch.dtype, *, alone: bool, block: int = 16) -> LatentAttention:
    return LatentAttention(
        num_heads=heads,
        num_kv_heads=1,
        head_dim=KEY_DIM,
        v_head_dim=VALUE_DIM,
        block_tokens=block,
        dtype=dtype,
        device=torch.device("cpu"),
        alone=alone,
    )


def latents(
    lengths: tuple[int, ...], heads: int, dtype: torch.dtype, *, block: int = 16
) -> tuple[torch.Tensor, KVView, AttentionBatch]:
    """Return queries, cache and batch of decode rows of these lengths; unused cells are NaN."""
    draw = Draw(Domain(str(dtype).removeprefix("torch."), seed=3))
    counts = [-(-length // block) for length in lengths]
    tables = np.zeros((len(lengths), max(counts)), np.int32)
    ids = (torch.randperm(sum(counts), generator=draw.random) + 1).tolist()
    k = torch.full((sum(counts) + 1, 1, block, KEY_DIM), torch.nan, dtype=dtype)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        tables[row, :count] = [ids.pop() for _ in range(count)]
        for number in range(count):
            tokens = min(block, length - number * block)
            k[tables[row, number], 0, :tokens] = draw.floats(tokens, KEY_DIM)
    batch = AttentionBatch(
        query_start=np.arange(len(lengths) + 1, dtype=np.int32),
        context_tokens=np.array(lengths, np.int32) - 1,
        num_decode_rows=len(lengths),
        block_tables=tables,
        block_tokens=block,
        positions_T=torch.tensor(lengths) - 1,
    )
    return draw.floats(len(lengths), heads, KEY_DIM), KVView(k, k[..., :VALUE_DIM]), batch


def decode_rows(batch: AttentionBatch, *, padding: int = 0) -> DecodeRows:
    """Return the rows as they lie on the device, in shuffled lines, with padded ones behind."""
    num_rows = len(batch.context_tokens)
    lines = np.random.default_rng(1).permutation(num_rows + 1)
    tables = np.full((num_rows + 2, batch.block_tables.shape[1]), 2**30, np.int32)
    for row in range(num_rows):
        used = batch.context_tokens[row] // batch.block_tokens + 1
        tables[lines[row], :used] = batch.block_tables[row, :used]
    tables[-1] = 0
    slots = np.concatenate([lines[:num_rows], np.full(padding, num_rows + 1)]).astype(np.int32)
    lengths = np.concatenate([batch.context_tokens + 1, np.ones(padding)]).astype(np.int32)
    return DecodeRows(
        slots_R=torch.from_numpy(slots),
        lengths_R=torch.from_numpy(lengths),
        positions_R=torch.from_numpy(lengths.astype(np.int64) - 1),
        tables=torch.from_numpy(tables),
        entry_tokens=batch.block_tokens,
    )


def expected(q: torch.Tensor, kv: KVView, batch: AttentionBatch) -> torch.Tensor:
    k = kv.k.double()
    wide = KVView(k, k[..., :VALUE_DIM])
    result: torch.Tensor = PAGED.signature(q.double(), wide, batch, scale=SCALE)
    return result


LATENT_CASES = [
    case
    for case in cases_within(PAGED, Domain(traits=offers("attention", DEVICE)[0].requires, seed=7))
    if case.traits.get("cache") == "mla"
]


@pytest.mark.parametrize("case", LATENT_CASES, ids=lambda case: case.name.partition(",")[0])
def test_latents_are_attended_as_the_operator_says(case: Case) -> None:
    backend = backend_of(case.args[0].shape[1], torch.float32, alone=False)

    def attend(q: torch.Tensor, kv: KVView, rows: AttentionBatch, **options: Any) -> torch.Tensor:
        return backend.attend(q, kv, backend.plan(rows), **options)

    outcome = compare(PAGED, attend, case, dtype="float32")
    assert outcome.agrees, outcome


@pytest.mark.parametrize(
    ("heads", "dtype", "alone", "block"),
    [
        (24, torch.float32, False, 16),
        (24, torch.float32, True, 128),
        (80, torch.bfloat16, False, 128),
        (5, torch.bfloat16, True, 16),
    ],
)
def test_rows_on_the_device_are_attended_as_they_are_when_the_kernels_run(
    heads: int, dtype: torch.dtype, alone: bool, block: int
) -> None:
    q, kv, batch = latents(LENGTHS, heads, dtype, block=block)
    want = expected(q, kv, batch)
    backend = backend_of(heads, dtype, alone=alone, block=block)
    rows = decode_rows(batch, padding=1)
    lengths, positions = rows.lengths_R.clone(), rows.positions_R.clone()
    rows.lengths_R.fill_(1)
    rows.positions_R.zero_()
    plan = backend.plan_decode(rows)
    rows.lengths_R.copy_(lengths)
    rows.positions_R.copy_(positions)
    kv.k[0] = 1.0  # what padded rows read
    padded_q = torch.cat([q, q[:1]])
    got = backend.attend(padded_q, kv, plan, scale=SCALE)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(got[:-1].double(), want, rtol=bound, atol=bound)
    assert got[-1].eq(1.0).all()  # one token of ones
    planned = backend.attend(q, kv, backend.plan(batch), scale=SCALE)
    torch.testing.assert_close(planned.double(), want, rtol=bound, atol=bound)
    if alone:
        assert planned.equal(got[:-1])


def test_rows_on_the_device_write_their_latent_where_the_host_would() -> None:
    _, kv, batch = latents(LENGTHS, 4, torch.float32)
    backend = backend_of(4, torch.float32, alone=False)
    k_T1H = torch.randn(len(LENGTHS) + 2, 1, KEY_DIM + 3)[..., 1:-2]
    backend.write(
        k_T1H, k_T1H[..., :VALUE_DIM], kv, backend.plan_decode(decode_rows(batch, padding=2))
    )
    for row, length in enumerate(LENGTHS):
        block = batch.block_tables[row, (length - 1) // 16]
        assert kv.k[block, 0, (length - 1) % 16].equal(k_T1H[row, 0])


def test_a_row_cut_alone_is_the_same_in_every_batch() -> None:
    draw = Draw(Domain(seed=5))
    batch = batch_of(((150, 1), (0, 3), (129, 9)), 16, draw)
    num_blocks = int(batch.block_tables.max()) + 1
    k = draw.floats(num_blocks, 1, 16, KEY_DIM)
    case = _case(draw.floats(int(batch.query_start[-1]), 4, KEY_DIM), k, batch)
    backend = backend_of(4, torch.float32, alone=True)

    def attend(q: torch.Tensor, kv: KVView, rows: AttentionBatch, **options: Any) -> torch.Tensor:
        return backend.attend(q, kv, backend.plan(rows), **options)

    assert depends_on_batch(PAGED, attend, case) == ""


def _case(q: torch.Tensor, k: torch.Tensor, batch: AttentionBatch) -> Case:
    return Case("rows", (q, KVView(k, k[..., :VALUE_DIM]), batch), {"scale": SCALE})


def test_blocks_beyond_32_bits_are_reached() -> None:
    beyond = 2**31 + 4096
    memory = torch.empty(beyond + 64 * KEY_DIM, dtype=torch.float16)  # its pages are never touched
    k = memory.as_strided((2, 1, 16, KEY_DIM), (beyond, 16 * KEY_DIM, KEY_DIM, 1))
    kv = KVView(k, k[..., :VALUE_DIM])
    batch = AttentionBatch(
        query_start=np.array([0, 9], np.int32),
        context_tokens=np.zeros(1, np.int32),
        num_decode_rows=0,
        block_tables=np.ones((1, 1), np.int32),
        block_tokens=16,
        positions_T=torch.arange(9),
    )
    latent = torch.randn(9, 1, KEY_DIM).half()
    backend = backend_of(4, torch.float16, alone=False)
    plan = backend.plan(batch)
    backend.write(latent, latent[..., :VALUE_DIM], kv, plan)
    assert memory[beyond : beyond + 9 * KEY_DIM].equal(latent.flatten())
    q = torch.randn(9, 4, KEY_DIM).half()
    got = backend.attend(q, kv, plan, scale=SCALE)
    near = KVView(k[1:].double(), k[1:, ..., :VALUE_DIM].double())
    batch.block_tables[:] = 0
    want = PAGED.signature(q.double(), near, batch, scale=SCALE)
    torch.testing.assert_close(got.double(), want, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize("alone", [False, True])
def test_parts_cover_every_tile_once(alone: bool) -> None:
    draw = Draw(Domain(seed=1))
    tiles = Tiles(rows=16, tokens=32, num_warps=4, num_stages=1, programs_per_core=1)
    batch = batch_of(((5000, 1), (0, 1), (900, 37), (31, 1), (2000, 5)), 16, draw)
    found = cut(batch, group=6, tiles=tiles, most=7, alone=alone)
    covered = [
        (item, tile)
        for item, first, count in found.parts.tolist()
        for item, tile in _walk(found, tiles, item, first, count)
    ]
    wanted = [
        (item, tile)
        for item in range(len(found.items))
        for tile in range(_size(found, tiles, item))
    ]
    assert covered == wanted
    assert len(found.parts) <= (ROW_PARTS * len(found.items) if alone else 7)


def _size(found: Any, tiles: Tiles, item: int) -> int:
    _, _, queries, context, first_row = found.items[item].tolist()
    last = min((first_row + tiles.rows - 1) // 6, queries - 1)
    return int(-(-(context + 1 + last) // tiles.tokens))


def _walk(found: Any, tiles: Tiles, item: int, tile: int, count: int) -> Any:
    for _ in range(count):
        yield item, tile
        tile += 1
        if tile == _size(found, tiles, item):
            item, tile = item + 1, 0


def test_tiles_depend_on_shapes_and_shared_memory_alone() -> None:
    wide = {"width": 576, "is_latent": True, "element_bytes": 2}
    assert tiles_for(rows=128, **wide, shared_bytes=227 << 10) == Tiles(64, 64, 8, 2, 1)
    assert tiles_for(rows=16, **wide, shared_bytes=227 << 10).rows == 16
    assert tiles_for(rows=128, **wide, shared_bytes=64 << 10).tokens == 32


def test_sinks_and_caps_are_refused() -> None:
    q, kv, batch = latents((3,), 4, torch.float32)
    backend = backend_of(4, torch.float32, alone=False)
    with pytest.raises(AssertionError, match="not declared"):
        backend.attend(q, kv, backend.plan(batch), scale=SCALE, softcap=2.0)


SIZES = {
    "64 heads, on the device": (64, 64, 8, 2, True, 0),
    "64 heads, from the host": (64, 64, 8, 2, False, 0),
    "64 heads, rows cut alone": (64, 64, 8, 2, True, 16),
    "16 heads": (16, 64, 4, 2, True, 0),
    "64 heads, little shared memory": (64, 32, 8, 1, True, 0),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", SIZES)
def test_latents_of_512_and_64_fit_a_processor(size: str, target: str) -> None:
    rows, tokens, num_warps, num_stages, on_device, pieces = SIZES[size]
    is_small = "little" in size
    if is_small != (target == "gfx942"):
        pytest.skip("tiles are chosen by the shared memory of the device")
    constants = {
        "K_TOKEN": 576,
        "V_TOKEN": 576,
        "VALUES": 512,
        "REST": 64,
        "KEYS": 512,
        "V": 512,
        "D": 512,
        "W": 64,
        "M": rows,
        "S": tokens,
        "ENTRY": 128,
        "ROWS": 64,
        "PIECES": pieces,
        "SHARES": 1 if pieces else 2,
        "ON_DEVICE": on_device,
        "LATENT": True,
        "WIDE": False,
    }
    types = {name: "i32" for name in attend_parts.arg_names if name not in constants}
    types |= dict.fromkeys(("q", "k", "v", "out"), "*bf16")
    types |= dict.fromkeys(("shares", "peaks"), "*fp32")
    types |= dict.fromkeys(("lengths", "lines", "tables", "items", "parts"), "*i32")
    types["scale_log2"] = "fp32"
    launch = compile_for(
        "tokenspeed_sdk.portable.latent.attend:attend_parts",
        types,
        constants,
        target,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    print(f"{launch.registers} registers, {launch.spilled} spilled, {launch.shared_bytes} shared")
    assert launch.shared_bytes <= {"sm_90": 232448, "gfx942": 65536}[target]
    # What is spilled does not change in the loop: it is read there, never written.
    assert launch.spilled <= 600
    products = {"sm_90": "wgmma" if rows == 64 else "mma.sync", "gfx942": "v_mfma"}
    assert products[target] in launch.asm


def test_a_plan_keeps_its_memory_when_a_larger_one_needs_more() -> None:
    _, _, batch = latents(LENGTHS, 4, torch.float32)
    backend = backend_of(4, torch.float32, alone=True)
    rows = decode_rows(batch)
    small, again = backend.plan_decode(rows), backend.plan_decode(rows)
    assert again.scratch[0] is small.scratch[0]
    large = backend.plan_decode(decode_rows(batch, padding=9))
    assert large.scratch[0].numel() > small.scratch[0].numel() > 0
