"""Sum, residual and norm in one call of the communicator: the tokens are those of three calls."""

from __future__ import annotations

import pytest
import torch
from tests.core.executor.test_placed_models import MESHES, decoded
from tests.support import rank_threads
from tests.support.placed_runs import check_logits, placed_logits
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.placement.mesh import build_mesh
from tokenspeed_reference.communicator import ThreadCommunicator


class FusingCommunicator(ThreadCommunicator):
    """Has the feature, counts its calls and spoils x, as it may."""

    features = ThreadCommunicator.features | {"all_reduce_add_rms_norm"}
    calls = 0

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the plain definition."""
        type(self).calls += 1
        total = residual + self.all_reduce(x)
        x.fill_(torch.nan)
        scale = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
        return total * scale * weight, total


@pytest.mark.parametrize("mesh", ["tp2", "tp2 ep2", "tp2 dp2 dense4", "tp2 pp2"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "deepseek_v3"])
def test_fused_calls_decode_what_one_rank_does(
    name: str, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_threads, "ThreadCommunicator", FusingCommunicator)
    monkeypatch.setattr(FusingCommunicator, "calls", 0)
    config, plain, degrees = even(name), decoded(name), MESHES[mesh]
    ranks = placed_logits(
        model_class(config), config, random_weights, plain.fed, build_mesh(degrees)
    )
    check_logits(plain, ranks, degrees)
    assert FusingCommunicator.calls >= len(plain.fed) * config["num_hidden_layers"]
