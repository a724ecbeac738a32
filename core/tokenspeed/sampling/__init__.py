"""Sampling: per-request parameters, and the per-step batch a Sampler reads."""

from tokenspeed.sampling.params import SamplingParams

__all__ = ["SamplingParams"]
