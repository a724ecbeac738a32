"""Checkpoint formats: safetensors folders and files, and GGUF files."""

from __future__ import annotations

from typing import Any

from tokenspeed_sdk import Offer


def offers() -> tuple[Offer, ...]:
    """Return the weight formats of this wheel; each imports torch when it reads tensors."""
    return (
        Offer(slot="weight_format", name="safetensors", load=_load_safetensors),
        Offer(slot="weight_format", name="gguf", load=_load_gguf),
    )


def _load_safetensors() -> Any:
    from tokenspeed_reference.formats.safetensors import SafetensorsFormat

    return SafetensorsFormat()


def _load_gguf() -> Any:
    from tokenspeed_reference.formats.gguf import GgufFormat

    return GgufFormat()
