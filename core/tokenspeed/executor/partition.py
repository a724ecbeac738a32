"""One rank's part in the steps of data-parallel attention.

A step has a segment for each partition. A rank builds and computes its own partition's, over its
own cache; one that has none runs with no token, because the others' collectives wait for it. The
hidden states of all tokens are then gathered over the partitions, so that the ranks of the first
one, rank 0 among them, make all logits: rank 0 alone samples, as always. A token's hidden state is
much smaller than its logits, and one gather at the end is little beside those of the layers.
Legend: T query tokens of a partition, A of all of them, R rows of logits, S slots of all, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tokenspeed.scheduler.joined import IdlePlan, JoinedPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.model import CausalLM, ForwardContext
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.executor.batch import StepBatcher, StepInputs


@dataclass(frozen=True, slots=True)
class Partition:
    """Which partition a rank belongs to.

    Args:
        number: of it, from 0.
        slots: that each partition has.
    """

    number: int
    slots: int


class PartitionBatcher:
    """A StepBatcher that is given joined plans and carries out its partition's segments."""

    def __init__(self, batcher: StepBatcher, partition: Partition) -> None:
        self._batcher = batcher
        self._number = partition.number
        first = partition.number * partition.slots
        self._slots = slice(first, first + partition.slots)
        self._idle = IdlePlan(batcher.num_state_groups)

    def apply(self, plan: StepPlan) -> None:
        """Apply the changes of this partition's segment."""
        segment = _joined(plan).segments[self._number]
        if segment is not None:
            self._batcher.apply(segment)

    def build(self, plan: StepPlan, last_tokens_S: torch.Tensor) -> StepInputs:
        """Return the inputs of this partition's segment, of no token where it has none."""
        joined = _joined(plan)
        segment = joined.segments[self._number]
        if segment is None or segment.num_rows == 0:
            segment = self._idle  # type: ignore[assignment]
        assert segment is not None
        inputs = self._batcher.build(segment, last_tokens_S[self._slots])
        inputs.context.partition_tokens = joined.partition_tokens
        return inputs


class PartitionedModel:
    """A model whose hidden states are those of all partitions; satisfies contracts.CausalLM.

    Args:
        model: what this rank runs.
        communicator: of the ranks with this one's place in every partition; None: this rank's
            stage makes no hidden states that logits are made of.
        number: of this rank's partition.
    """

    architectures: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: CausalLM, communicator: Communicator | None, *, number: int) -> None:
        self._model = model
        self.own_queries = getattr(model, "own_queries", None)
        self._communicator = communicator
        self._number = number

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Give every tensor to the layer of its name."""
        self._model.load_weights(weights)

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return the hidden states (A, D) of all partitions' tokens; (A, 0) but in the last stage.

        Args:
            token_ids_T: of this partition.
        """
        hidden_TD = self._model.forward(token_ids_T, context)
        sizes = context.partition_tokens
        if self._communicator is None:
            return hidden_TD.new_empty(sum(sizes), 0)
        return self._communicator.all_gather(hidden_TD.contiguous(), sizes=sizes)

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32 of any partition's tokens; (R, 0) but in the first one."""
        if self._number != 0:
            return hidden_RD.new_empty(len(hidden_RD), 0)
        return self._model.compute_logits(hidden_RD)


def _joined(plan: StepPlan) -> JoinedPlan:
    assert isinstance(plan, JoinedPlan), "partitions are given steps of all of them"
    return plan
