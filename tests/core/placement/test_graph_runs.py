"""A graph over a real model's layers computes what the model's text does, bit for bit.

Prefill in chunks and decode, on the reference plugin, float32.
"""

from __future__ import annotations

import pytest
import torch
from tests.support.graph_runs import run_graph
from tests.support.hand_driven import HandDriven, drive
from tests.support.traced_models import TINY, model_class, random_weights, tiny

from tokenspeed.placement.trace import trace


class Checked:
    """A model that computes each call both ways, and notes the calls' tokens."""

    def __init__(self, driven: HandDriven, name: str) -> None:
        self.model = driven.model
        self.graphs = trace(model_class(tiny(name)), tiny(name), dtype="float32")
        self.tokens: list[int] = []

    def forward(self, token_ids_T: torch.Tensor, step: object) -> torch.Tensor:
        """Compare, and return the hidden states."""
        plain = self.model.forward(token_ids_T, step)
        inputs = (token_ids_T, step.positions_T)  # type: ignore[attr-defined]
        assert torch.equal(run_graph(self.graphs.forward, self.model, inputs, step), plain)
        self.tokens.append(len(token_ids_T))
        return plain

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Compare, and return the logits."""
        plain = self.model.compute_logits(hidden_RD)
        assert torch.equal(run_graph(self.graphs.logits, self.model, (hidden_RD,), None), plain)
        return plain


@pytest.mark.parametrize("name", TINY)
def test_the_graph_computes_what_the_text_does(name: str) -> None:
    config = tiny(name)
    driven = drive(model_class(config), config, random_weights)
    checked = Checked(driven, name)
    driven.model = checked
    prompts = [[7, 3, 9, 250, 11, 4, 4, 1], [5], [*range(30, 61)]]
    outputs = driven.decode(prompts, 4, chunk_tokens=12)
    assert [len(tokens) for tokens in outputs] == [4, 4, 4]
    assert {len(prompts), *checked.tokens} >= {1, 3}
