"""Runs a traced graph on one rank: the plain meaning of nodes, over the layers of a real model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokenspeed.placement.graph import Kind, Ref, StepArgument
from tokenspeed.placement.layout import whole
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.paths import module_at
from tokenspeed.placement.views import local_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.placement.graph import Graph, Node

ONE_RANK = build_mesh(Degrees())


def run_graph(graph: Graph, model: Any, inputs: Sequence[torch.Tensor], step: Any) -> torch.Tensor:
    """Return the graph's result for these inputs.

    Args:
        model: a real instance of the traced class, with weights.
        step: its ForwardContext; None for logits.
    """
    values: dict[int, torch.Tensor] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        results = _call(graph, node, model)(*_arguments(graph, node, values, step), **node.options)
        if isinstance(results, torch.Tensor):
            results = (results,)
        for number, result in zip(node.outputs, results, strict=True):
            value = graph.values[number]
            assert str(result.dtype) == f"torch.{value.dtype}", f"{node.target} gives {value.dtype}"
            sizes = [-1 if dim[0] == -1 else sum(dim) for dim in value.parts]
            assert [*result.shape][1:] == sizes[1:], f"{node.target} gives {sizes}"
            values[number] = result
    return values[graph.outputs[0]]


def _arguments(
    graph: Graph, node: Node, values: dict[int, torch.Tensor], step: Any
) -> list[torch.Tensor]:
    refs = [given.number for given in node.inputs if isinstance(given, Ref)]
    if node.kind is not Kind.VIEW:
        return [
            values[given.number]
            if isinstance(given, Ref)
            else step
            if isinstance(given, StepArgument)
            else given
            for given in node.inputs
        ]
    layouts = [whole(graph.values[number].parts) for number in refs]
    return [*(values[number] for number in refs), *local_arguments(node, layouts, ONE_RANK)]


def _call(graph: Graph, node: Node, model: Any) -> Callable[..., Any]:
    if node.kind is Kind.MODULE:
        found: Callable[..., Any] = module_at(model, node.target)
        return found
    if node.kind is Kind.OPERATOR:
        bound: Callable[..., Any] = model.context.kernels.bind(node.operator, **node.traits)
        return bound
    return _VIEWS.get(node.target, getattr(torch.Tensor, node.target, None))


def _cat(*arguments: Any) -> torch.Tensor:
    *tensors, dim = arguments
    return torch.cat(tensors, dim)


_VIEWS: Any = {
    "cat": _cat,
    "getitem": lambda x, index: x[index],
    "mT": lambda x: x.mT,
}
