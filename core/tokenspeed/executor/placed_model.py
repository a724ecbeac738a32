"""A model spread over ranks: its layers hold this rank's part, its calls run compiled programs.

To the executor it is a model like any other.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.errors import ConfigError
from tokenspeed.executor.balancing import ExpertBalancer
from tokenspeed.executor.program import ProgramRunner
from tokenspeed.executor.token_counts import TokenCounts
from tokenspeed.executor.weights import made_up_refusal
from tokenspeed.placement.fuse import fuse
from tokenspeed.placement.paths import module_at
from tokenspeed.placement.program import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.contracts.model import CausalLM, ForwardContext
    from tokenspeed.contracts.weights import LinearWeight
    from tokenspeed.executor.program import Connections
    from tokenspeed.placement.compiled import CompiledModel
    from tokenspeed.placement.expert_load import ExpertLoad


class PlacedModel:
    """One rank's part of a model; satisfies contracts.model.CausalLM but for its constructor.

    Args:
        model: built with this rank's shards, backends and geometry.
        kernels: binds the operators that a program calls on activations.
        connections: to the ranks that a program exchanges tensors with.
        balance_steps: steps between two looks at the load of experts; 0: none, they stay.
    """

    architectures: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        model: CausalLM,
        compiled: CompiledModel,
        *,
        rank: int,
        kernels: KernelBinder,
        connections: Connections,
        balance_steps: int = 0,
    ) -> None:
        self._model = model
        self._mesh, self._rank = compiled.mesh, rank
        stage = compiled.mesh.stage(rank)
        self._vocab_size = compiled.vocab_size
        self.has_logits = bool(compiled.logits[stage].outputs)
        """Whether this rank's stage is the last: others return the empty tensors of their calls."""
        runner = partial(
            ProgramRunner,
            mesh=compiled.mesh,
            rank=rank,
            module_at=partial(module_at, model),
            kernels=kernels,
            connections=connections,
        )
        self.balancer = _balancer(model, compiled, stage, connections, balance_steps)
        """None: experts stay where they were loaded."""
        features_over = partial(_features_over, connections)
        self._forward = runner(fuse(compiled.forward[stage], features_over))
        self._logits = runner(fuse(compiled.logits[stage], features_over))

    @property
    def expert_load(self) -> ExpertLoad | None:
        """What is known of the experts of this rank's stage; None: they stay where they are."""
        return None if self.balancer is None else self.balancer.load

    @property
    def own_queries(self) -> Callable[[int], tuple[int, int]] | None:
        """Of so many query tokens, the [start, stop) that this rank attends for; None: all."""
        axes = self._mesh.groups[ParallelGroup.ATTN_CP]
        if not axes:
            return None
        mesh, place = self._mesh, self._mesh.place(self._rank, axes)
        partitions = mesh.size(mesh.groups[ParallelGroup.ATTN_DP])

        def share(num_tokens: int) -> tuple[int, int]:
            sizes = TokenCounts(mesh, (num_tokens,) * partitions).sizes(
                (*mesh.groups[ParallelGroup.ATTN_DP], *axes), axes, self._rank
            )
            start = sum(sizes[:place])
            return start, start + sizes[place]

        return share

    @property
    def held_bytes(self) -> int:
        """Bytes of the weights that this rank has loaded; 0: the model does not count them."""
        return int(getattr(self._model, "held_bytes", 0))

    def skipped_weights(self) -> frozenset[str]:
        """Return the names of tensors that other ranks hold and this one does not."""
        names: Callable[[], frozenset[str]] = getattr(self._model, "skipped_weights", frozenset)
        return names()

    def wanted_weights(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every tensor that `load_weights` takes.

        Raises:
            ConfigError: the model does not say so.
        """
        wanted_weights = getattr(self._model, "wanted_weights", None)
        if wanted_weights is None:
            raise ConfigError(made_up_refusal(type(self._model)))
        wanted: dict[str, tuple[int, ...]] = wanted_weights()
        return wanted

    def load_weights(self, weights: Iterable[tuple[str, LinearWeight]]) -> None:
        """Give every tensor to the layer of its name, cut to what the rank holds."""
        self._model.load_weights(weights)

    def forward(self, token_ids_T: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """Return hidden states (T, D) of this partition's tokens; (T, 0) but in the last stage."""
        if self.balancer is not None:
            self.balancer.before_step()
        results = self._forward.run(
            token_ids_T,
            context.positions_T,
            context=context,
            partition_tokens=context.partition_tokens,
        )
        return results[0] if results else token_ids_T.new_empty(len(token_ids_T), 0)

    def compute_logits(self, hidden_RD: torch.Tensor) -> torch.Tensor:
        """Return logits (R, V) float32; (R, 0) but in the last stage."""
        if not self.has_logits:
            return hidden_RD.new_empty(len(hidden_RD), 0)
        logits_RV: torch.Tensor = self._logits.run(hidden_RD)[0]
        if self._vocab_size is None:
            return logits_RV
        return logits_RV[:, : self._vocab_size].contiguous()  # what is behind it are no tokens


def _features_over(connections: Connections, axes: tuple[str, ...]) -> frozenset[str]:
    """Return the features of the communicator over some axes."""
    return connections.over(axes).features


def _balancer(
    model: CausalLM, compiled: CompiledModel, stage: int, connections: Connections, steps: int
) -> ExpertBalancer | None:
    """Return what moves a stage's experts; None: there are none, or they stay."""
    axes = compiled.mesh.groups[ParallelGroup.MOE_EP]
    nodes = (item.node for item in compiled.forward[stage].instructions if isinstance(item, Call))
    layers = {node.layer: module_at(model, node.target) for node in nodes if node.exchanged}
    if not steps or not axes or not layers:
        return None
    return ExpertBalancer(layers, connections.over(axes), interval=steps)
