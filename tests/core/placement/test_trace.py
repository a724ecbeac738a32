"""Every architecture becomes a graph from config.json alone; other text is refused by its line."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from tests.support.model_contexts import definition_context
from tests.support.traced_models import PUBLISHED, TINY, model_class, tiny

from tokenspeed.errors import PlacementError
from tokenspeed.models.llama import LlamaAttention, LlamaForCausalLM
from tokenspeed.placement.graph import Kind, Node, StepArgument
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.paths import module_at
from tokenspeed.placement.trace import Graphs, trace


def traced(config: dict[str, Any], **options: Any) -> Graphs:
    return trace(model_class(config), config, **options)


@pytest.mark.parametrize("name", TINY)
def test_every_architecture_becomes_two_graphs(name: str) -> None:
    config = tiny(name)
    graphs = traced(config, dtype="float32")
    forward, logits = graphs.forward, graphs.logits
    assert [forward.values[number].parts for number in forward.inputs] == [((TOKENS,),)] * 2
    (hidden,), (scores,) = (
        [graph.values[number] for number in graph.outputs] for graph in (forward, logits)
    )
    assert hidden.parts == ((TOKENS,), (config["hidden_size"],))
    assert (scores.parts, scores.dtype) == (((TOKENS,), (config["vocab_size"],)), "float32")
    for graph in (forward, logits):
        made = {*graph.inputs}
        for node in graph.nodes:
            used = {given.number for given in node.inputs if hasattr(given, "number")}
            assert used <= made
            made |= {*node.outputs}
        assert made == {value.number for value in graph.values}


@pytest.mark.parametrize("name", TINY)
def test_a_path_leads_to_the_same_layer_in_another_instance(name: str) -> None:
    config = tiny(name)
    forward = traced(config).forward
    model = model_class(config)(config, definition_context(groups=("full", "window")))
    modules = [node for node in forward.nodes if node.kind is Kind.MODULE]
    assert all(callable(module_at(model, node.target)) for node in modules)
    attended = [node for node in modules if StepArgument() in node.inputs]
    named = [f"layers.{node.layer}.attention." in node.target for node in attended]
    assert named
    assert all(named)
    in_layers = [node.layer for node in forward.nodes if node.layer >= 0]
    assert in_layers == sorted(in_layers)
    assert {*in_layers} == {*range(config["num_hidden_layers"])}
    outside = [node.target for node in forward.nodes if node.layer < 0]
    assert outside == ["rotary.angles", "embedding", "norm.add"]


def node_at(graphs: Graphs, target: str) -> Node:
    return next(node for node in graphs.forward.nodes if node.target == target)


def test_nodes_say_sizes_spread_and_units() -> None:
    graphs = traced(PUBLISHED["qwen3-235b-a22b"])
    qkv = node_at(graphs, "layers.0.attention.qkv")
    assert qkv.weights == (((8192, 512, 512), (4096,)),)
    assert {letter: group.value for letter, group in qkv.spread.items()} == {"O": "attn_tp"}
    assert qkv.units == {"O": (64, 4, 4)}
    assert graphs.forward.values[qkv.outputs[0]].name == "layers.0.attention.qkv"
    assert node_at(graphs, "layers.0.attention.attend").units == {"K": (4,)}
    experts = node_at(graphs, "layers.0.mlp.experts")
    assert experts.weights == (((128,), (1536, 1536), (4096,)), ((128,), (4096,), (1536,)))
    assert {letter: group.value for letter, group in experts.spread.items()} == {
        "E": "moe_ep",
        "F": "moe_tp",
    }
    assert experts.where.startswith("tokenspeed/layers/moe.py:")
    assert qkv.where.startswith("tokenspeed/models/qwen3.py:")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_need_no_memory_and_little_time(name: str) -> None:
    traced(PUBLISHED[name])
    seconds = []
    for _ in range(3):
        start = time.process_time()
        graphs = traced(PUBLISHED[name])
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.4
    layers = [node.layer for node in graphs.forward.nodes]
    assert max(layers) == PUBLISHED[name]["num_hidden_layers"] - 1


class Wrong(LlamaForCausalLM):
    """Llama with a text of a test's in place of its attention."""

    def make_attention(self, layer: int) -> Any:
        return Text(self.config, self.context, self.rotary, layer)


class Text(LlamaAttention):
    text: Any

    def __call__(self, x_TD: Any, step: Any, angles: Any) -> Any:
        return type(self).text(self, x_TD, step, angles)


@pytest.mark.parametrize(
    ("text", "said", "instead"),
    [
        (lambda self, x, *_: x.view(len(x), -1), "__len__", "write x.shape\\[0\\]"),
        (lambda self, x, *_: x if x.sum() > 0 else -x, "sum", "bind an operator"),
        (lambda self, x, *_: -x if x else x, "__bool__", "let config.json alone decide"),
        (
            lambda self, x, *_: x if x.shape[0] > 1 else x[0],
            "T is asked for __gt__",
            "view as it is",
        ),
        (lambda self, x, *_: x.view(x.shape[0] * 2, -1), "T is asked for __mul__", "or -1"),
        (lambda self, x, *_: x[: int(x.shape[0])], "T is asked for __int__", "or -1"),
        (lambda self, x, *_: x * 2, "__mul__", "bind an operator"),
        (lambda self, x, *_: x + 1, r"\+ 1", "add tensors of one shape"),
        (lambda self, x, *_: x == x, "__eq__", "let config.json alone decide"),
        (lambda self, x, *_: torch.tanh(x), "torch.tanh", "bind an operator"),
        (lambda self, x, *_: torch.cat((x, torch.zeros(1)), 0), "torch.cat", "bind an operator"),
        (lambda self, x, *_: x.reshape(-1), "reshape", "use view"),
        (lambda self, x, *_: x.item(), "item", "bind an operator"),
        (lambda self, x, *_: x.split(8, -1), "split", "use split_with_sizes"),
        (lambda self, x, *_: [*x], "__iter__", "use unbind"),
        (lambda self, x, step, _: step.kv[0], "the step is asked for kv", "layer with a cache"),
        (lambda self, x, *_: x.view(x.shape[0], 5), "5", "view"),
        (lambda self, x, *_: torch.zeros(x.shape[0]), "TypeError", "while the model is traced"),
        (lambda self, x, *_: self.attend._write(x), "a backend is called", "recorder"),
        (lambda self, x, *_: self.rotary(torch.zeros(1), (x, x)), "no layer holds", "recorder"),
    ],
)
def test_text_that_is_no_operator_layer_or_view_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: Any, said: str, instead: str
) -> None:
    monkeypatch.setattr(Text, "text", staticmethod(text), raising=False)
    config = tiny("llama")
    with pytest.raises(PlacementError, match=f"(?s){said}.*{instead}") as caught:
        trace(Wrong, config)
    line = text.__code__.co_firstlineno
    where = "tokenspeed/layers/rotary.py:" if "rotary" in text.__code__.co_names else f"{line}: "
    assert where in str(caught.value)


def test_a_sum_of_two_tensors_is_a_node() -> None:
    class Adding(LlamaForCausalLM):
        def embed(self, token_ids_T: Any) -> Any:
            return super().embed(token_ids_T) + super().embed(token_ids_T)

    graph = trace(Adding, tiny("llama")).forward
    (node,) = [node for node in graph.nodes if node.target == "add"]
    assert graph.values[node.outputs[0]].parts == ((TOKENS,), (48,))
    assert node.rule is not None


def test_a_layer_that_no_attribute_leads_to_is_refused() -> None:
    class Hidden(LlamaForCausalLM):
        def make_attention(self, layer: int) -> Any:
            attention = super().make_attention(layer)
            output = attention.output
            attention.output = lambda x: output(x)
            return attention

    with pytest.raises(PlacementError, match="a Linear is called that no attribute"):
        trace(Hidden, tiny("llama"))
