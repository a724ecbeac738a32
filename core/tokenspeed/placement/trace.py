"""The trace: a model's `forward` and `compute_logits` run once, on proxies, become graphs.

The model is built from config.json alone: no weights, no memory of a device. In it operators are
bound to callables that note a node, and so are the layers that hold weights, a backend or a cache.
What is neither, nor a view, is an error with the line of the model's text.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.model import ModelContext, expert_groups_of
from tokenspeed.errors import PlacementError, TokenSpeedError
from tokenspeed.placement.paths import paths_of
from tokenspeed.placement.proxies import TracedBackend, TracedStep
from tokenspeed.placement.recorder import GraphRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.placement.graph import Graph

MAX_CONTEXT_TOKENS = 4096
"""Rows of the rotary table where config.json names no length."""


@dataclass(frozen=True, slots=True)
class Graphs:
    """What a model does.

    Args:
        forward: token ids (T,) and positions (T,) to hidden states (T, D).
        logits: hidden states (R, D) to logits (R, V).
    """

    forward: Graph
    logits: Graph


def trace(
    model_class: type[CausalLM], config: Mapping[str, Any], *, dtype: str = "bfloat16"
) -> Graphs:
    """Run both calls of a model once.

    Args:
        dtype: torch's name of the dtype of weights and activations.
    Raises:
        PlacementError: the model's text does what no operator, annotated layer or view does; names
            file, line and what to write instead.
    """
    recorder = GraphRecorder()
    model = model_class(config, _context(model_class, config, recorder, dtype))
    recorder.name_layers(paths_of(model, recorder.modules), getattr(model, "layers", ()))
    token_ids_T = recorder.input((), "int64", "token_ids")
    step: Any = TracedStep(recorder.input((), "int64", "positions"), recorder)
    with _errors_of_text():
        forward = recorder.graph(model.forward(token_ids_T, step))
        hidden = forward.values[forward.outputs[0]]
        hidden_RD = recorder.input(tuple(map(sum, hidden.parts[1:])), hidden.dtype, "hidden")
        return Graphs(forward, recorder.graph(model.compute_logits(hidden_RD)))


@contextmanager
def _errors_of_text() -> Iterator[None]:
    """Turn what Python or torch say of a stand-in into an error with its line."""
    try:
        yield
    except TokenSpeedError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise PlacementError(
            f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}, while the model is "
            "traced, where tensors have sizes and no numbers; operators, layers and views are "
            "allowed; let config.json alone decide, or bind an operator"
        ) from error


def _context(
    model_class: type[CausalLM], config: Mapping[str, Any], recorder: GraphRecorder, dtype: str
) -> ModelContext:
    import torch

    backend: Any = TracedBackend(recorder)
    return ModelContext(
        kernels=recorder,
        attention={group.name: backend for group in model_class.cache_groups(config)},
        dtype=getattr(torch, dtype),
        device=torch.device("meta"),
        max_context_tokens=config.get("max_position_embeddings") or MAX_CONTEXT_TOKENS,
        moe={group.name: backend for group in expert_groups_of(model_class, config)},
        recorder=recorder,
    )
