"""A model compiled for a mesh: what each pipeline stage runs, and what each rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tokenspeed.placement.compiler import compile_graph
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.fitting import TRIED, fitting_told
from tokenspeed.placement.shards import RankShards
from tokenspeed.placement.stages import layers_of_stages
from tokenspeed.placement.trace import trace
from tokenspeed.placement.vocabulary import NAME, padded_config, roomy_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.program import Program

STEP_TOKENS = 256
"""Tokens of the step for which programs are the cheapest, all ranks together: decodes of many
requests, or a short chunk."""


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """The programs of both calls of a model, the same on every rank of a stage.

    Args:
        forward, logits: of each pipeline stage, the first stage first.
        layers: decoder layers of each stage.
        spare_experts: slots of a rank beyond its share of experts; None: experts never move.
        vocab_size: logits that count, of those that `logits` gives; None: all.
    """

    mesh: Mesh
    forward: tuple[Program, ...]
    logits: tuple[Program, ...]
    layers: tuple[range, ...]
    spare_experts: int | None = None
    vocab_size: int | None = None

    @property
    def digest(self) -> str:
        """Of everything that the ranks must agree on, hexadecimal."""
        digests = "".join(program.digest for program in (*self.forward, *self.logits))
        return sha256(f"{digests} {self.spare_experts}".encode()).hexdigest()

    def shards(self, rank: int) -> RankShards:
        """Return what a rank holds."""
        layers = self.layers[self.mesh.stage(rank)]
        return RankShards(self.mesh, rank, layers, self.spare_experts)


def compile_model(
    model_class: type[CausalLM],
    config: Mapping[str, Any],
    mesh: Mesh,
    *,
    dtype: str,
    cost: CostModel | None = None,
    tokens: int = STEP_TOKENS,
) -> CompiledModel:
    """Trace a model from config.json alone and compile it.

    Args:
        dtype: torch's name of the dtype of weights and activations.
        cost: of the links between ranks; None: `CostModel()`.
        tokens: of the step for which the programs are the cheapest.
    Raises:
        PlacementError: no placement fits; names module, expected and found, and
            the numbers of ranks that work.
        ConfigError: there are more stages than layers.
    """
    padded = padded_config(config, mesh)
    graphs = trace(model_class, padded, dtype=dtype)
    links = cost or CostModel()
    roomy = partial(trace, model_class, roomy_config(config, TRIED), dtype=dtype)
    with fitting_told(roomy, mesh.degrees, links, tokens):
        forward = compile_graph(graphs.forward, mesh, links, tokens)
        logits = compile_graph(graphs.logits, mesh, links, tokens)
    num_layers = 1 + max(node.layer for node in graphs.forward.nodes)
    return CompiledModel(
        mesh,
        forward,
        logits,
        layers_of_stages(num_layers, mesh.degrees.pp),
        vocab_size=None if padded is config else config[NAME],
    )
