"""The plugin author's facade: contracts, errors and operators. Imports no torch."""

from __future__ import annotations

from tokenspeed import ops
from tokenspeed.contracts.attention import AttentionBackend, AttentionBatch, KVView
from tokenspeed.contracts.device import DeviceFacts, DeviceRuntime
from tokenspeed.contracts.kernel import Band, KernelOffer, Operator
from tokenspeed.contracts.registration import Offer, Registration
from tokenspeed.contracts.sampler import (
    PURPOSE_SAMPLE,
    Penalties,
    Sampler,
    SampleResult,
    SamplingBatch,
    TokenLogprobs,
)
from tokenspeed.contracts.weights import LinearWeight, WeightFormat, WeightSource
from tokenspeed.errors import CapacityError
from tokenspeed.hookspecs import hookimpl

__all__ = [
    "PURPOSE_SAMPLE",
    "AttentionBackend",
    "AttentionBatch",
    "Band",
    "CapacityError",
    "DeviceFacts",
    "DeviceRuntime",
    "KVView",
    "KernelOffer",
    "LinearWeight",
    "Offer",
    "Operator",
    "Penalties",
    "Registration",
    "SampleResult",
    "Sampler",
    "SamplingBatch",
    "TokenLogprobs",
    "WeightFormat",
    "WeightSource",
    "hookimpl",
    "ops",
]

plugin = object()
