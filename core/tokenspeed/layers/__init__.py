"""Shared blocks of model files: each binds its operators once and carries placements as data."""

from tokenspeed.layers.attention import PagedAttention
from tokenspeed.layers.decoder import CACHE_GROUP, DecoderForCausalLM, Layer
from tokenspeed.layers.embedding import TokenEmbedding
from tokenspeed.layers.latent_attention import LatentAttention, LatentShape
from tokenspeed.layers.linear import Linear
from tokenspeed.layers.linear_attention import DeltaShape, GatedDeltaNet
from tokenspeed.layers.mlp import GatedMLP
from tokenspeed.layers.moe import EXPERT_GROUP, Experts, MoE, plain_expert
from tokenspeed.layers.norm import GatedRMSNorm, RMSNorm
from tokenspeed.layers.placements import (
    LayerPlacement,
    column_parallel,
    replicated,
    row_parallel,
)
from tokenspeed.layers.rotary import RopeParameters, RotaryEmbedding
from tokenspeed.layers.weights import WeightSlot, fill_slots, shared_slot

__all__ = [
    "CACHE_GROUP",
    "EXPERT_GROUP",
    "DecoderForCausalLM",
    "DeltaShape",
    "Experts",
    "GatedDeltaNet",
    "GatedMLP",
    "GatedRMSNorm",
    "LatentAttention",
    "LatentShape",
    "Layer",
    "LayerPlacement",
    "Linear",
    "MoE",
    "PagedAttention",
    "RMSNorm",
    "RopeParameters",
    "RotaryEmbedding",
    "TokenEmbedding",
    "WeightSlot",
    "column_parallel",
    "fill_slots",
    "plain_expert",
    "replicated",
    "row_parallel",
    "shared_slot",
]
