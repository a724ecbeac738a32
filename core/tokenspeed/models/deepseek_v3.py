"""DeepSeek-V3 (DeepseekV3ForCausalLM), also Kimi-K2: V2 whose experts are balanced by a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed.models import fields
from tokenspeed.models.deepseek_v2 import (
    DeepseekConfig,
    DeepseekDecoder,
    read_common,
    read_routing,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.model import ModelContext

GROUP_BEST = 2
"""A group of experts is worth the sum of its two best."""


@dataclass(frozen=True, slots=True)
class DeepseekV3Config(DeepseekConfig):
    """The fields of config.json that this architecture reads."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> DeepseekV3Config:
        """Read and check config.json.

        Raises:
            ConfigError: a field is missing or unsupported; names field and value.
        """
        fields.only(config, "scoring_func", ("sigmoid",), default="sigmoid")
        fields.only(config, "topk_method", ("noaux_tc",), default="noaux_tc")
        normalise = fields.flag(config, "norm_topk_prob", True)
        routing = read_routing(
            config, "sigmoid", is_grouped=True, normalise=normalise, group_best=GROUP_BEST
        )
        is_woven = fields.flag(config, "rope_interleave", True)
        return cls(**read_common(config, routing, is_woven=is_woven))


class DeepseekV3ForCausalLM(DeepseekDecoder[DeepseekV3Config]):
    """DeepSeek-V3 with its output head; the layers behind the last one make drafts: left out."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV3ForCausalLM",)
    config_class = DeepseekV3Config
    choice_bias = "e_score_correction_bias"

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__(config, context)
        num_layers = self.config.num_layers
        num_drafting = config.get("num_nextn_predict_layers") or 0
        num_drafting = num_drafting and fields.count(config, "num_nextn_predict_layers", high=64)
        behind = range(num_layers, num_layers + num_drafting)
        self.ignored_prefixes = tuple(f"model.layers.{layer}." for layer in behind)


EntryClass = DeepseekV3ForCausalLM
