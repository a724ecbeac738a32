"""Where a start's measured times lie: by device, versions, model shapes and dtype."""

from __future__ import annotations

import importlib.metadata
import os
from typing import TYPE_CHECKING, Any

import tokenspeed
from tokenspeed.kernels.evidence import EvidenceFile, ModelEvidence, model_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.device import DeviceFacts
    from tokenspeed.engine.sizes import EngineSizes
    from tokenspeed.plugins import Registry


def evidence_for(
    config: EngineConfig,
    registry: Registry,
    facts: DeviceFacts,
    sizes: EngineSizes,
    model_config: Mapping[str, Any],
) -> ModelEvidence:
    """Return the times measured for this model on this device; empty when there are none."""
    threads = config.threads or len(os.sched_getaffinity(0))
    about = {
        "device": f"{facts.kind} {facts.name} {facts.arch}",
        "threads": str(threads),
        "tokenspeed": tokenspeed.__version__,
        "torch": _torch_version(),
        **{
            status.id: status.version for status in registry.plugins if status.state == "registered"
        },
    }
    key = model_key(
        {
            "config": dict(model_config),
            "dtype": sizes.dtype,
            "block_tokens": sizes.block_tokens,
            "weights": config.weights,
            "objective": config.objective,
            "speculator": [config.speculator, config.max_drafts if config.speculator else 0],
            "offers": _timed_offers(registry),
        }
    )
    return ModelEvidence(EvidenceFile(about), key)


def _timed_offers(registry: Registry) -> list[list[str]]:
    """Name everything that can be timed: with another offer, not all was measured."""
    offers = [*registry.offers("attention"), *registry.offers("moe")]
    pins = [[item.offer.slot, item.pin] for item in offers]
    for operator in sorted(registry.operators):
        pins += [[operator, item.pin] for item in registry.kernel_offers(operator)]
    return pins


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"
