"""Notes the calls of a traced model as nodes of a graph.

Operators and layers of the traced model are bound to callables of the recorder, and proxies come
to it for their views. It finds out by the call's stack which line of text called, in which layer.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import Graph, Kind, Node, Ref, StepArgument, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.notation import parse
from tokenspeed.placement.proxies import Proxy, Tokens, TracedStep
from tokenspeed.placement.sizes import result_parts
from tokenspeed.placement.views import view_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.contracts.placement import ParallelGroup
    from tokenspeed.placement.sizes import Parts

_OWN_FILES = {str(Path(__file__).with_name(f"{name}.py")) for name in ("proxies", "recorder")}
_TRACE_FILE = str(Path(__file__).with_name("trace.py"))
ADD = "~..., ~... -> ..."


class _Held:
    """Stands for the tensors that layers hold."""


class GraphRecorder:
    """Satisfies `contracts.placement.Recorder` and `contracts.kernel.KernelBinder`."""

    held: Any = _Held()

    def __init__(self) -> None:
        self.modules: list[object] = []
        self._paths: Mapping[int, str] = {}
        self._layers: dict[int, int] = {}
        self._values: list[Value] = []
        self._nodes: list[Node] = []
        self._inputs: list[int] = []
        self._layer_frame: FrameType | None = None
        self._layer = -1

    def name_layers(self, paths: Mapping[int, str], layers: Sequence[object]) -> None:
        """Tell the paths of modules, by id, and which objects are the decoder's layers."""
        self._paths = paths
        self._layers = {id(layer): index for index, layer in enumerate(layers)}

    def input(self, features: tuple[int, ...], dtype: str, name: str) -> Proxy:
        """Add an input of (tokens, *features) to the graph."""
        proxy = self._proxy(((TOKENS,), *((size,) for size in features)), dtype, name)
        self._inputs.append(proxy.number)
        return proxy

    def graph(self, *results: Any) -> Graph:
        """Return what was noted since the last graph, and begin anew.

        Raises:
            PlacementError: a result is no tensor of the graph.
        """
        for result in results:
            if not isinstance(result, Proxy):
                self.refuse(f"the model returns {result!r}", "return a tensor")
        outputs = tuple(result.number for result in results)
        graph = Graph(tuple(self._values), tuple(self._nodes), tuple(self._inputs), outputs)
        self._values, self._nodes, self._inputs = [], [], []
        self._layer_frame = None
        return graph

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return a callable that notes a call of the operator."""

        def record(*arguments: Any, **options: Any) -> Any:
            if not operator.placement:
                self.refuse(
                    f"operator {operator.name} is called, which says nothing of its placement",
                    "declare it with `placement=` (contracts/placement.py has the notation)",
                )
            where, layer = self._caller()
            return self._record(
                Node(
                    Kind.OPERATOR,
                    operator.name,
                    self._inputs_of(arguments),
                    (),
                    options,
                    parse(operator.placement),
                    operator=operator,
                    traits=traits,
                    layer=layer,
                    where=where,
                ),
                operator.name if layer < 0 else f"layers.{layer}.{operator.name}",
                operator.result_dtypes,
            )

        return record

    def module(
        self,
        layer: object,
        rule: str,
        *,
        method: str = "",
        weights: Sequence[Sequence[Sequence[int]]] = (),
        spread: Mapping[str, ParallelGroup] | None = None,
        units: Mapping[str, Sequence[int]] | None = None,
        dtypes: Sequence[str] = (),
        operator: Operator | None = None,
    ) -> Callable[..., Any]:
        """Return a callable that notes a call of `layer`; see the contract."""
        self.modules.append(layer)
        parsed = parse(rule)
        taken = {path.partition(".")[0] for _, path in parsed.options}
        sizes = tuple(tuple(map(tuple, weight)) for weight in weights)
        given = {letter: tuple(count) for letter, count in (units or {}).items()}

        def record(*arguments: Any, **options: Any) -> Any:
            path = self._path(layer, method)
            where, index = self._caller(1)
            return self._record(
                Node(
                    Kind.MODULE,
                    path,
                    self._inputs_of(arguments),
                    (),
                    {name: value for name, value in options.items() if name in taken},
                    parsed,
                    sizes,
                    spread or {},
                    given,
                    operator,
                    layer=index,
                    where=where,
                ),
                path,
                dtypes,
            )

        return record

    def view(self, target: str, tensors: Sequence[Proxy], constants: Sequence[Any]) -> Any:
        """Note a view and return its result, or a tuple of them."""
        where, layer = self._caller()
        known = tuple(_plain(constant) for constant in constants)
        try:
            parts = view_parts(target, [tensor.parts for tensor in tensors], known)
        except PlacementError as error:
            raise PlacementError(f"{where}: {error}") from None
        first = tensors[0]
        name, dtype = self._values[first.number].name, _dtype_after(target, known, first)
        names = [name] if len(parts) == 1 else [f"{name}[{index}]" for index in range(len(parts))]
        results = [self._proxy(*item, name=own) for *item, own in
                   zip(parts, [dtype] * len(parts), names, strict=True)]  # fmt: skip
        inputs = (*(Ref(tensor.number) for tensor in tensors), *known)
        outputs = tuple(result.number for result in results)
        self._nodes.append(Node(Kind.VIEW, target, inputs, outputs, layer=layer, where=where))
        return tuple(results) if target in ("split_with_sizes", "unbind") else results[0]

    def add(self, one: Proxy, other: Any) -> Any:
        """Note a sum of two tensors of one shape."""
        where, layer = self._caller()
        if not isinstance(other, Proxy) or one.shape[1:] != other.shape[1:]:
            self.refuse(f"{one!r} + {other!r} is asked for", "add tensors of one shape")
        inputs = (Ref(one.number), Ref(other.number))
        node = Node(Kind.VIEW, "add", inputs, (), rule=parse(ADD), layer=layer, where=where)
        return self._record(node, self._values[one.number].name, ())

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise a PlacementError that names the line of the model's text."""
        raise PlacementError(
            f"{self._caller()[0]}: {what} while the model is traced, where tensors have sizes and "
            f"no numbers; operators, layers and views are allowed; {instead}"
        )

    def _record(self, node: Node, name: str, dtypes: Sequence[str]) -> Any:
        assert node.rule is not None, "views are noted otherwise"
        refs = [given for given in node.inputs if isinstance(given, Ref)]
        arguments = [
            self._values[given.number].parts if isinstance(given, Ref) else None
            for given in node.inputs
            if not isinstance(given, StepArgument)
        ]
        try:
            parts = result_parts(node.rule, (*arguments, *node.weights), node.options)
        except PlacementError as error:
            raise PlacementError(f"{node.where}: {node.target}: {error}") from None
        usual = self._values[refs[0].number].dtype
        named = [*dtypes, *[""] * (len(parts) - len(dtypes))]
        results = [
            self._proxy(own, dtype or usual, name if len(parts) == 1 else f"{name}[{index}]")
            for index, (own, dtype) in enumerate(zip(parts, named, strict=True))
        ]
        units = self._units(node, arguments)
        outputs = tuple(result.number for result in results)
        self._nodes.append(_with(node, outputs, units))
        return results[0] if len(results) == 1 else tuple(results)

    def _units(
        self, node: Node, arguments: Sequence[Parts | None]
    ) -> Mapping[str, tuple[int, ...]]:
        """Return the node's units, and of letters that others share (K<N) each element one."""
        assert node.rule is not None, "views have no units"
        shared = {low for low, _ in node.rule.shared} - node.units.keys()
        units = dict(node.units)
        for pattern, parts in zip(node.rule.inputs, arguments, strict=False):
            for dim, sizes in zip(pattern.dims if pattern else (), parts or (), strict=False):
                if dim.letter in shared and sizes[0] != TOKENS:
                    units.setdefault(dim.letter, sizes)
        return units

    def _proxy(self, parts: Parts, dtype: str, name: str) -> Proxy:
        value = Value(len(self._values), parts, dtype, name)
        self._values.append(value)
        return Proxy(self, value.number, parts, dtype)

    def _path(self, layer: object, method: str) -> str:
        if id(layer) not in self._paths:
            self.refuse(
                f"a {type(layer).__name__} is called that no attribute of the model leads to",
                "keep it as an attribute of a block, in a list or in a dict",
            )
        path = self._paths[id(layer)]
        return f"{path}.{method}" if method else path

    def _inputs_of(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self._input_of(item) for item in arguments if item is not self.held)

    def _input_of(self, item: Any) -> Any:
        if isinstance(item, Proxy):
            return Ref(item.number)
        if isinstance(item, TracedStep):
            return StepArgument()
        if hasattr(item, "__torch_function__"):
            self.refuse(
                "a tensor is an argument that no layer holds",
                "let a layer hold it, which has the recorder note its calls",
            )
        return _plain(item)

    def _caller(self, skipped: int = 0) -> tuple[str, int]:
        """Return (file:line of the model's text, index of the decoder layer or -1).

        Args:
            skipped: frames of a layer that has its call noted.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename in _OWN_FILES:
            frame = frame.f_back
        for _ in range(skipped):
            frame = frame.f_back if frame is not None else None
        if frame is None:
            return "", -1
        name = frame.f_globals.get("__name__", "")
        return f"{_short(frame.f_code.co_filename, name)}:{frame.f_lineno}", self._layer_of(frame)

    def _layer_of(self, frame: FrameType) -> int:
        """Return the index of the decoder layer whose call is under way."""
        frames: list[FrameType] = []
        above: FrameType | None = frame
        while above is not None and above.f_code.co_filename != _TRACE_FILE:
            if above is self._layer_frame:
                return self._layer
            frames.append(above)
            above = above.f_back
        for one in frames:
            owner = one.f_locals.get("self") if one.f_code.co_varnames[:1] == ("self",) else None
            if owner is not None and id(owner) in self._layers:
                self._layer_frame, self._layer = one, self._layers[id(owner)]
                return self._layer
        return -1


def _with(node: Node, outputs: tuple[int, ...], units: Mapping[str, tuple[int, ...]]) -> Node:
    from dataclasses import replace

    return replace(node, outputs=outputs, units=units)


def _plain(constant: Any) -> Any:
    """Return a constant of a call with tokens for the number of tokens, and tuples for lists."""
    if isinstance(constant, Tokens):
        return TOKENS
    if isinstance(constant, list | tuple):
        return tuple(_plain(item) for item in constant)
    return constant


def _dtype_after(target: str, constants: Sequence[Any], tensor: Proxy) -> str:
    if target == "float":
        return "float32"
    dtypes = [str(item) for item in constants if str(item).startswith("torch.")]
    return dtypes[0].removeprefix("torch.") if target == "to" and dtypes else tensor.dtype_name


@cache
def _short(file: str, module: str) -> str:
    """Return the path of a file from its package on: the same on every machine."""
    parts = Path(file).parts
    return "/".join(parts[-max(len(module.split(".")), 1) :])
