"""What is offered of FlashInfer, and the pages that it is planned with; found out without a GPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tokenspeed.contracts.attention import AttentionBatch
from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels.selection import select
from tokenspeed_nvidia.flashinfer.offers import attention_offers
from tokenspeed_nvidia.flashinfer.pages import pages_of_chunks
from tokenspeed_sdk import portable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GPU: Mapping[str, object] = {"device": "cuda", "arch": ("sm_90a",), "dtype": "bfloat16"}
GQA = {"head_dim": 128, "gqa_ratio": 4, "block_tokens": 128}
PIN = "nvidia/chunks_flashinfer_bfloat16"


def prebuilt(folder: Path, dtype: str = "bf16", dim: int = 128, **options: str) -> Path:
    """Lay a file where FlashInfer keeps a prebuilt module of that shape."""
    window, suffix = options.get("window", "False"), options.get("suffix", "_sm90")
    name = (
        f"batch_prefill_with_kv_cache_dtype_q_{dtype}_dtype_kv_{dtype}_dtype_o_{dtype}"
        f"_dtype_idx_i32_head_dim_qk_{dim}_head_dim_vo_{dim}_posenc_0_use_swa_{window}"
        f"_use_logits_cap_False_f16qk_False{suffix}"
    )
    (folder / name).mkdir(parents=True)
    (folder / name / f"{name}.so").touch()
    return folder


def selected(modules: Path, pin: str = "auto", **traits: object) -> Any:
    offers = (*portable.offers("attention", device="cuda"), *attention_offers("cuda", modules))
    registered = [RegisteredOffer("nvidia", "0.1.0", offer) for offer in offers]
    return select("attention", registered, {**GPU, **GQA, **traits}, pin=pin)


def batch(*rows: tuple[int, int], num_decodes: int, block_tokens: int = 16) -> AttentionBatch:
    """Make a batch of (context, query) tokens; block r * 10 + m is the m-th of row r."""
    context, queries = np.array(rows, np.int32).T
    return AttentionBatch(
        query_start=np.concatenate(([0], np.cumsum(queries))).astype(np.int32),
        context_tokens=context,
        num_decode_rows=num_decodes,
        block_tables=np.arange(len(rows) * 10, dtype=np.int32).reshape(len(rows), 10),
        block_tokens=block_tokens,
        positions_T=torch.zeros(int(queries.sum()), dtype=torch.int64),
    )


def test_each_dtype_is_offered_with_the_head_dims_that_are_built(tmp_path: Path) -> None:
    prebuilt(tmp_path, dim=128)
    prebuilt(tmp_path, dim=64)
    prebuilt(tmp_path, dtype="f16", dim=256)
    declared = {
        offer.requires["dtype"]: offer.requires["head_dim"]
        for offer in attention_offers("cuda", tmp_path)
    }
    assert declared == {("bfloat16",): (64, 128), ("float16",): (256,)}


@pytest.mark.parametrize("options", [{"suffix": ""}, {"window": "True"}])
def test_modules_of_other_kernels_are_no_offer(
    tmp_path: Path, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    prebuilt(tmp_path, **options)
    with caplog.at_level(logging.INFO):
        assert attention_offers("cuda", tmp_path) == ()
    assert str(tmp_path) in caplog.text


def test_a_pin_takes_it_and_a_free_choice_the_portable_kernels(tmp_path: Path) -> None:
    prebuilt(tmp_path)
    assert selected(tmp_path).winner.pin == "nvidia/paged_triton"
    assert selected(tmp_path, PIN).winner.pin == PIN


@pytest.mark.parametrize(
    "trait", [{"window": 128}, {"sinks": True}, {"softcap": 30.0}, {"head_dim": 64}]
)
def test_what_no_module_computes_is_refused(tmp_path: Path, trait: dict[str, object]) -> None:
    prebuilt(tmp_path)
    with pytest.raises(CapabilityError, match=next(iter(trait))):
        selected(tmp_path, PIN, **trait)


def test_pages_are_those_of_the_rows_behind_the_decode_rows() -> None:
    pages = pages_of_chunks(batch((40, 1), (0, 5), (30, 34), num_decodes=1))
    assert pages.query_start.tolist() == [0, 5, 39]
    assert pages.page_start.tolist() == [0, 1, 5]
    assert pages.pages.tolist() == [10, 20, 21, 22, 23]
    assert pages.last_page_tokens.tolist() == [5, 16]


def test_rows_without_query_tokens_have_no_pages() -> None:
    pages = pages_of_chunks(batch((16, 2), (7, 0), (15, 1), num_decodes=0))
    assert pages.query_start.tolist() == [0, 2, 3]
    assert pages.pages.tolist() == [0, 1, 20]
    assert pages.last_page_tokens.tolist() == [2, 16]


def test_a_step_of_decode_rows_alone_has_no_chunks() -> None:
    assert pages_of_chunks(batch((3, 1), (9, 1), num_decodes=2)).num_tokens == 0
