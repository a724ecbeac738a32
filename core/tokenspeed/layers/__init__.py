"""Shared blocks of model files: each binds its operators once and says how it lies over ranks."""

from tokenspeed.layers.attention import PagedAttention
from tokenspeed.layers.decoder import CACHE_GROUP, DecoderForCausalLM, Layer
from tokenspeed.layers.embedding import TokenEmbedding
from tokenspeed.layers.latent_attention import LatentAttention, LatentShape
from tokenspeed.layers.linear import HeadsLinear, Linear
from tokenspeed.layers.linear_attention import DeltaShape, GatedDeltaNet
from tokenspeed.layers.mlp import GatedMLP
from tokenspeed.layers.moe import EXPERT_GROUP, Experts, MoE, plain_expert
from tokenspeed.layers.norm import GatedRMSNorm, RMSNorm
from tokenspeed.layers.placements import (
    Spread,
    Units,
    bind_held,
    column_parallel,
    held,
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
    "HeadsLinear",
    "LatentAttention",
    "LatentShape",
    "Layer",
    "Linear",
    "MoE",
    "PagedAttention",
    "RMSNorm",
    "RopeParameters",
    "RotaryEmbedding",
    "Spread",
    "TokenEmbedding",
    "Units",
    "WeightSlot",
    "bind_held",
    "column_parallel",
    "fill_slots",
    "held",
    "plain_expert",
    "row_parallel",
    "shared_slot",
]
