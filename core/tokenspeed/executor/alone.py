"""The program of a model that one rank has whole: its forward as a straight line of calls.

The model's own forward makes the same calls; a line can be cut (`pieces.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import EngineError
from tokenspeed.executor.program import ProgramRunner
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.paths import module_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.contracts.model import CausalLM


class _NoConnections:
    """One rank has nobody to exchange tensors with."""

    def over(self, axes: tuple[str, ...]) -> Communicator:
        raise EngineError(f"a program of one rank wants ranks that differ in {axes}")

    def between(self, stage: int) -> Communicator:
        raise EngineError(f"a program of one rank wants a stage behind {stage}")


def runner_of(
    model: CausalLM, config: Mapping[str, Any], kernels: KernelBinder, *, dtype: str
) -> ProgramRunner:
    """Return what runs the forward of a model that is built and was given no shards.

    Args:
        config: of its config.json.
        kernels: that the model was built with.
        dtype: torch's name of that of its weights and activations.
    Raises:
        PlacementError: the model cannot be traced.
    """
    mesh = build_mesh(Degrees())
    compiled = compile_model(type(model), config, mesh, dtype=dtype)
    return ProgramRunner(
        compiled.forward[0],
        mesh=mesh,
        rank=0,
        module_at=partial(module_at, model),
        kernels=kernels,
        connections=_NoConnections(),
    )
