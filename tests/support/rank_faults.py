"""A scripted model whose worker ranks fail where rank 0 does not; for `--model-module`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed_sdk.testkit.scripted import ScriptedForCausalLM

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext

HANG_TOKEN, RAISE_TOKEN, SLOW_TOKEN = 200, 201, 202
"""Ids that the model itself never emits."""
SLOW_S = 2.0


class FaultyRanksForCausalLM(ScriptedForCausalLM):
    """As ScriptedForCausalLM, but on a worker some tokens make it hang, raise or take long."""

    architectures: ClassVar[tuple[str, ...]] = ("FaultyRanksForCausalLM",)

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__(config, context)
        self._is_worker = "--ring" in sys.argv or "--socket" in sys.argv
        if self._is_worker and config.get("worker_fails_to_build"):
            raise RuntimeError("no such worker today")
        if self._is_worker:
            time.sleep(config.get("worker_builds_s", 0))

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Fail as asked, then compute."""
        ids = set(token_ids_T.tolist()) if self._is_worker else set()
        while HANG_TOKEN in ids:
            time.sleep(0.1)
        if RAISE_TOKEN in ids:
            raise RuntimeError("this rank has had enough")
        if SLOW_TOKEN in ids:
            time.sleep(SLOW_S)
        return super().forward(token_ids_T, context)


EntryClass = FaultyRanksForCausalLM
