"""SimForCausalLM: an architecture of its own name; as it stands, Llama's.

A model file ends in `EntryClass`. Replace `make_attention` and `make_mlp`, or write the class from
`tokenspeed_sdk.CausalLM` up; tensors are named as in the checkpoint.
"""

from __future__ import annotations

from typing import ClassVar

from tokenspeed.models.llama import LlamaForCausalLM


class SimForCausalLM(LlamaForCausalLM):
    """CausalLM; the methods that are not here are Llama's."""

    architectures: ClassVar[tuple[str, ...]] = ("SimForCausalLM",)


EntryClass = SimForCausalLM
