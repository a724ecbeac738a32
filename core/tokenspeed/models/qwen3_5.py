"""Qwen3.5 text models (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM): Qwen3-Next, stored plainly.

Text alone: positions of the three rotary sections are equal, so `mrope_section` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.layers import GatedDeltaNet
from tokenspeed.models import fields
from tokenspeed.models.experts import read_experts
from tokenspeed.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM, read_common

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Qwen35Config(Qwen3NextConfig):
    """The fields of config.json that this architecture reads."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Qwen35Config:
        """Read and check config.json; with `num_experts` every layer has experts, else none.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        common, experts, width, shared = read_common(config), None, 0, 0
        if config.get("num_experts") is None:
            width = fields.count(config, "intermediate_size")
        else:
            experts = read_experts(
                config,
                tuple(range(common["num_layers"])),
                hidden_size=common["hidden_size"],
                normalise=True,
            )
            shared = fields.count(config, "shared_expert_intermediate_size")
        return cls(**common, intermediate_size=width, experts=experts, shared_features=shared)


class Qwen35ForCausalLM(Qwen3NextForCausalLM):
    """Qwen3.5 with its output head, dense or with experts."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")
    config_class = Qwen35Config
    delta_net: ClassVar[type[GatedDeltaNet]] = GatedDeltaNet


EntryClass = Qwen35ForCausalLM
