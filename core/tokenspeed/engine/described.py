"""What a model's config.json says, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.model import CacheGroup, CausalLM
    from tokenspeed.contracts.moe import ExpertGroup
    from tokenspeed.engine.sizes import EngineSizes


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A model of config.json alone; or the part of it that one rank has."""

    model_class: type[CausalLM]
    config: Mapping[str, Any]
    groups: tuple[CacheGroup, ...]
    experts: tuple[ExpertGroup, ...]
    sizes: EngineSizes
