"""What is offered of FlashInfer, as data: the library is imported when a backend is built."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tokenspeed_nvidia.flashinfer.presence import head_dims_of_chunks, prebuilt_modules
from tokenspeed_sdk import CacheDemand, Offer

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

BAND = "REFERENCE"
"""Behind the portable kernels: taken where it is pinned, until a device has measured it faster."""


def attention_offers(device: str, modules: Path | None = None) -> tuple[Offer, ...]:
    """Return attention whose chunks FlashInfer computes, one offer for each dtype that is built.

    Windows, sinks and softcap are not declared: their modules are others. Nor is determinism.

    Args:
        device: kind that each offer requires.
        modules: folder of prebuilt modules; None: that of the installed library.
    """
    modules = modules or prebuilt_modules()
    if modules is None:
        logger.debug("no attention of FlashInfer: the library is not installed")
        return ()
    found = head_dims_of_chunks(modules)
    if not found:
        logger.info("no attention of FlashInfer: no prebuilt module for sm_90a in %s", modules)
    return tuple(
        Offer(
            "attention",
            f"chunks_flashinfer_{dtype}",
            _chunks,
            band=BAND,
            requires={
                "device": (device,),
                "arch": ("sm_90a",),
                "cache": ("gqa",),
                "dtype": (dtype,),
                "head_dim": head_dims,
                "gqa_ratio": ("*",),
                "block_tokens": ("*",),
                "graph_safe": (True,),
            },
            facts={"cache": CacheDemand()},
        )
        for dtype, head_dims in found.items()
    )


def _chunks(**traits: Any) -> Any:
    from tokenspeed_nvidia.flashinfer.attention import ChunksByFlashInfer

    return ChunksByFlashInfer(**traits)
