"""Attention compiled for real GPUs at the shapes of models, with the tilings that they get there.

`test_compiled` compiles the cases of the operators, which are small.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from tests.support.triton_targets import Launch, compile_for

from tokenspeed_sdk import KVView
from tokenspeed_sdk.portable.attention.geometry import Geometry
from tokenspeed_sdk.portable.attention.tuning import Device, Tiling, cut_for

PACKAGE = "tokenspeed_sdk.portable.attention"
DEVICES = {
    "sm_90": Device(processors=132, shared_bytes=227 << 10, lanes=32),
    "gfx942": Device(processors=304, shared_bytes=64 << 10, lanes=64),
}
POINTERS = {
    **dict.fromkeys(("q", "k", "v", "out", "sinks_N", "k_cache", "v_cache", "q_out"), "*bf16"),
    **dict.fromkeys(("q_weight", "k_weight", "cos", "sin"), "*bf16"),
    **dict.fromkeys(("parts_out", "parts_lse", "lse"), "*fp32"),
    "positions_T": "*i64",
}
INTEGERS = ("tables", "lines_R", "lengths_R", "covered_R", "order_R", "tiles", "chunks", "starts")
FLOATS = ("scale", "softcap", "q_eps", "k_eps", "q_centre", "k_centre")
MOST_SPILLED = 16
"""Bytes of a thread: heads of 256 dims with window, cap and sinks at once lack two registers."""
PLAIN = {"SHARED": False, "SOFTCAP": False, "WINDOW": False, "SINKS": False}
ALL = {"SHARED": True, "SOFTCAP": True, "WINDOW": True, "SINKS": True}


def compiled(
    kernel: str, target: str, constants: dict[str, Any], tiling: Tiling, **types: str
) -> Launch:
    """Compile a kernel, "module:function", of which only the constants that it takes are used."""
    module, _, name = kernel.partition(":")
    names = getattr(import_module(f"{PACKAGE}.{module}"), name).arg_names
    own = {word: value for word, value in constants.items() if word in names}
    known = {
        **dict.fromkeys(names, "i32"),
        **dict.fromkeys(FLOATS, "fp32"),
        **dict.fromkeys(INTEGERS, "*i32"),
        **POINTERS,
        **types,
    }
    signature = {word: known[word] for word in names if word not in own}
    options = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    return compile_for(f"{PACKAGE}.{kernel}", signature, own, target, **options)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("features", [PLAIN, ALL], ids=["plain", "all"])
@pytest.mark.parametrize(("group", "head_dim"), [(4, 128), (8, 64), (16, 128), (6, 256)])
def test_it_compiles_at_the_shapes_of_models_and_fits(
    target: str, features: dict[str, bool], group: int, head_dim: int
) -> None:
    device = DEVICES[target]
    geometry = Geometry(group * 8, 8, head_dim, head_dim, 2, device, cut_for(device, 8))
    cache = torch.empty(1, 8, 128, head_dim, dtype=torch.bfloat16, device="meta")
    kv = KVView(cache, cache)
    common = {**geometry.constants(kv)[1], **features, "BLOCK_R": 64, "BLOCK_C": 16, "BLOCK_TI": 16}
    cut = geometry.cut
    for kernel, tiling, types in (
        ("rows:attention_rows", geometry.row_tiling(kv), {"out": "*fp32"}),
        ("rows:attention_shared", geometry.shared_tiling(kv), {"out": "*fp32"}),
        ("chunks:attention_chunks", geometry.chunk_tiling(kv), {}),
        ("merge:attention_merge_rows", Tiling(1, 64, 2, 1, 1), {}),
        ("merge:attention_merge_chunks", Tiling(1, 64, 2, 1, 1), {}),
    ):
        constants = {
            **common,
            "M": tiling.queries,
            "T": tiling.keys,
            "MOST_PARTS": cut.row_parts,
            "LEAST_TILES": cut.least_tiles(tiling),
            "SHARED_T": tiling.keys,
            "SHARED_LEAST_TILES": cut.least_tiles(tiling),
        }
        if kernel.startswith("merge:"):
            constants["HEADS"] = geometry.merged_heads
        launch = compiled(kernel, target, constants, tiling, **types)
        told = f"{launch.kernel}: {launch.registers} registers, {launch.shared_bytes} bytes shared"
        print(told, launch.spilled, tiling)
        assert launch.spilled <= MOST_SPILLED, told
        assert launch.shared_bytes <= device.shared_bytes, told


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", DEVICES)
def test_writing_and_preparation_compile_at_the_shapes_of_models(target: str) -> None:
    sizes = {"N": 32, "K": 8, "H": 128, "V": 128, "A": 128, "BLOCK_H": 128, "BLOCK_V": 128}
    own = {"HEADS": 8, "BLOCK_TOKENS": 128, "BLOCK_R": 64, "HAS_STARTS": True}
    features = {"Q_NORM": True, "K_NORM": True}
    for kernel in ("writing:attention_write", "preparing:attention_prepare"):
        launch = compiled(kernel, target, {**sizes, **own, **features}, Tiling(1, 16, 4, 1, 1))
        assert launch.spilled == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_products_run_on_matrix_units_and_loads_are_wide_and_overlapped() -> None:
    device = DEVICES["sm_90"]
    geometry = Geometry(32, 8, 128, 128, 2, device, cut_for(device, 8))
    cache = torch.empty(1, 8, 128, 128, dtype=torch.bfloat16, device="meta")
    kv = KVView(cache, cache)
    common = {**geometry.constants(kv)[1], **PLAIN, "BLOCK_R": 64, "BLOCK_C": 16}
    common |= {"MOST_PARTS": 32, "LEAST_TILES": 4}
    for kernel, tiling, product in (
        ("rows:attention_rows", geometry.row_tiling(kv), "mma.sync.aligned.m16n8k16"),
        ("chunks:attention_chunks", geometry.chunk_tiling(kv), "wgmma.mma_async"),
    ):
        constants = {**common, "M": tiling.queries, "T": tiling.keys}
        asm = compiled(kernel, "sm_90", constants, tiling).asm
        assert product in asm
        assert "cp.async.cg.shared.global" in asm  # 16 bytes each; narrower ones are .ca
        assert "cp.async.ca.shared.global" not in asm
